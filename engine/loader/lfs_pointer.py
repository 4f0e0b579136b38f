"""What `git clone` leaves of a model's large files where Git LFS is not installed: a few lines of text that name them."""

from __future__ import annotations

from pathlib import Path

from engine.errors import ModelLoadError

_BEGINNING = b"version https://git-lfs"


def refuse_lfs_pointer(path: Path) -> None:
    """Raises ModelLoadError, with the remedy, for such a file. One that cannot be read is left to whoever reads it."""
    try:
        with path.open("rb") as file:
            beginning = file.read(len(_BEGINNING))
    except OSError:
        return
    if beginning == _BEGINNING:
        raise ModelLoadError(f"{path} only names the file that Git LFS keeps: run `git lfs install` and `git lfs pull` in {path.parent}")
