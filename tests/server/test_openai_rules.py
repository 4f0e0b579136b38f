"""The rules that servers of this kind are known to get wrong, each against the real server."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from live_server import RunningServer

MODEL = "SmolLM2-135M-Instruct"
HELLO = [{"role": "user", "content": "Tell me about the sea."}]
GREEDY: dict[str, Any] = {"model": MODEL, "messages": HELLO, "temperature": 0, "max_tokens": 12}


def _events(http: httpx.Client, path: str = "/v1/chat/completions", **body: Any) -> list[dict[str, Any]]:
    """The chunks of a stream, which must be framed as SSE and end with [DONE]."""
    response = http.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    frames = [frame for frame in response.text.split("\n\n") if frame and not frame.startswith(":")]
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    assert frames[-1] == "data: [DONE]"
    return [json.loads(frame[6:]) for frame in frames[:-1]]


def _chat(http: httpx.Client, **body: Any) -> dict[str, Any]:
    response = http.post("/v1/chat/completions", json={**GREEDY, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def _complete(http: httpx.Client, **body: Any) -> dict[str, Any]:
    response = http.post("/v1/completions", json={"model": MODEL, "temperature": 0, "max_tokens": 4, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.fixture(scope="module")
def whole(http: httpx.Client) -> dict[str, Any]:
    """The greedy answer that many tests compare with."""
    return _chat(http)


@pytest.fixture(scope="module")
def text(whole: dict[str, Any]) -> str:
    content: str = whole["choices"][0]["message"]["content"]
    return content


class TestStreaming:
    def test_the_first_chunk_carries_the_role_and_empty_content(self, http: httpx.Client) -> None:
        first = _events(http, **GREEDY)[0]["choices"][0]
        assert first["delta"] == {"role": "assistant", "content": ""}

    def test_finish_reason_is_null_and_present_in_every_chunk_but_the_last(self, http: httpx.Client) -> None:
        choices = [chunk["choices"][0] for chunk in _events(http, **GREEDY)]
        assert all("finish_reason" in choice for choice in choices)
        assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)

    def test_the_last_chunk_has_an_empty_delta_and_the_reason(self, http: httpx.Client) -> None:
        last = _events(http, **GREEDY)[-1]["choices"][0]
        assert (last["delta"], last["finish_reason"]) == ({}, "length")

    def test_id_created_and_model_are_the_same_in_all_chunks(self, http: httpx.Client) -> None:
        chunks = _events(http, **GREEDY)
        assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"], chunk["system_fingerprint"]) for chunk in chunks}) == 1
        assert chunks[0]["object"] == "chat.completion.chunk"

    def test_each_choice_of_n_begins_and_ends_with_chunks_of_its_own(self, http: httpx.Client) -> None:
        chunks = _events(http, **{**GREEDY, "n": 3, "temperature": 1, "max_tokens": 4})
        for index in range(3):
            choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
            assert choices[0]["delta"]["role"] == "assistant"
            assert choices[-1]["delta"] == {}
            assert [choice["finish_reason"] is not None for choice in choices] == [False] * (len(choices) - 1) + [True]

    def test_include_usage_adds_one_chunk_without_choices_and_null_before(self, http: httpx.Client) -> None:
        chunks = _events(http, **GREEDY, stream_options={"include_usage": True})
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == 12
        assert all(chunk["usage"] is None and "usage" in chunk and chunk["choices"] for chunk in chunks[:-1])

    def test_without_include_usage_there_is_no_usage_key(self, http: httpx.Client) -> None:
        assert not any("usage" in chunk for chunk in _events(http, **GREEDY))

    def test_continuous_usage_counts_on_in_every_chunk(self, http: httpx.Client) -> None:
        chunks = _events(http, **GREEDY, stream_options={"include_usage": True, "continuous_usage_stats": True})
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[0] < counts[-1] == 12

    def test_the_pieces_are_the_whole(self, http: httpx.Client, text: str) -> None:
        pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in _events(http, **GREEDY)]
        assert "".join(pieces) == text
        assert len(pieces) > 4

    def test_no_piece_holds_part_of_a_character(self, http: httpx.Client) -> None:
        # Greedy repetition of what stands in the prompt: characters of several tokens each.
        prompt = "🦑日本語🦑日本語🦑日本語🦑日本語🦑日本語🦑日本語🦑"
        whole = _complete(http, prompt=prompt, max_tokens=24)["choices"][0]["text"]
        chunks = _events(http, "/v1/completions", model=MODEL, prompt=prompt, temperature=0, max_tokens=24)
        pieces = [chunk["choices"][0]["text"] for chunk in chunks]
        assert "".join(pieces) == whole
        assert any(ord(character) > 0x2000 for character in whole)
        assert not any("\ufffd" in piece for piece in pieces[:-2])

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_stop_string_split_over_tokens_is_found_and_what_precedes_it_is_whole(
        self, http: httpx.Client, text: str, stream: bool
    ) -> None:
        # From the middle of one word to the middle of a later one: no token ends where this does.
        stop = text[6:13]
        assert " " in stop
        body = {**GREEDY, "stop": [stop, "never"]}
        if stream:
            choices = [chunk["choices"][0] for chunk in _events(http, **body)]
            content, last = "".join(choice["delta"].get("content", "") for choice in choices), choices[-1]
            assert not any(stop[:3] in choice["delta"].get("content", "") for choice in choices)
        else:
            last = _chat(http, **body)["choices"][0]
            content = last["message"]["content"]
        assert content == text[: text.index(stop)]
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)

    def test_the_sdk_reads_a_stream(self, client: openai.OpenAI, text: str) -> None:
        stream = client.chat.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == text
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 12

    @pytest.mark.parametrize("stream", [True, False])
    def test_a_client_that_leaves_stops_the_work(self, server: RunningServer, stream: bool) -> None:
        body = {**GREEDY, "max_tokens": 900, "ignore_eos": True, "stream": stream}
        with httpx.Client(base_url=server.url, timeout=1.5) as leaving:
            if stream:
                with leaving.stream("POST", "/v1/chat/completions", json=body) as response:
                    next(response.iter_lines())
            else:
                with pytest.raises(httpx.ReadTimeout):
                    leaving.post("/v1/chat/completions", json=body)
        server._wait(lambda: "client left" in server.log, 3)
        server.wait_until_idle(3)


class TestResults:
    def test_an_answer_that_ends_by_itself_stops(self, http: httpx.Client) -> None:
        answer = _chat(http, messages=[{"role": "user", "content": "Say hi"}], max_tokens=60)["choices"][0]
        assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", None)
        assert "<|im_end|>" not in answer["message"]["content"]

    def test_an_answer_that_is_cut_says_length(self, whole: dict[str, Any]) -> None:
        assert whole["choices"][0]["finish_reason"] == "length"
        assert whole["usage"]["completion_tokens"] == 12

    def test_stop_reason_tells_the_token_id(self, http: httpx.Client) -> None:
        ids = _chat(http, return_token_ids=True)["choices"][0]["token_ids"]
        choice = _chat(http, stop_token_ids=[ids[5]], return_token_ids=True)["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ids[5])
        assert choice["token_ids"] == ids[: ids.index(ids[5]) + 1]

    def test_include_stop_str_in_output_keeps_it(self, http: httpx.Client, text: str) -> None:
        content = _chat(http, stop=text[6:13], include_stop_str_in_output=True)["choices"][0]["message"]["content"]
        assert content == text[: text.index(text[6:13]) + 7]

    def test_max_completion_tokens_means_max_tokens(self, http: httpx.Client) -> None:
        body = {name: value for name, value in GREEDY.items() if name != "max_tokens"}
        answer = http.post("/v1/chat/completions", json={**body, "max_completion_tokens": 3}).json()
        assert answer["usage"]["completion_tokens"] == 3

    def test_prompt_and_max_tokens_over_the_context_is_told_with_the_numbers(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match=r"1024.*1000|1000.*1024") as caught:
            client.completions.create(model=MODEL, prompt="word " * 100, max_tokens=1000)
        assert caught.value.code == "context_length_exceeded"

    def test_a_prompt_longer_than_the_context_is_refused_unless_it_is_truncated(self, http: httpx.Client) -> None:
        response = http.post("/v1/completions", json={"prompt": "word " * 1500, "max_tokens": 1})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
        for keep, expected in ((-1, 1023), (5, 5)):
            answer = http.post("/v1/completions", json={"prompt": "word " * 1500, "max_tokens": 1, "truncate_prompt_tokens": keep}).json()
            assert answer["usage"]["prompt_tokens"] == expected

    def test_logprobs_have_k_alternatives_and_bytes_that_add_up_to_the_text(self, http: httpx.Client, text: str) -> None:
        content = _chat(http, logprobs=True, top_logprobs=3)["choices"][0]["logprobs"]["content"]
        assert len(content) == 12
        assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == text
        for entry in content:
            assert len(entry["top_logprobs"]) == 3
            assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] <= 0, "greedy takes the most probable"
            assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}

    def test_the_chosen_tokens_logprob_is_given_without_alternatives(self, http: httpx.Client) -> None:
        content = _chat(http, logprobs=True)["choices"][0]["logprobs"]["content"]
        assert all(entry["top_logprobs"] == [] and entry["logprob"] <= 0 for entry in content)

    def test_logprobs_are_of_the_distribution_before_temperature_and_filters(self, http: httpx.Client) -> None:
        body = {"logprobs": True, "top_logprobs": 5, "max_tokens": 1}
        greedy = _chat(http, **body)["choices"][0]["logprobs"]["content"][0]
        hot = _chat(http, **body, temperature=5, top_k=7, min_p=0.01, seed=1)["choices"][0]["logprobs"]["content"][0]
        assert hot["top_logprobs"] == greedy["top_logprobs"]

    def test_streamed_logprobs_are_those_of_the_whole(self, http: httpx.Client) -> None:
        whole = _chat(http, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
        chunks = _events(http, **GREEDY, logprobs=True, top_logprobs=2)
        streamed = [entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
        assert [entry["token"] for entry in streamed] == [entry["token"] for entry in whole]
        assert [entry["bytes"] for entry in streamed] == [entry["bytes"] for entry in whole]

    def test_the_end_of_sequence_has_a_logprob_but_no_bytes(self, http: httpx.Client) -> None:
        answer = _chat(http, messages=[{"role": "user", "content": "Say hi"}], max_tokens=60, logprobs=True)["choices"][0]
        content = answer["logprobs"]["content"]
        assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == answer["message"]["content"]

    def test_usage_counts_the_prompt_once_for_n(self, http: httpx.Client) -> None:
        one, three = _chat(http, max_tokens=2)["usage"], _chat(http, max_tokens=2, n=3, temperature=1, ignore_eos=True)["usage"]
        assert three["prompt_tokens"] == one["prompt_tokens"]
        assert (three["completion_tokens"], three["total_tokens"]) == (6, one["prompt_tokens"] + 6)

    def test_cached_prompt_tokens_are_told(self, http: httpx.Client) -> None:
        prompt = "A sentence that nobody has sent before, long enough for some blocks of the cache to be filled with its tokens. " * 3
        first, second = (_complete(http, prompt=prompt, max_tokens=1)["usage"] for _ in range(2))
        assert first["prompt_tokens_details"]["cached_tokens"] == 0
        assert 0 < second["prompt_tokens_details"]["cached_tokens"] < second["prompt_tokens"]
        other = _complete(http, prompt=prompt, max_tokens=1, cache_salt="another tenant")["usage"]
        assert other["prompt_tokens_details"]["cached_tokens"] == 0

    def test_a_seed_reproduces_and_another_seed_does_not(self, http: httpx.Client) -> None:
        answers = [_chat(http, temperature=1.5, seed=seed, n=2, top_p=0.95)["choices"] for seed in (7, 7, 8)]
        contents = [[choice["message"]["content"] for choice in choices] for choices in answers]
        assert contents[0] == contents[1] != contents[2]
        assert contents[0][0] != contents[0][1], "the samples of one request differ"

    def test_the_fingerprint_is_the_same_from_answer_to_answer(self, http: httpx.Client, whole: dict[str, Any]) -> None:
        assert whole["system_fingerprint"].startswith("fp_")
        assert _complete(http, prompt="Hi")["system_fingerprint"] == whole["system_fingerprint"]

    def test_temperature_zero_is_greedy(self, http: httpx.Client, text: str) -> None:
        assert _chat(http, seed=99)["choices"][0]["message"]["content"] == text
        assert _chat(http, temperature=1, top_k=1)["choices"][0]["message"]["content"] == text

    def test_min_tokens_and_ignore_eos_go_past_the_end_of_sequence(self, http: httpx.Client) -> None:
        messages = [{"role": "user", "content": "Say hi"}]
        assert _chat(http, messages=messages, max_tokens=50, ignore_eos=True)["usage"]["completion_tokens"] == 50
        assert _chat(http, messages=messages, max_tokens=50, min_tokens=45)["usage"]["completion_tokens"] >= 45

    def test_token_ids_are_returned_when_asked_for(self, http: httpx.Client, text: str) -> None:
        answer = _chat(http, return_token_ids=True)
        assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
        assert http.post("/detokenize", json={"tokens": answer["choices"][0]["token_ids"]}).json()["prompt"] == text
        chunks = _events(http, **GREEDY, return_token_ids=True)
        assert chunks[0]["prompt_token_ids"] == answer["prompt_token_ids"]
        streamed = [token_id for chunk in chunks for token_id in chunk["choices"][0].get("token_ids", [])]
        assert streamed == answer["choices"][0]["token_ids"]

    def test_prompt_logprobs_come_in_the_form_that_vllm_gave_them(self, http: httpx.Client) -> None:
        answer = _chat(http, prompt_logprobs=1, max_tokens=1)
        assert answer["prompt_logprobs"][0] is None
        assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
        entry = next(iter(answer["prompt_logprobs"][1].values()))
        assert set(entry) == {"logprob", "rank", "decoded_token"}

    def test_the_sdk_reads_an_answer_with_everything(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(
            **{**GREEDY, "n": 2, "logprobs": True, "top_logprobs": 2, "user": "me", "presence_penalty": 0},
            extra_body={"top_k": 5, "min_p": 0.1, "return_token_ids": True},
        )
        assert len(answer.choices) == 2
        assert answer.choices[0].message.role == "assistant"
        assert answer.choices[0].logprobs is not None
        assert answer.usage is not None
        assert answer._request_id is not None


class TestMessages:
    def test_parts_names_and_all_roles_are_taken(self, http: httpx.Client) -> None:
        messages = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}], "name": "Ann"},
            {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "5"},
            {"role": "user", "content": "Go on"},
        ]
        prompt = http.post("/tokenize", json={"messages": messages}).json()["tokens"]
        text = http.post("/detokenize", json={"tokens": prompt}).json()["prompt"]
        assert "<|im_start|>system\nBe brief.<|im_end|>" in text
        assert "<|im_start|>user\nHi\nthere<|im_end|>" in text
        assert text.endswith("<|im_start|>assistant\n")
        assert _chat(http, messages=messages, max_tokens=1)["usage"]["prompt_tokens"] == len(prompt)

    def test_what_the_template_cannot_render_is_a_400(self, http: httpx.Client) -> None:
        messages = [*HELLO, {"role": "assistant", "content": None}]
        response = http.post("/v1/chat/completions", json={**GREEDY, "messages": messages})
        assert response.status_code == 400
        assert "template" in response.json()["error"]["message"]
        assert response.json()["error"]["param"] == "messages"

    def test_a_final_message_is_continued(self, http: httpx.Client) -> None:
        messages = [*HELLO, {"role": "assistant", "content": "The sea is"}]
        tokens = http.post("/tokenize", json={"messages": messages, "continue_final_message": True}).json()["tokens"]
        assert http.post("/detokenize", json={"tokens": tokens}).json()["prompt"].endswith("<|im_start|>assistant\nThe sea is")
        answer = _chat(http, messages=messages, continue_final_message=True, add_generation_prompt=False, max_tokens=2)
        assert answer["usage"]["prompt_tokens"] == len(tokens)


class TestCompletions:
    def test_several_prompts_and_n_are_indexed_prompt_major(self, http: httpx.Client) -> None:
        answer = _complete(http, prompt=["One, two, three,", "The capital of France is"], n=2, echo=True)
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert [choice["text"].startswith("One") for choice in answer["choices"]] == [True, True, False, False]
        assert answer["usage"]["completion_tokens"] == 16

    def test_best_of_answers_with_the_most_probable_of_several_samples(self, http: httpx.Client) -> None:
        asked = {"prompt": "Once upon a time", "temperature": 1.0, "seed": 3, "max_tokens": 8, "ignore_eos": True}
        sampled = _complete(http, **asked, n=4, logprobs=0)["choices"]
        sampled.sort(key=lambda choice: -sum(choice["logprobs"]["token_logprobs"]))
        answer = _complete(http, **asked, n=2, best_of=4)
        assert [choice["text"] for choice in answer["choices"]] == [choice["text"] for choice in sampled[:2]]
        assert [(choice["index"], choice["logprobs"]) for choice in answer["choices"]] == [(0, None), (1, None)]

    def test_beam_search_answers_with_the_most_probable_sequences_best_first(self, http: httpx.Client) -> None:
        asked = {"prompt": "Once upon a time", "max_tokens": 8, "ignore_eos": True, "logprobs": 0}
        choices = _complete(http, **asked, n=3, use_beam_search=True)["choices"]
        totals = [sum(choice["logprobs"]["token_logprobs"]) for choice in choices]
        assert totals == sorted(totals, reverse=True)
        assert len({choice["text"] for choice in choices}) == 3
        assert [choice["index"] for choice in choices] == [0, 1, 2]
        one = _complete(http, **asked, use_beam_search=True)["choices"]
        assert one == _complete(http, **asked)["choices"]

    def test_a_beam_search_that_cannot_be_is_refused(self, http: httpx.Client) -> None:
        for path, prompt in (("/v1/completions", {"prompt": "Once"}), ("/v1/chat/completions", {"messages": HELLO})):
            for body, param in (
                ({"use_beam_search": True, "stream": True}, "use_beam_search"),
                ({"use_beam_search": True, "stop": "x"}, "stop"),
                ({"length_penalty": 2}, "length_penalty"),
                ({"use_beam_search": True, "early_stopping": "sometimes"}, "early_stopping"),
            ):
                response = http.post(path, json={**prompt, "max_tokens": 1, **body})
                assert response.status_code == 400
                assert response.json()["error"]["param"].startswith(param)

    def test_best_of_that_cannot_be_is_refused(self, http: httpx.Client) -> None:
        for body, message in (({"n": 3, "best_of": 2}, "between n"), ({"best_of": 2, "stream": True}, "cannot be streamed")):
            response = http.post("/v1/completions", json={"prompt": "Once", "max_tokens": 1, **body})
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "best_of"
            assert message in response.json()["error"]["message"]
        chunks = _events(http, "/v1/completions", prompt="Once", max_tokens=1, n=2, best_of=2)
        assert {choice["index"] for chunk in chunks for choice in chunk["choices"]} == {0, 1}

    def test_text_and_its_token_ids_are_the_same_prompt(self, http: httpx.Client) -> None:
        ids = http.post("/tokenize", json={"prompt": "The capital of France is"}).json()["tokens"]
        texts = [_complete(http, prompt=prompt)["choices"] for prompt in ("The capital of France is", ids, [ids])]
        assert texts[0] == texts[1] == texts[2]

    def test_streams_of_several_prompts_are_those_of_each(self, http: httpx.Client) -> None:
        prompts = ["One, two, three,", "The capital of France is"]
        whole = [choice["text"] for choice in _complete(http, prompt=prompts, max_tokens=6)["choices"]]
        chunks = _events(http, "/v1/completions", model=MODEL, prompt=prompts, temperature=0, max_tokens=6)
        for index, text in enumerate(whole):
            choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
            assert "".join(choice["text"] for choice in choices) == text
            assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
        assert chunks[0]["object"] == "text_completion"

    def test_echo_with_logprobs_scores_the_prompt(self, http: httpx.Client) -> None:
        choice = _complete(http, prompt="The capital of France is", echo=True, logprobs=2, max_tokens=3)["choices"][0]
        logprobs = choice["logprobs"]
        assert logprobs["token_logprobs"][0] is None
        assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
        assert "".join(logprobs["tokens"]) == choice["text"]
        for offset, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True):
            assert choice["text"][offset:].startswith(token)
        assert {len(top) for top in logprobs["top_logprobs"][1:]} <= {2, 3}

    def test_a_prompt_is_scored_without_generating(self, http: httpx.Client) -> None:
        answer = _complete(http, prompt="The capital of France is", echo=True, logprobs=1, max_tokens=0)
        choice = answer["choices"][0]
        assert choice["text"] == "The capital of France is"
        assert len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]
        assert answer["usage"]["completion_tokens"] == 0

    def test_a_streamed_echo_comes_first(self, http: httpx.Client) -> None:
        body = {"model": MODEL, "prompt": "The capital of France is", "echo": True, "logprobs": 1, "max_tokens": 3, "temperature": 0}
        whole = http.post("/v1/completions", json=body).json()["choices"][0]
        chunks = _events(http, "/v1/completions", **body)
        assert chunks[0]["choices"][0]["text"] == "The capital of France is"
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["text"]
        tokens = [token for chunk in chunks for token in (chunk["choices"][0]["logprobs"] or {"tokens": []})["tokens"]]
        assert tokens == whole["logprobs"]["tokens"]

    def test_the_sdk_reads_a_completion(self, client: openai.OpenAI) -> None:
        answer = client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=2, logprobs=1, temperature=0)
        assert answer.choices[0].text == " Paris."
        assert answer.choices[0].logprobs is not None
        assert answer.choices[0].logprobs.tokens == [" Paris", "."]


def test_the_running_usage_counts_the_tokens_that_were_sent(http: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "One two three", "echo": True, "max_tokens": 3, "ignore_eos": True, "stream": True, "stream_options": options}
    lines = http.post("/v1/completions", json=body).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert chunks[0]["choices"][0]["text"] == "One two three"
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-1] == 3
