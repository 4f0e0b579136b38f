"""Logits processors that requests name."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from live_server import running_server

from engine.config import EngineConfig
from engine.errors import ConfigError
from octavo import LLM

MODULE = """
def only(token_id):
    def process(generated, logits):
        wanted = logits[token_id].clone()
        logits.fill_(float("-inf"))
        logits[token_id] = wanted
        return logits
    return process


def failing(after=2):
    def process(generated, logits):
        if len(generated) >= after:
            raise RuntimeError("it was to be expected")
        return logits
    return process


number = 3
"""


@pytest.fixture(scope="module")
def processors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    directory = tmp_path_factory.mktemp("processors")
    (directory / "my_processors.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(directory))
        flags = ("--logits-processors", "only=my_processors:only", "--logits-processors", "failing=my_processors:failing")
        with running_server(directory, *flags) as server:
            server.wait_until_ready()
            with httpx.Client(base_url=server.url, timeout=60) as client:
                yield client


def complete(client: httpx.Client, processors: list[object], **body: object) -> httpx.Response:
    asked = {"prompt": "Once upon a time", "max_tokens": 6, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **body}
    return client.post("/v1/completions", json={**asked, "logits_processors": processors})


def test_a_named_processor_with_the_requests_keywords_changes_its_logits(processors: httpx.Client) -> None:
    answer = complete(processors, [{"qualname": "only", "kwargs": {"token_id": 28}}], n=2, temperature=1).json()
    assert [choice["token_ids"] for choice in answer["choices"]] == [[28] * 6] * 2


def test_one_that_fails_ends_its_own_request_with_the_reason_and_no_other(processors: httpx.Client) -> None:
    undisturbed = complete(processors, []).json()["choices"][0]["text"]
    with ThreadPoolExecutor() as pool:
        failed, beside = pool.map(lambda wanted: complete(processors, wanted), (["failing"], []))
    assert failed.status_code == 500
    assert "failing failed: RuntimeError: it was to be expected" in failed.json()["error"]["message"]
    assert beside.json()["choices"][0]["text"] == undisturbed


def test_a_name_that_the_server_was_not_started_with_is_refused(processors: httpx.Client, http: httpx.Client) -> None:
    for client, known in ((processors, "only, failing"), (http, "--logits-processors")):
        answer = complete(client, ["os.system"])
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "logits_processors"
        assert known in answer.json()["error"]["message"]


def test_keywords_that_a_factory_does_not_take_end_the_request_with_the_reason(processors: httpx.Client) -> None:
    answer = complete(processors, [{"qualname": "only", "kwargs": {"colour": "blue"}}])
    assert answer.status_code == 500
    assert "colour" in answer.json()["error"]["message"]


@pytest.mark.parametrize("spec", ["only", "only=my_processors", "only=my processors:only", "=m:f", "a=m:f.g"])
def test_a_spec_that_is_none_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"name=package\.module:factory"):
        EngineConfig(logits_processors=(spec,))


def test_a_name_has_one_factory() -> None:
    with pytest.raises(ConfigError, match="two of the name 'a'"):
        EngineConfig(logits_processors=("a=m:f", "a=m:g"))


@pytest.mark.parametrize(
    ("place", "reason"), [("nowhere_at_all:f", "PYTHONPATH"), ("my_processors:number", "no function"), ("json:x", "x")]
)
def test_a_factory_that_cannot_be_imported_stops_the_start(
    place: str, reason: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path_factory.mktemp("factories")
    (directory / "my_processors.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(directory))
    with pytest.raises(ConfigError, match=reason):
        LLM(logits_processors=(f"broken={place}",))
