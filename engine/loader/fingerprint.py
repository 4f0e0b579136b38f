"""A short name for the weights in a file, from little enough of it to be quick at any size."""

from __future__ import annotations

import hashlib
from pathlib import Path

from engine.errors import ModelLoadError

_NUM_SAMPLES = 64
_SAMPLE_BYTES = 4096
_MAX_HEADER_BYTES = 16 << 20


def fingerprint_file(path: Path, header_bytes: int) -> str:
    """16 hex digits of a hash over the size, the first `header_bytes`, and samples spread evenly over the rest.

    Two fine-tunings of one model have equal headers, but hardly a sample in common. Raises ModelLoadError when the file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        size = path.stat().st_size
        digest.update(f"{size}:".encode())
        with path.open("rb") as file:
            digest.update(file.read(min(header_bytes, _MAX_HEADER_BYTES)))
            for sample in range(_NUM_SAMPLES):
                file.seek(header_bytes + (size - header_bytes) * sample // _NUM_SAMPLES)
                digest.update(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror or error}") from error
    return digest.hexdigest()[:16]
