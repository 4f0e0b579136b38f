"""LangChain (`langchain-openai`) against a server: `python tests/clients/check_langchain.py http://127.0.0.1:8000/v1`."""

from __future__ import annotations

import functools
import operator
from typing import Any, Literal

from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field
from verdict import ANSWER, MODEL, QUESTION, check, run, server_url

CONNECTION = {"base_url": server_url(), "api_key": "none", "model": MODEL, "max_retries": 0}
WEATHER = "What is the weather in Oslo, in celsius?"


def chat(**settings: Any) -> ChatOpenAI:
    return ChatOpenAI(**CONNECTION, **{"temperature": 0, "max_tokens": 200, **settings})


@tool
def get_weather(city: str, unit: Literal["celsius", "fahrenheit"]) -> str:
    """The weather in a city."""
    return f"18 degrees {unit} and sunny in {city}"


class Person(BaseModel):
    """A person."""

    name: str = Field(description="the name")
    age: int = Field(ge=0, le=150)
    role: Literal["engineer", "painter", "other"]


@check
def an_answer_has_text_usage_and_a_finish_reason() -> None:
    answer = chat(seed=7, stop=["\n\n"], presence_penalty=0.1).invoke(QUESTION)
    assert ANSWER in answer.content
    assert answer.usage_metadata["input_tokens"] > 10
    assert answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.response_metadata["model_name"] == MODEL


@check
def a_stream_adds_up_to_the_answer_and_ends_with_the_usage() -> None:
    answer = chat().invoke(QUESTION)
    chunks = list(chat(stream_usage=True).stream(QUESTION))
    whole = functools.reduce(operator.add, chunks)
    assert len(chunks) > 4
    assert isinstance(whole, AIMessageChunk)
    assert whole.content == answer.content
    assert whole.usage_metadata["output_tokens"] == answer.usage_metadata["output_tokens"]
    assert whole.response_metadata["finish_reason"] == "stop"


@check
async def async_streams_and_batches_give_the_same_text() -> None:
    pieces = [chunk.content async for chunk in chat().astream(QUESTION)]
    answers = await chat().abatch([QUESTION] * 4)
    assert {answer.content for answer in answers} == {"".join(pieces)}


@check
def a_chain_streams_through_its_parser() -> None:
    prompt = ChatPromptTemplate.from_messages([("human", "What is the capital of {country}? Answer briefly.")])
    pieces = list((prompt | chat() | StrOutputParser()).stream({"country": "France"}))
    assert len(pieces) > 4
    assert ANSWER in "".join(pieces)


@check
def bound_tools_are_called_with_arguments_that_validate() -> None:
    for choice in ("get_weather", "any"):
        answer = chat().bind_tools([get_weather], tool_choice=choice, parallel_tool_calls=False).invoke(WEATHER)
        (call,) = answer.tool_calls
        assert call["name"] == "get_weather"
        assert "degrees" in get_weather.invoke(call["args"])
        assert not answer.invalid_tool_calls
        assert answer.response_metadata["finish_reason"] in ("tool_calls", "stop")


@check
def strict_tools_that_may_be_called_are_taken() -> None:
    answer = chat().bind_tools([get_weather], strict=True).invoke(WEATHER)
    assert answer.content or answer.tool_calls


@check
def streamed_tool_calls_add_up() -> None:
    whole = functools.reduce(operator.add, chat().bind_tools([get_weather], tool_choice="required").stream(WEATHER))
    (call,) = whole.tool_calls
    assert "degrees" in get_weather.invoke(call["args"])


@check
def a_loop_of_calls_and_their_results_ends_in_an_answer() -> None:
    messages: list[Any] = [SystemMessage("You may look up the weather."), HumanMessage(WEATHER)]
    call = chat().bind_tools([get_weather], tool_choice="required").invoke(messages)
    messages += [call, *(get_weather.invoke(one) for one in call.tool_calls)]
    answer = chat().bind_tools([get_weather], tool_choice="none").invoke(messages)
    assert isinstance(answer, AIMessage)
    assert answer.content


@check
def structured_output_is_of_the_class_by_every_method() -> None:
    for method in ("json_schema", "function_calling"):
        for strict in (None, True):
            model = chat().with_structured_output(Person, method=method, strict=strict)
            assert isinstance(model.invoke("Ada is an engineer and 36 years old."), Person)
    model = chat().with_structured_output(Person, method="json_schema", include_raw=True)
    assert isinstance(model.invoke("Ada is an engineer and 36 years old.")["parsed"], Person)
    model = chat().with_structured_output(None, method="json_mode")
    assert isinstance(model.invoke("The capital of France, as JSON with one key:"), dict)


@check
def structured_output_streams() -> None:
    parts = list(chat().with_structured_output(Person.model_json_schema()).stream("Ada is an engineer and 36 years old."))
    assert len(parts) > 2
    assert Person.model_validate(parts[-1])


@check
def the_responses_api_answers_streams_and_calls_tools() -> None:
    model = chat(use_responses_api=True)
    answer = model.invoke(QUESTION)
    assert ANSWER in answer.text
    pieces = [chunk.text for chunk in model.stream(QUESTION)]
    assert len(pieces) > 4
    assert "".join(pieces) == answer.text
    (call,) = model.bind_tools([get_weather], tool_choice="required").invoke(WEATHER).tool_calls
    assert "degrees" in get_weather.invoke(call["args"])
    assert isinstance(model.with_structured_output(Person).invoke("Ada is an engineer and 36 years old."), Person)


@check
def log_probabilities_come_with_the_answer() -> None:
    answer = chat(logprobs=True, top_logprobs=3).invoke(QUESTION)
    content = answer.response_metadata["logprobs"]["content"]
    assert len(content) == answer.usage_metadata["output_tokens"]
    assert all(len(token["top_logprobs"]) == 3 for token in content)


@check
def parameters_of_other_servers_go_through_extra_body() -> None:
    answer = chat(extra_body={"structured_outputs": {"choice": ["red", "green"]}, "top_k": 5}).invoke("Red or green?")
    assert answer.content in ("red", "green")


@check
def completions_answer_and_stream() -> None:
    model = OpenAI(**CONNECTION, temperature=0, max_tokens=16)
    text = model.invoke("The capital of France is")
    assert ANSWER in text
    assert "".join(model.stream("The capital of France is")) == text
    assert model.batch(["The capital of France is"] * 2) == [text, text]


@check
def embeddings_find_what_is_near() -> None:
    embeddings = OpenAIEmbeddings(**CONNECTION, check_embedding_ctx_length=False)
    vectors = embeddings.embed_documents(["The cat sat on the mat.", "A cat is sitting on a mat.", "Interest rates rose again in March."])
    assert {len(vector) for vector in vectors} == {576}
    near, far = (sum(map(operator.mul, vectors[0], other)) for other in vectors[1:])
    assert near > far
    store = InMemoryVectorStore.from_texts(["A cat sat on a mat.", "Interest rates rose in March."], embeddings)
    assert "cat" in store.similarity_search("The cat is sitting on the mat.", k=1)[0].page_content


if __name__ == "__main__":
    run()
