"""LlamaIndex against a server: `python tests/clients/check_llama_index.py http://127.0.0.1:8000/v1`."""

import operator
from typing import Any, Literal

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.llms import ChatMessage
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field
from verdict import ANSWER, MODEL, QUESTION, check, run, server_url

CONNECTION: Any = {"api_base": server_url(), "api_key": "none", "max_retries": 0}
WEATHER = "What is the weather in Oslo, in celsius?"


def model(**settings: Any) -> OpenAILike:
    what_it_is: Any = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 8192}
    return OpenAILike(model=MODEL, temperature=0, max_tokens=200, **what_it_is, **CONNECTION, **settings)


def embeddings() -> OpenAILikeEmbedding:
    return OpenAILikeEmbedding(model_name=MODEL, **CONNECTION)


# No postponed annotations in this file: LlamaIndex makes the function's schema of them.
def get_weather(city: str, unit: Literal["celsius", "fahrenheit"]) -> str:
    """The weather in a city."""
    return f"18 degrees {unit} and sunny in {city}"


WEATHER_TOOL = FunctionTool.from_defaults(get_weather)


class Person(BaseModel):
    """A person."""

    name: str
    age: int = Field(ge=0, le=150)


def words(text: str) -> list[str]:
    """Stands for tiktoken, whose vocabulary is a download. It only decides where documents are cut."""
    return text.split()


@check
def a_chat_answers_and_streams() -> None:
    messages = [ChatMessage(role="user", content=QUESTION)]
    answer = model().chat(messages)
    assert ANSWER in answer.message.content
    assert answer.raw.usage.completion_tokens > 0
    deltas = [piece.delta for piece in model().stream_chat(messages)]
    assert len(deltas) > 4
    assert "".join(deltas) == answer.message.content


@check
async def the_async_interface_answers_and_streams() -> None:
    answer = await model().achat([ChatMessage(role="user", content=QUESTION)])
    pieces = [piece.delta async for piece in await model().astream_chat([ChatMessage(role="user", content=QUESTION)])]
    assert "".join(pieces) == answer.message.content


@check
def completions_answer_and_stream() -> None:
    plain = OpenAILike(model=MODEL, temperature=0, max_tokens=16, is_chat_model=False, context_window=8192, **CONNECTION)
    text = plain.complete("The capital of France is").text
    assert ANSWER in text
    assert "".join(piece.delta for piece in plain.stream_complete("The capital of France is")) == text


@check
def tools_are_called_with_arguments_that_validate() -> None:
    answer = model().chat_with_tools([WEATHER_TOOL], WEATHER, tool_required=True)
    (call,) = model().get_tool_calls_from_response(answer)
    assert call.tool_name == "get_weather"
    assert "degrees" in get_weather(**call.tool_kwargs)
    *_, last = model().stream_chat_with_tools([WEATHER_TOOL], WEATHER, tool_required=True)
    (streamed,) = model().get_tool_calls_from_response(last)
    assert streamed.tool_kwargs == call.tool_kwargs


@check
def predict_and_call_runs_the_function() -> None:
    answer = model().predict_and_call([WEATHER_TOOL], WEATHER, tool_required=True)
    assert "degrees" in answer.response


@check
def structured_prediction_is_of_the_class() -> None:
    answer = model().as_structured_llm(Person).complete("Ada is an engineer and 36 years old.")
    assert isinstance(answer.raw, Person)
    assert isinstance(
        model(should_use_structured_outputs=True).as_structured_llm(Person).complete("Ada is an engineer and 36 years old.").raw, Person
    )


@check
def embeddings_are_near_for_what_is_near() -> None:
    texts = ["The cat sat on the mat.", "A cat is sitting on a mat.", "Interest rates rose again in March."]
    vectors = embeddings().get_text_embedding_batch(texts)
    near, far = (sum(map(operator.mul, vectors[0], other)) for other in vectors[1:])
    assert near > far


@check
def a_question_is_answered_from_documents() -> None:
    texts = ["A cat sat on a mat in the kitchen.", "Interest rates rose in March.", "The old lighthouse of Lindau is 33 metres high."]
    splitter = SentenceSplitter(chunk_size=64, chunk_overlap=0, tokenizer=words)
    index = VectorStoreIndex.from_documents([Document(text=text) for text in texts], transformations=[splitter], embed_model=embeddings())
    answer = index.as_query_engine(llm=model(), similarity_top_k=1).query("How high is the old lighthouse of Lindau?")
    assert "Lindau" in answer.source_nodes[0].text
    assert "33" in answer.response
    streamed = index.as_query_engine(llm=model(), similarity_top_k=1, streaming=True).query("How high is the old lighthouse of Lindau?")
    assert "".join(streamed.response_gen) == answer.response


if __name__ == "__main__":
    run()
