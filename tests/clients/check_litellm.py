"""LiteLLM, client and proxy, against a server: `python tests/clients/check_litellm.py http://127.0.0.1:8000/v1`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # prices of others' models are a download

import litellm
import openai
from pydantic import BaseModel
from verdict import ANSWER, MODEL, QUESTION, check, free_port, run, running, server_url

CONNECTION: Any = {"model": f"hosted_vllm/{MODEL}", "api_base": server_url(), "api_key": "none", "num_retries": 0, "temperature": 0}
MESSAGES = [{"role": "user", "content": QUESTION}]
WEATHER = [{"role": "user", "content": "What is the weather in Oslo, in celsius?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather in a city.", "parameters": PARAMETERS}}]
PROXY_KEY = "sk-only-for-this-check"
_START_SECONDS = 120.0

litellm.suppress_debug_info = True
proxy: openai.OpenAI


class Person(BaseModel):
    """A person."""

    name: str
    role: Literal["engineer", "painter", "other"]


def check_call(call: Any) -> None:
    assert call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("celsius", "fahrenheit")


@check
def the_client_answers_and_streams() -> None:
    answer = litellm.completion(messages=MESSAGES, max_tokens=48, **CONNECTION)
    assert ANSWER in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens > 0
    chunks = list(litellm.completion(messages=MESSAGES, max_tokens=48, stream=True, stream_options={"include_usage": True}, **CONNECTION))
    assert len(chunks) > 4
    whole = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert whole.choices[0].message.content == answer.choices[0].message.content
    assert whole.usage.completion_tokens == answer.usage.completion_tokens


@check
def the_provider_openai_works_too() -> None:
    connection = {**CONNECTION, "model": f"openai/{MODEL}"}
    answer = litellm.completion(messages=MESSAGES, max_completion_tokens=48, seed=3, user="somebody", n=2, **connection)
    assert all(ANSWER in choice.message.content for choice in answer.choices)
    assert litellm.text_completion(
        prompt="The capital of France is", max_tokens=8, **{**CONNECTION, "model": f"text-completion-openai/{MODEL}"}
    )


@check
async def the_async_client_answers_and_streams() -> None:
    answer = await litellm.acompletion(messages=MESSAGES, max_tokens=48, **CONNECTION)
    stream = await litellm.acompletion(messages=MESSAGES, max_tokens=48, stream=True, **CONNECTION)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == answer.choices[0].message.content


@check
def tools_are_called() -> None:
    answer = litellm.completion(
        messages=WEATHER, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=200, **CONNECTION
    )
    (call,) = answer.choices[0].message.tool_calls
    check_call(call)
    assert answer.choices[0].finish_reason == "tool_calls"
    chunks = list(litellm.completion(messages=WEATHER, tools=TOOLS, tool_choice="required", max_tokens=200, stream=True, **CONNECTION))
    (streamed,) = litellm.stream_chunk_builder(chunks, messages=WEATHER).choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    result = {"role": "tool", "tool_call_id": call.id, "content": "18 degrees and sunny"}
    messages = [*WEATHER, answer.choices[0].message.model_dump(), result]
    assert litellm.completion(messages=messages, tools=TOOLS, tool_choice="none", max_tokens=48, **CONNECTION).choices[0].message.content


@check
def a_response_format_is_kept() -> None:
    messages = [{"role": "user", "content": "Ada is an engineer."}]
    answer = litellm.completion(messages=messages, response_format=Person, max_tokens=100, **CONNECTION)
    assert Person.model_validate_json(answer.choices[0].message.content)


@check
def embeddings_come_as_numbers() -> None:
    connection = {name: value for name, value in CONNECTION.items() if name != "temperature"}
    answer = litellm.embedding(input=["A cat.", "A dog."], **connection)
    assert [len(item["embedding"]) for item in answer.data] == [576, 576]


@check
def errors_are_the_classes_that_their_status_says() -> None:
    with contextlib.suppress(litellm.NotFoundError):
        litellm.completion(messages=MESSAGES, **{**CONNECTION, "model": "hosted_vllm/no-such-model"})
        raise AssertionError("a model that does not exist was found")
    with contextlib.suppress(litellm.ContextWindowExceededError):
        litellm.completion(messages=[{"role": "user", "content": "word " * 20000}], **CONNECTION)
        raise AssertionError("a prompt that is too long was taken")


@check
def the_proxy_lists_the_model() -> None:
    assert {model.id for model in proxy.models.list()} == {"octavo", "octavo-embeddings"}


@check
def the_proxy_answers_and_streams() -> None:
    answer = proxy.chat.completions.create(model="octavo", messages=MESSAGES, temperature=0, max_tokens=48)
    assert ANSWER in answer.choices[0].message.content
    settings: Any = {"temperature": 0, "max_tokens": 48, "stream": True, "stream_options": {"include_usage": True}}
    chunks = list(proxy.chat.completions.create(model="octavo", messages=MESSAGES, **settings))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == answer.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens


@check
def the_proxy_passes_tools_formats_and_embeddings_on() -> None:
    answer = proxy.chat.completions.create(model="octavo", messages=WEATHER, tools=TOOLS, tool_choice="required", temperature=0)
    (call,) = answer.choices[0].message.tool_calls
    check_call(call)
    messages: Any = [{"role": "user", "content": "Ada is an engineer."}]
    parsed = proxy.chat.completions.parse(model="octavo", messages=messages, response_format=Person, temperature=0, max_tokens=100)
    assert isinstance(parsed.choices[0].message.parsed, Person)
    assert len(proxy.embeddings.create(model="octavo-embeddings", input="A cat.").data[0].embedding) == 576


@check
def the_proxy_serves_responses_and_anthropics_messages() -> None:
    assert ANSWER in proxy.responses.create(model="octavo", input=QUESTION, temperature=0).output_text
    message: Any = {"model": "octavo", "messages": MESSAGES, "max_tokens": 48, "temperature": 0}
    answer = proxy.post("/messages", body=message, cast_to=object)
    assert ANSWER in answer["content"][0]["text"]


@contextlib.contextmanager
def running_proxy(directory: Path) -> Iterator[openai.OpenAI]:
    """The proxy with the configuration of docs/clients/litellm.md; yields a client of it."""
    backend = {"model": f"hosted_vllm/{MODEL}", "api_base": server_url(), "api_key": "none"}
    names = [{"model_name": name, "litellm_params": backend} for name in ("octavo", "octavo-embeddings")]
    names[1]["model_info"] = {"mode": "embedding"}
    (directory / "config.yaml").write_text(json.dumps({"model_list": names, "general_settings": {"master_key": PROXY_KEY}}))
    port = free_port()
    command = [Path(sys.executable).with_name("litellm"), "--config", directory / "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=PROXY_KEY, max_retries=0, timeout=60)
    with running(command, directory / "log", lambda: is_up(client), _START_SECONDS):
        yield client


def is_up(client: openai.OpenAI) -> bool:
    try:
        return bool(client.models.list().data)
    except openai.APIError:
        return False


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory, running_proxy(Path(directory)) as proxy:
        run()
