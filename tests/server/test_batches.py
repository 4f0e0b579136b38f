"""/v1/files and /v1/batches, and `octavo run-batch`: each line is answered exactly once, whatever happens meanwhile."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from live_server import FLAGS, RunningServer, running_server

from engine.errors import ConfigError
from server.batches.lines import ENDPOINTS, parse, scan
from server.batches.offline import plan


def line(custom_id: str, url: str = "/v1/completions", **body: Any) -> str:
    if url == "/v1/completions":
        body = {"prompt": f"Line {custom_id}", "max_tokens": 4, "temperature": 0, "ignore_eos": True, **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


@pytest.fixture(scope="module")
def batch_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("batches")


@pytest.fixture(scope="module")
def batch_server(batch_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    flags = ("--batch-dir", str(batch_dir), "--max-batch-file-size", "1M", "--max-batch-storage", "8M", "--batch-concurrency", "4")
    with running_server(tmp_path_factory.mktemp("server"), *flags) as running:
        running.wait_until_ready()
        yield running


@pytest.fixture(scope="module")
def sdk(batch_server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{batch_server.url}/v1", api_key="one", max_retries=0, timeout=60) as client:
        yield client


def upload(sdk: openai.OpenAI, *lines: str, name: str = "in.jsonl") -> str:
    return sdk.files.create(file=(name, io.BytesIO("\n".join(lines).encode())), purpose="batch").id


def start(sdk: openai.OpenAI, *lines: str, endpoint: Any = "/v1/completions", window: Any = "24h", **more: Any) -> str:
    return sdk.batches.create(input_file_id=upload(sdk, *lines), endpoint=endpoint, completion_window=window, **more).id


def end_of(sdk: openai.OpenAI, batch_id: str, seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while (batch := sdk.batches.retrieve(batch_id)).status in ("validating", "in_progress", "finalizing", "cancelling"):
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
    return batch


def results(sdk: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    return [] if file_id is None else [json.loads(text) for text in sdk.files.content(file_id).text.splitlines()]


def test_the_sdk_runs_a_batch_from_its_file_to_its_output(sdk: openai.OpenAI) -> None:
    lines = [line(f"r{i}") for i in range(6)] + [line("bad", temperature=-1)]
    batch = end_of(sdk, start(sdk, *lines, metadata={"job": "test"}))
    assert (batch.object, batch.status, batch.endpoint, batch.metadata) == ("batch", "completed", "/v1/completions", {"job": "test"})
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (7, 6, 1)
    assert batch.created_at <= batch.in_progress_at <= batch.completed_at < batch.expires_at
    good, bad = results(sdk, batch.output_file_id), results(sdk, batch.error_file_id)
    assert [one["custom_id"] for one in good] == [f"r{i}" for i in range(6)]
    for i, one in enumerate(good):
        assert one["error"] is None
        assert one["response"]["status_code"] == 200
        assert one["response"]["request_id"]
        alone = sdk.completions.create(
            model="SmolLM2-135M-Instruct", prompt=f"Line r{i}", max_tokens=4, temperature=0, extra_body={"ignore_eos": True}
        )
        assert one["response"]["body"]["choices"][0]["text"] == alone.choices[0].text
    (refused,) = bad
    assert (refused["custom_id"], refused["response"]["status_code"]) == ("bad", 400)
    assert refused["response"]["body"]["error"]["param"] == "temperature"
    assert sdk.files.retrieve(batch.output_file_id).filename == f"{batch.id}_output.jsonl"


def test_every_endpoint_takes_batches(sdk: openai.OpenAI) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3},
        "/v1/completions": {},
        "/v1/embeddings": {"input": "Hi", "encoding_format": "base64"},
        "/v1/responses": {"input": "Hi", "max_output_tokens": 16},
    }
    assert set(bodies) == set(ENDPOINTS)
    ids = {url: start(sdk, line("a", url, **body), endpoint=url) for url, body in bodies.items()}
    for url, batch_id in ids.items():
        batch = end_of(sdk, batch_id)
        assert batch.status == "completed", batch
        assert len(results(sdk, batch.output_file_id)) == 1, (url, results(sdk, batch.error_file_id))


def test_files_are_listed_read_and_deleted(sdk: openai.OpenAI) -> None:
    ids = [upload(sdk, line("a"), name=name) for name in ("one.jsonl", "../../etc/passwd", "C:\\x\\three.jsonl")]
    first = sdk.files.retrieve(ids[0])
    assert (first.object, first.filename, first.purpose, first.status, first.bytes) == (
        "file",
        "one.jsonl",
        "batch",
        "processed",
        len(line("a")),
    )
    assert [sdk.files.retrieve(one).filename for one in ids[1:]] == ["passwd", "three.jsonl"]
    assert sdk.files.content(ids[1]).text == line("a")
    listed = [file.id for file in sdk.files.list(purpose="batch", limit=2)]  # the SDK turns the pages
    assert listed[:3] == ids[::-1]
    assert [file.id for file in sdk.files.list(order="asc", after=ids[0], limit=1)][:2] == ids[1:]
    assert sdk.files.delete(ids[0]).deleted
    for gone in (ids[0], "file-x", "../batches.sqlite", "..%2Fbatches.sqlite"):
        with pytest.raises(openai.NotFoundError):
            sdk.files.content(gone)
    with pytest.raises(openai.NotFoundError):
        sdk.files.delete(ids[0])


def test_nobody_sees_what_is_anothers(batch_server: RunningServer, sdk: openai.OpenAI) -> None:
    file_id, batch_id = upload(sdk, line("a")), start(sdk, line("a"))
    with openai.OpenAI(base_url=f"{batch_server.url}/v1", api_key="two", max_retries=0) as other:
        assert list(other.files.list()) == list(other.batches.list()) == []
        for attempt in (
            lambda: other.files.retrieve(file_id),
            lambda: other.files.content(file_id),
            lambda: other.files.delete(file_id),
            lambda: other.batches.retrieve(batch_id),
            lambda: other.batches.cancel(batch_id),
            lambda: other.batches.create(input_file_id=file_id, endpoint="/v1/completions", completion_window="24h"),
        ):
            with pytest.raises(openai.NotFoundError):
                attempt()
    end_of(sdk, batch_id)


def test_batches_are_listed_newest_first(sdk: openai.OpenAI) -> None:
    ids = [start(sdk, line("a")) for _ in range(3)]
    page = sdk.batches.list(limit=2)
    assert ([batch.id for batch in page.data], page.has_more) == ([ids[2], ids[1]], True)
    assert [batch.id for batch in sdk.batches.list(limit=1)][:3] == ids[::-1]
    for batch_id in ids:
        end_of(sdk, batch_id)


@pytest.mark.parametrize(
    ("lines", "number", "code"),
    [
        (["{"], 1, "invalid_line"),
        ([line("a"), "[]"], 2, "invalid_line"),
        ([line("a"), "", line("a")], 3, "duplicate_custom_id"),
        ([line("a", "/v1/embeddings", input="x")], 1, "invalid_line"),
        ([line("a", stream=True)], 1, "invalid_line"),
        ([line("")], 1, "invalid_line"),
        (['{"custom_id": "a", "method": "GET", "url": "/v1/completions", "body": {}}'], 1, "invalid_line"),
        ([""], None, "empty_file"),
    ],
)
def test_a_file_that_is_no_batch_fails_before_any_line_runs(sdk: openai.OpenAI, lines: list[str], number: int | None, code: str) -> None:
    batch = end_of(sdk, start(sdk, *lines))
    assert (batch.status, batch.output_file_id, batch.request_counts.total) == ("failed", None, 0)
    assert (batch.errors.data[0].line, batch.errors.data[0].code) == (number, code)


def test_requests_that_make_no_batch_are_refused(batch_server: RunningServer, sdk: openai.OpenAI) -> None:
    file_id = upload(sdk, line("a"))
    right: dict[str, Any] = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    for wrong in ({"endpoint": "/v1/models"}, {"completion_window": "soon"}, {"completion_window": "0h"}, {"metadata": {"a": 1}}):
        with pytest.raises(openai.BadRequestError):
            sdk.batches.create(**{**right, **wrong})
    with pytest.raises(openai.NotFoundError):
        sdk.batches.create(**{**right, "input_file_id": "file-none"})
    with pytest.raises(openai.BadRequestError, match="purpose"):
        sdk.files.create(file=("a", b"x"), purpose="assistants")
    with httpx.Client(base_url=batch_server.url, headers={"authorization": "Bearer one"}) as http:
        for body in ({"data": {"purpose": "batch"}}, {"content": b"x"}, {"files": {"file": b"x"}}, {"json": {"purpose": "batch"}}):
            answer = http.post("/v1/files", **body)  # type: ignore[arg-type]
            assert answer.status_code == 400, answer.text
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        too_large = http.post("/v1/files", data={"purpose": "batch"}, files={"file": b"x" * (2 << 20)})
        assert (too_large.status_code, too_large.json()["error"]["code"]) == (413, "request_too_large")


def test_there_is_an_end_to_the_room_for_files(batch_server: RunningServer) -> None:
    with openai.OpenAI(base_url=f"{batch_server.url}/v1", api_key="hoarder", max_retries=0) as hoarder:
        kept: list[str] = []

        def keep_one_more() -> None:
            kept.append(hoarder.files.create(file=("big", b"x" * (1 << 20)), purpose="batch").id)

        with pytest.raises(openai.InternalServerError, match="all files together may hold"):
            any(keep_one_more() for _ in range(9))
        assert len(kept) >= 5
        for file_id in kept:
            hoarder.files.delete(file_id)


def test_a_cancelled_batch_gives_what_it_has_and_an_expired_one_says_so(sdk: openai.OpenAI) -> None:
    many = [line(f"r{i}", max_tokens=60) for i in range(60)]
    cancelled_id, expired_id = start(sdk, *many), start(sdk, *many, window="2s")
    while sdk.batches.retrieve(cancelled_id).request_counts.completed < 2:
        time.sleep(0.02)
    assert sdk.batches.cancel(cancelled_id).status == "cancelling"
    cancelled = end_of(sdk, cancelled_id)
    assert (cancelled.status, cancelled.cancelled_at is not None) == ("cancelled", True)
    assert 2 <= cancelled.request_counts.completed == len(results(sdk, cancelled.output_file_id)) < 60
    with pytest.raises(openai.ConflictError, match="it is cancelled"):
        sdk.batches.cancel(cancelled_id)
    expired = end_of(sdk, expired_id)
    assert expired.status == "expired"
    done, left = results(sdk, expired.output_file_id), results(sdk, expired.error_file_id)
    assert sorted(one["custom_id"] for one in done + left) == sorted(f"r{i}" for i in range(60))
    assert left[0]["error"]["code"] == "batch_expired"


def test_interactive_requests_go_first(batch_server: RunningServer, sdk: openai.OpenAI) -> None:
    batch_id = start(sdk, *(line(f"r{i}", max_tokens=100) for i in range(80)))
    while sdk.batches.retrieve(batch_id).request_counts.completed < 1:
        time.sleep(0.02)
    sdk.completions.create(model="SmolLM2-135M-Instruct", prompt="Me first", max_tokens=5)
    assert sdk.batches.retrieve(batch_id).request_counts.completed < 40
    assert batch_server.metric("octavo_sequences_running") <= 4, "batches take no more places than they may"
    sdk.batches.cancel(batch_id)
    end_of(sdk, batch_id)


def test_a_batch_whose_file_is_gone_fails(sdk: openai.OpenAI, batch_dir: Path) -> None:
    file_id = upload(sdk, line("a"))
    (batch_dir / "files" / file_id).unlink()
    batch = end_of(sdk, sdk.batches.create(input_file_id=file_id, endpoint="/v1/completions", completion_window="24h").id)
    assert (batch.status, batch.errors.data[0].code) == ("failed", "file_missing")


def test_servers_without_a_folder_say_how_to_have_batches(http: httpx.Client) -> None:
    answer = http.get("/v1/batches")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "batches_off")


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_batch_goes_on_after_the_server_was_killed_and_answers_each_line_once(tmp_path: Path, number: signal.Signals) -> None:
    flags = ("--batch-dir", str(tmp_path / "kept"), "--batch-concurrency", "3", "--grace-period", "0")
    with running_server(tmp_path, *flags) as running:
        running.wait_until_ready()
        sdk = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
        batch_id = start(sdk, *(line(f"r{i}", max_tokens=30) for i in range(24)))
        while (before := sdk.batches.retrieve(batch_id).request_counts.completed) < 6:
            time.sleep(0.02)
        running.stop(number)
    assert not list((tmp_path / "kept" / "files").glob("*.part"))
    with running_server(tmp_path, *flags) as running:
        running.wait_until_ready()
        sdk = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
        assert sdk.batches.retrieve(batch_id).request_counts.completed >= before, "what was done is not done again"
        batch = end_of(sdk, batch_id)
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 24, 0)
        assert [one["custom_id"] for one in results(sdk, batch.output_file_id)] == [f"r{i}" for i in range(24)]
        assert len(list((tmp_path / "kept" / "files").iterdir())) == 2


def run_batch(*arguments: str) -> subprocess.Popen[str]:
    flags = FLAGS[2:]  # no port
    command = [sys.executable, "-m", "server.cli", "run-batch", *arguments, "--max-num-seqs", "2", *flags[2:]]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_run_batch_needs_no_server_and_goes_on_after_it_was_killed(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join([*(line(f"r{i}", max_tokens=30) for i in range(16)), line("bad", temperature=-1)]) + "\n")
    first = run_batch(str(source), str(target))
    deadline = time.monotonic() + 60
    while not target.exists() or target.read_bytes().count(b"\n") < 3:
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    first.kill()
    first.communicate()
    done = target.read_bytes()
    with target.open("ab") as file:
        file.write(b'{"id": "torn')
    second = run_batch(str(source), str(target))
    _, told = second.communicate(timeout=60)
    assert second.returncode == 0, told
    assert "1 requests failed" in told
    found = [json.loads(text) for text in target.read_text().splitlines()]
    assert target.read_bytes().startswith(done[: done.rindex(b"\n") + 1])
    assert sorted(one["custom_id"] for one in found) == sorted(["bad", *(f"r{i}" for i in range(16))])
    assert {one["custom_id"]: one["response"]["status_code"] for one in found}["bad"] == 400
    assert plan(source, target) == ([], 17), "there is nothing left to do"


def test_run_batch_says_what_is_wrong_with_its_files_before_it_loads_a_model(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    for content, result, words in (
        (line("a") + "\n{", "", "line 2 of"),
        (line("a"), '{"custom_id": "other"}\n', "holds results of another file"),
        (line("a"), "no JSON\n", "is no result of a batch"),
    ):
        source.write_text(content)
        target.write_text(result)
        with pytest.raises(ConfigError, match=words):
            plan(source, target)
    failed = run_batch(str(tmp_path / "none"), str(target))
    assert "No such file" in failed.communicate(timeout=60)[1]
    assert failed.returncode == 2


def test_lines_are_found_again_by_their_place(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n  " + line("ä").encode() + b"  \r\n\n" + line("b").encode())
    lines, errors = scan(path, "/v1/completions")
    assert errors == []
    assert [(one.number, one.custom_id) for one in lines] == [(2, "ä"), (4, "b")]
    data = path.read_bytes()
    assert [parse(data[one.offset : one.offset + one.size], None).custom_id for one in lines] == ["ä", "b"]
