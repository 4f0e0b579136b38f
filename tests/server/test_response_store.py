"""Stored responses: bounded, each owner's own, and there again after a restart."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError
from server.response_store import ResponseStore, StoredResponse


def _response(name: str, **fields: Any) -> StoredResponse:
    return StoredResponse({"id": name, "status": "completed", **fields}, [{"id": f"item of {name}"}])


@pytest.fixture(params=["memory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return None if request.param == "memory" else str(tmp_path / "responses.sqlite")


async def test_the_least_recently_used_make_room(path: str | None) -> None:
    store = ResponseStore(path, 2)
    await store.save("me", _response("a"))
    await store.save("me", _response("b"))
    assert await store.load("me", "a") is not None
    await store.save("me", _response("c"))
    assert [await store.load("me", name) is not None for name in "abc"] == [True, False, True]
    store.close()


async def test_an_owner_finds_and_deletes_only_its_own(path: str | None) -> None:
    store = ResponseStore(path, 10)
    await store.save("me", _response("a"))
    await store.save("you", _response("a", mine=False))
    assert not await store.delete("they", "a")
    assert await store.delete("you", "a")
    assert await store.load("you", "a") is None
    found = await store.load("me", "a")
    assert found is not None
    assert (found.response, found.items) == (_response("a").response, _response("a").items)
    store.close()


async def test_a_file_keeps_them_and_what_was_running_has_failed(tmp_path: Path) -> None:
    path = str(tmp_path / "responses.sqlite")
    store = ResponseStore(path, 10)
    await store.save("me", _response("whole"))
    await store.save("me", _response("cut", status="queued"), running=True)
    with pytest.raises(ConfigError, match="locked"):
        ResponseStore(path, 10)
    store.close()
    store = ResponseStore(path, 10)
    whole, cut = await store.load("me", "whole"), await store.load("me", "cut")
    assert whole is not None
    assert cut is not None
    assert (whole.response["status"], cut.response["status"]) == ("completed", "failed")
    store.close()


async def test_a_file_that_is_no_store_is_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("not a database, but long enough to have a header " * 10)
    with pytest.raises(ConfigError, match="response_store"):
        ResponseStore(str(path), 10)
    newer = sqlite3.connect(tmp_path / "newer")
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(ConfigError, match="another version"):
        ResponseStore(str(tmp_path / "newer"), 10)
    with pytest.raises(ConfigError, match="response_store"):
        ResponseStore(str(tmp_path / "no" / "directory"), 10)
