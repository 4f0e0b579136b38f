"""Memory of the host that is given back to the system while its addresses stay valid."""

from __future__ import annotations

import ctypes
import mmap
import sys

_DONTNEED = 4  # MADV_DONTNEED: the pages are freed, and read as zeros when they are touched again


def drop_pages(address: int, num_bytes: int) -> None:
    """Free the whole pages within private memory of this process: its content becomes zeros. On systems other than Linux, does nothing."""
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (address + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
    if length <= 0 or not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _DONTNEED):
        raise OSError(ctypes.get_errno(), "the KV cache could not be given back to the system")
