"""What can go wrong, as exceptions whose message tells a user what to do."""

from __future__ import annotations

import errno


class OctavoError(Exception):
    """The root of all errors that are meant to be read by a user."""


class ConfigError(OctavoError):
    """A setting, or settings together, that cannot work."""


class ModelLoadError(OctavoError):
    """A model that is missing, damaged, or of a kind that is not supported."""


class InvalidRequestError(OctavoError):
    """A request that can never be served as it stands.

    `param` names the field at fault and `code` is OpenAI's error code, where there is one.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class OverloadedError(OctavoError):
    """A request that came while as many wait as may; the same one may be taken in a moment."""


class RequestTimeoutError(OctavoError):
    """A request that reached its deadline before it was finished."""


class EngineDeadError(OctavoError):
    """The engine process ended and could not be brought back."""


class RequestFailedError(OctavoError):
    """A request that ends the engine whenever it is worked on. The others go on."""


class DiskFullError(OctavoError):
    """There is no room for what must be written."""


def is_disk_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_out_of_memory(error: BaseException) -> bool:
    """Also as PyTorch says it, which on the CPU has no exception of its own for it."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("allocate memory" in str(error) or "out of memory" in str(error))
    )
