"""API keys: who is let in, as whom, and what the file of keys may hold."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from live_server import Guarded

from engine.errors import ConfigError
from server.access.caller import ANYBODY, Caller
from server.access.keys import KeyRing, add_key, read_keys
from server.config import ServerConfig
from server.errors import ApiError


def _bearer(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer {key}".encode())]


def _add(path: Path, name: str, key: str | None = None, admin: bool = False, requests: int | None = None) -> str:
    return add_key(path, name, key, admin, requests, None)


def test_a_key_that_was_added_opens_and_says_whose_it_is(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    front, back = _add(path, "front", requests=5), _add(path, "back", admin=True)
    ring = KeyRing(ServerConfig(api_keys_file=str(path)))
    assert ring.identify(_bearer(front)) == Caller("front", requests_per_minute=5)
    assert ring.identify([(b"x-api-key", back.encode())]) == Caller("back", is_admin=True)
    assert front not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "headers",
    [
        [],
        _bearer(""),
        _bearer("wrong"),
        [(b"authorization", b"Basic c2VjcmV0")],
        [(b"authorization", b"secret-secret-secret-1")],
        [(b"x-api-key", b"")],
        [(b"x-api-key", b"Bearer secret-secret-secret-1")],
        [*_bearer("wrong"), (b"x-api-key", b"secret-secret-secret-1")],
    ],
    ids=repr,
)
def test_without_the_right_key_nobody_is_let_in(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(ApiError) as caught:
        KeyRing(ServerConfig(api_key="secret-secret-secret-1")).identify(headers)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")


def test_no_key_is_asked_for_unless_there_is_one() -> None:
    assert KeyRing(ServerConfig()).identify(_bearer("whatever")) is ANYBODY


def test_an_empty_file_of_keys_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# all gone\n")
    with pytest.raises(ApiError):
        KeyRing(ServerConfig(api_keys_file=str(tmp_path / "keys"))).identify([])


def test_an_old_and_a_new_key_of_one_name_are_both_valid(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    old, new = _add(path, "front"), _add(path, "front")
    ring = KeyRing(ServerConfig(api_keys_file=str(path)))
    assert ring.identify(_bearer(old)) == ring.identify(_bearer(new))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("front", "line 1 of .*: the digest of front"),
        ("\n# x\nfront secret", "line 3 of .*: the digest of front"),
        (f"fr/ont sha256:{'0' * 64}", "is no name"),
        (f"front sha256:{'0' * 64} fast", "'fast' is not requests=NUMBER"),
        (f"front sha256:{'0' * 64} requests=-1", "'requests=-1'"),
        (f"a sha256:{'0' * 64}\na sha256:{'1' * 64} admin", "a has other limits on an earlier line"),
    ],
)
def test_a_line_that_is_not_valid_is_named(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(ConfigError, match=reason):
        read_keys(tmp_path / "keys")


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(ConfigError, match="cannot read the API keys"):
        KeyRing(ServerConfig(api_keys_file="/nowhere/keys"))


def test_a_file_that_others_may_write_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    _add(path, "front")
    path.chmod(0o666)
    with caplog.at_level(logging.WARNING, "octavo"):
        read_keys(path)
    assert "chmod 600" in caplog.text


@pytest.mark.parametrize("key", ["short", "with a space in it, though long", "ключ-ключ-ключ-ключ-ключ"])
def test_a_key_that_could_be_guessed_or_not_be_sent_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match="a key needs at least 20 characters"):
        _add(tmp_path / "keys", "front", key)


def test_a_wrong_key_takes_as_long_as_none_and_as_one_that_is_nearly_right(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    keys = [_add(path, f"key{i}") for i in range(20)]
    ring = KeyRing(ServerConfig(api_keys_file=str(path)))

    def fastest(headers: Any) -> float:
        best = float("inf")
        for _ in range(200):
            began = time.perf_counter()
            with pytest.raises(ApiError):
                ring.identify(headers)
            best = min(best, time.perf_counter() - began)
        return best

    times = [fastest(_bearer(one)) for one in ("x" * 50, keys[0][:-1] + "!", keys[-1][:-1] + "!")] + [fastest([])]
    assert max(times) < 1.3 * min(times) + 2e-6


def test_the_command_makes_a_key_and_shows_it_once(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    command = [sys.executable, "-m", "server.cli", "keys", "add", str(path), "front", "--tokens", "100"]
    key = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert KeyRing(ServerConfig(api_keys_file=str(path))).identify(_bearer(key)) == Caller("front", tokens_per_minute=100)
    given = subprocess.run([*command[:-2], "--stdin"], input="my-own-key-of-some-length\n", capture_output=True, text=True)
    assert (given.returncode, given.stdout) == (2, ""), "other limits under the same name"


def test_either_kind_of_header_opens_the_server_and_use_is_counted_by_name(guarded: Guarded) -> None:
    body = {"prompt": "Hello", "max_tokens": 3, "ignore_eos": True}
    for headers in ({"authorization": f"Bearer {guarded.keys['front']}"}, {"x-api-key": guarded.keys["front"]}):
        assert httpx.post(f"{guarded.url}/v1/completions", json=body, headers=headers).status_code == 200
    for wrong in ({}, {"x-api-key": "wrong"}, {"authorization": "Bearer wrong"}):
        refused = httpx.post(f"{guarded.url}/v1/completions", json=body, headers=wrong)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert refused.headers["www-authenticate"] == "Bearer"
    assert guarded.server.metric('octavo_key_requests_total{key="front"}') >= 2
    assert guarded.server.metric('octavo_key_tokens_total{key="front",kind="completion"}') >= 6
    guarded.server._wait(lambda: "key=front" in guarded.server.log, 10)
    assert not any(key in guarded.server.log for key in guarded.keys.values())


def test_isolated_keys_share_no_cached_prefixes(guarded: Guarded) -> None:
    def cached(name: str, salt: str | None = None) -> int:
        body = {"prompt": "It was the best of times, it was the worst of times. " * 8, "max_tokens": 1, "cache_salt": salt}
        answer = httpx.post(f"{guarded.url}/v1/completions", json=body, headers={"x-api-key": guarded.keys[name]})
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached("front") == 0
    assert cached("front") > 0
    assert cached("ops") == 0
    assert cached("front", "salt") == 0
    assert cached("ops", "salt") == 0


def test_keys_are_read_again_on_sighup_and_a_bad_file_changes_nothing(guarded: Guarded) -> None:
    def status(key: str) -> int:
        return httpx.get(f"{guarded.url}/v1/models", headers={"x-api-key": key}).status_code

    late = _add(guarded.path, "late")
    assert status(late) == 401
    _reload(guarded)
    assert status(late) == 200
    good = guarded.path.read_text()
    guarded.path.write_text("nonsense\n")
    _reload(guarded)
    assert "the API keys stay as they were: line 1" in guarded.server.log
    assert status(late) == 200
    guarded.path.write_text("".join(line for line in good.splitlines(keepends=True) if not line.startswith("late")))
    _reload(guarded)
    assert status(late) == 401
    assert status(guarded.keys["front"]) == 200


def _reload(guarded: Guarded) -> None:
    before = guarded.server.log.count("API keys")
    guarded.server.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 10
    while guarded.server.log.count("API keys") == before:
        assert time.monotonic() < deadline
        time.sleep(0.02)
