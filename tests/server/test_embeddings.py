"""/v1/embeddings, /v1/score and /v1/rerank, as clients use them."""

from __future__ import annotations

import base64
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from live_server import RunningServer

MODEL = "SmolLM2-135M-Instruct"
SIZE = 576
TEXTS = ["The capital of France is Paris.", "Paris is the capital city of France.", "My bicycle has a flat tyre."]


def embed(http: httpx.Client, **body: Any) -> httpx.Response:
    return http.post("/v1/embeddings", json={"model": MODEL, **body})


def vectors(http: httpx.Client, **body: Any) -> list[list[float]]:
    answer = embed(http, **body)
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return [one["embedding"] for one in data]


def test_the_sdk_reads_vectors_of_length_one_in_the_order_of_the_inputs(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model=MODEL, input=TEXTS)
    assert (answer.object, answer.model, [one.object for one in answer.data]) == ("list", MODEL, ["embedding"] * 3)
    assert [one.index for one in answer.data] == [0, 1, 2]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 15
    found = np.array([one.embedding for one in answer.data])
    assert found.shape == (3, SIZE)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    assert found[0] @ found[1] > found[0] @ found[2] + 0.1, "what means the same is near"


def test_base64_and_floats_are_the_same_bits(client: openai.OpenAI, http: httpx.Client) -> None:
    by_default = client.embeddings.create(model=MODEL, input=TEXTS[0]).data[0].embedding  # the SDK asks for base64
    as_floats = client.embeddings.create(model=MODEL, input=TEXTS[0], encoding_format="float").data[0].embedding
    assert np.array_equal(np.float32(by_default), np.float32(as_floats))
    (encoded,) = vectors(http, input=TEXTS[0], encoding_format="base64")
    assert np.frombuffer(base64.b64decode(encoded), "<f4").tolist() == as_floats  # type: ignore[arg-type]


def test_all_forms_of_input_give_the_same_vector(http: httpx.Client) -> None:
    tokens = http.post("/tokenize", json={"prompt": TEXTS[0]}).json()["tokens"]
    forms: list[Any] = [TEXTS[0], [TEXTS[0]], tokens, [tokens], [*[TEXTS[1]] * 3, TEXTS[0]]]
    found = [vectors(http, input=form)[-1] for form in forms]
    assert all(vector == found[0] for vector in found)


def test_dimensions_shorten_the_vector_and_keep_its_length_of_one(client: openai.OpenAI) -> None:
    whole = np.array(client.embeddings.create(model=MODEL, input=TEXTS[0]).data[0].embedding)
    short = np.array(client.embeddings.create(model=MODEL, input=TEXTS[0], dimensions=100).data[0].embedding)
    assert np.allclose(short, whole[:100] / np.linalg.norm(whole[:100]), atol=1e-6)


def test_vectors_can_be_had_as_the_model_made_them_and_texts_can_be_cut(http: httpx.Client) -> None:
    (plain,) = vectors(http, input=TEXTS[0], normalize=False)
    assert math.hypot(*plain) > 2
    tokens = http.post("/tokenize", json={"prompt": TEXTS[0]}).json()["tokens"]
    assert vectors(http, input=TEXTS[0], truncate_prompt_tokens=3) == vectors(http, input=tokens[-3:])
    assert len(vectors(http, input="word " * 3000, truncate_prompt_tokens=-1)[0]) == SIZE


def test_2048_inputs_come_back_in_order_while_others_are_answered(http: httpx.Client, client: openai.OpenAI) -> None:
    inputs = [[7 + i % 50] for i in range(2048)]
    expected = [vectors(http, input=one)[0] for one in inputs[:3]]
    with ThreadPoolExecutor(1) as pool:
        many = pool.submit(vectors, http, input=inputs)
        assert client.completions.create(model=MODEL, prompt="Hello", max_tokens=4).usage is not None
        found = many.result(60)
    assert len(found) == 2048
    assert found[:3] == expected
    assert all(found[i] == found[i % 50] for i in range(2048))


def test_a_client_that_leaves_stops_the_work(server: RunningServer, http: httpx.Client) -> None:
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/embeddings", json={"input": ["word " * 900] * 200}, timeout=0.3)
    server.wait_until_idle(10)
    assert len(vectors(http, input="still here")) == 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [""]}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [[1], []]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [1, "a"]}, "input"),
        ({"input": [[1], "a"]}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": [True]}, "input"),
        ({"input": [[[1]]]}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": 7}, "input"),
        ({"input": None}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [10**9]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": "word " * 1100}, "input"),
        ({"input": ["a", "word " * 1100]}, "input"),
        ({"input": "x" * (1 << 20)}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": -5}, "dimensions"),
        ({"input": "a", "dimensions": SIZE + 1}, "dimensions"),
        ({"input": "a", "dimensions": 10**30}, "dimensions"),
        ({"input": "a", "dimensions": "8"}, "dimensions"),
        ({"input": "a", "dimensions": 1.5}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"input": "a", "stream": True}, "stream"),
        ({"input": "a", "user": 5}, "user"),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_name(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    answer = embed(http, **body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_an_input_that_is_too_long_is_refused_with_the_numbers(http: httpx.Client) -> None:
    error = embed(http, input="word " * 1100).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length is 1024 tokens" in error["message"]


def test_a_text_that_fills_the_context_has_an_embedding(http: httpx.Client) -> None:
    assert len(vectors(http, input=[5] * 1024)[0]) == SIZE
    assert embed(http, input=[5] * 1025).status_code == 400


def test_a_request_at_its_deadline_ends_with_408_and_leaves_nothing_behind(server: RunningServer, http: httpx.Client) -> None:
    answer = embed(http, input=["word " * 900] * 100, timeout=0.05)
    assert (answer.status_code, answer.json()["error"]["code"]) == (408, "timeout")
    server.wait_until_idle(10)


def test_one_text_is_scored_against_each_of_several_and_lists_pair_by_pair(http: httpx.Client) -> None:
    answer = http.post("/v1/score", json={"model": MODEL, "text_1": TEXTS[0], "text_2": TEXTS}).json()
    assert (answer["object"], answer["model"]) == ("list", MODEL)
    same, near, far = (one["score"] for one in answer["data"])
    assert same == pytest.approx(1, abs=1e-6)
    assert same > near > far
    pairs = http.post("/score", json={"text_1": [TEXTS[0], TEXTS[2]], "text_2": [TEXTS[1], TEXTS[2]]}).json()["data"]
    assert [one["score"] for one in pairs] == pytest.approx([near, 1], abs=1e-6)
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 20
    assert http.post("/v1/score", json={"text_1": TEXTS[:2], "text_2": TEXTS}).json()["error"]["param"] == "text_1"
    assert http.post("/v1/score", json={"text_1": [], "text_2": TEXTS}).json()["error"]["param"] == "text_1"


def test_documents_come_back_best_first(http: httpx.Client) -> None:
    body: dict[str, Any] = {"model": MODEL, "query": TEXTS[0], "documents": [TEXTS[2], TEXTS[1], {"text": TEXTS[0]}]}
    answer = http.post("/v1/rerank", json=body).json()
    assert [result["index"] for result in answer["results"]] == [2, 1, 0]
    assert answer["results"][0] == {"index": 2, "relevance_score": pytest.approx(1, abs=1e-6), "document": {"text": TEXTS[0]}}
    assert answer["usage"]["total_tokens"] > 20
    for path in ("/rerank", "/v2/rerank"):
        (best,) = http.post(path, json={**body, "top_n": 1, "return_documents": False}).json()["results"]
        assert set(best) == {"index", "relevance_score"}
    for change in ({"documents": []}, {"documents": [""]}, {"documents": [{"title": "x"}]}, {"documents": ["a"] * 2049}, {"top_n": 0}):
        refused = http.post("/v1/rerank", json={**body, **change})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(change)))
    assert http.post("/v1/rerank", json={"query": "", "documents": ["a"]}).json()["error"]["param"] == "query"
