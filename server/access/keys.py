"""API keys: which are valid, whose they are, and the file that holds them.

Only SHA-256 digests are kept. A slow hash such as scrypt protects what people make up; keys of 256 random bits cannot be guessed at
any speed, and a check that costs 50 ms would be an attack of its own.

A line of the file is a name, a digest, and what the key may do:

    # name      digest               limits, all optional
    front-end   sha256:9f86d08188... requests=600 tokens=200000
    ops         sha256:60303ae22b... admin
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path

from engine.errors import ConfigError
from server.access.caller import ANYBODY, Caller
from server.config import ServerConfig
from server.errors import ApiError
from server.observability.logs import logger

SHORTEST_KEY = 20  # characters of a key that is made elsewhere

_NAME = re.compile(r"[\w.@+-]{1,64}", re.ASCII)
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_LIMITS = ("requests", "tokens")  # per minute


class KeyRing:
    """The keys that this server takes: `--api-key`, `--admin-key`, and those of `--api-keys-file`.

    Raises ConfigError when the file cannot be read or has a line that is not valid.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._path = None if config.api_keys_file is None else Path(config.api_keys_file)
        self._given: list[tuple[bytes, Caller]] = []
        if config.api_key is not None:
            self._given.append((_digest(config.api_key.encode()), Caller("api-key", is_shared=True)))
        if config.admin_key is not None:
            self._given.append((_digest(config.admin_key.encode()), Caller("admin-key", is_admin=True)))
        self._holders = [*self._given, *self._read()]
        # A file that becomes empty shuts everybody out, rather than letting everybody in.
        self.asks_for_keys = config.api_key is not None or self._path is not None

    def identify(self, headers: list[tuple[bytes, bytes]]) -> Caller:
        """Whose request has these headers. Raises ApiError 401 when a key is asked for and theirs is missing or wrong.

        The time that it takes does not depend on the key that was sent: its digest is compared with all.
        """
        digest = _digest(key_in(headers))
        found: Caller | None = None
        for known, caller in self._holders:
            if hmac.compare_digest(known, digest):
                found = caller
        if found is not None:
            return found
        if not self.asks_for_keys:
            return ANYBODY
        raise _wrong_key()

    @property
    def knows_admins(self) -> bool:
        return any(caller.is_admin for _, caller in self._holders)

    def identify_admin(self, headers: list[tuple[bytes, bytes]]) -> Caller:
        """The same for the admin endpoints. Raises ApiError 403 for a key that is valid, but no admin's."""
        caller = self.identify(headers)
        if caller is ANYBODY:
            raise _wrong_key()
        if not caller.is_admin:
            raise ApiError(403, "this needs an admin's key", code="admin_key_required")
        return caller

    def reload(self) -> None:
        """Read the file again. One that is not valid changes nothing, and is told to the log."""
        if self._path is None:
            return
        try:
            self._holders = [*self._given, *self._read()]
        except ConfigError as error:
            logger.error("the API keys stay as they were: %s", error)
        else:
            logger.info("API keys read again: %d are valid", len(self._holders))

    def _read(self) -> list[tuple[bytes, Caller]]:
        return [] if self._path is None else read_keys(self._path)


def _wrong_key() -> ApiError:
    message = "the API key is missing or wrong: send it as 'Authorization: Bearer KEY', or as 'x-api-key: KEY'"
    return ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})


def key_in(headers: list[tuple[bytes, bytes]]) -> bytes:
    """The key that a request carries, as OpenAI's clients send it or else as Anthropic's do; empty if it carries none."""
    found = dict(reversed(headers))
    kind, _, key = found.get(b"authorization", b"").partition(b" ")
    if kind.lower() == b"bearer":
        return key.strip()
    return found.get(b"x-api-key", b"").strip()


def read_keys(path: Path) -> list[tuple[bytes, Caller]]:
    """Digest and holder of each key in a file. Raises ConfigError naming the line at fault."""
    try:
        text = path.read_text()
        if path.stat().st_mode & 0o022:
            logger.warning("%s can be written by other users of this machine: chmod 600 it", path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read the API keys in {path}: {reason}") from error
    return _parse(text, path)


def _parse(text: str, path: Path) -> list[tuple[bytes, Caller]]:
    holders: list[tuple[bytes, Caller]] = []
    by_name: dict[str, Caller] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            digest, caller = _holder(words)
        except ValueError as error:
            raise ConfigError(f"line {number} of {path}: {error}") from None
        # A name may have several keys, so that an old one can be replaced without a gap.
        if by_name.setdefault(caller.name, caller) != caller:
            raise ConfigError(f"line {number} of {path}: {caller.name} has other limits on an earlier line")
        holders.append((digest, caller))
    return holders


def add_key(path: Path, name: str, key: str | None, admin: bool, requests: int | None, tokens: int | None) -> str:
    """Append a key to a file, which is made if there is none; returns the key. Raises ConfigError for what would not be valid.

    A key that is not given is made: 256 random bits.
    """
    key = f"octavo-{secrets.token_urlsafe(32)}" if key is None else key
    if len(key) < SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"a key needs at least {SHORTEST_KEY} characters, printable ASCII without spaces: it is not guessed at by chance")
    words = [name, f"sha256:{_digest(key.encode()).hex()}"]
    words += [f"{word}={value}" for word, value in (("requests", requests), ("tokens", tokens)) if value is not None]
    words += ["admin"] if admin else []
    try:
        before = path.read_text() if path.exists() else ""
        line = ("" if before.endswith("\n") or not before else "\n") + " ".join(words) + "\n"
        _parse(before + line, path)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
            file.write(line)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot add a key to {path}: {error}") from error
    return key


def _holder(words: list[str]) -> tuple[bytes, Caller]:
    """Raises ValueError with what is wrong."""
    name, digest, *rest = [*words, ""] if len(words) < 2 else words
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:64]!r} is no name: up to 64 letters, digits and . _ @ + -")
    if not (found := _DIGEST.fullmatch(digest)):
        raise ValueError(f"the digest of {name} must be sha256: and 64 hexadecimal digits, as `octavo keys add` writes it")
    limits: dict[str, int] = {}
    for word in rest:
        field, _, value = word.partition("=")
        if field in _LIMITS and value.isascii() and value.isdigit():
            limits[field] = int(value)
        elif word != "admin":
            raise ValueError(f"{word[:64]!r} is not requests=NUMBER, tokens=NUMBER or admin")
    return bytes.fromhex(found[1]), Caller(
        name, "admin" in rest, requests_per_minute=limits.get("requests"), tokens_per_minute=limits.get("tokens")
    )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
