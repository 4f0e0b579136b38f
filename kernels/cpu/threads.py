"""The native threads that all operations of one set run on."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from kernels.container import usable_cores
from kernels.cpu.structs import Op, Step


class ThreadPool:
    """Owns a pool of csrc/threads.c. The calling thread is one of its threads; the others sleep while nothing runs."""

    def __init__(self, library: ctypes.CDLL, num_threads: int | None) -> None:
        self.library = library
        self.num_threads = num_threads or usable_cores()
        self.address: int = library.octavo_pool_create(self.num_threads)
        if not self.address:
            raise MemoryError("no memory for the threads of the CPU kernels")
        # Not at interpreter exit: another Python thread may be inside an operation then, and the process ends anyway.
        weakref.finalize(self, library.octavo_pool_destroy, self.address).atexit = False

    def run(self, args: Any, step: Step | None = None) -> None:
        """Run the one operation that the argument struct `args` describes."""
        op = Op(kind=args.kind, args=ctypes.addressof(args))
        self.library.octavo_run(self.address, ctypes.byref(op), 1, ctypes.byref(step or Step()))

    def scratch_bytes(self) -> int:
        """Working memory that the threads hold, all together."""
        return int(self.library.octavo_pool_scratch_bytes(self.address))
