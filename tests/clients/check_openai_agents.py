"""The OpenAI Agents SDK against a server: `python tests/clients/check_openai_agents.py http://127.0.0.1:8000/v1`."""

# No postponed annotations in this file: the SDK makes the functions' schemas of them.
from typing import Any, Literal

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel
from verdict import ANSWER, MODEL, QUESTION, check, run, server_url

CLIENT = AsyncOpenAI(base_url=server_url(), api_key="none", max_retries=0)
BOTH = (OpenAIChatCompletionsModel, OpenAIResponsesModel)
called: list[str] = []


def agent(kind: type[Any], **settings: Any) -> Agent:
    choice = settings.pop("tool_choice", None)
    model_settings = ModelSettings(temperature=0, max_tokens=200, tool_choice=choice)
    return Agent(name="Assistant", model=kind(model=MODEL, openai_client=CLIENT), model_settings=model_settings, **settings)


@function_tool
def get_weather(city: str, unit: Literal["celsius", "fahrenheit"]) -> str:
    """The weather in a city."""
    called.append(city)
    return f"18 degrees {unit} and sunny in {city}"


class Person(BaseModel):
    """A person."""

    name: str
    role: Literal["engineer", "painter", "other"]


@check
async def an_agent_answers_through_both_apis() -> None:
    for kind in BOTH:
        result = await Runner.run(agent(kind), QUESTION)
        assert ANSWER in result.final_output, kind
        assert result.context_wrapper.usage.output_tokens > 0, kind


@check
async def an_answer_streams() -> None:
    for kind in BOTH:
        result = Runner.run_streamed(agent(kind), QUESTION)
        pieces = [event.data.delta async for event in result.stream_events() if is_text(event)]
        assert len(pieces) > 4, kind
        assert "".join(pieces) == result.final_output, kind


def is_text(event: Any) -> bool:
    return event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)


@check
async def the_loop_calls_a_function_and_then_answers() -> None:
    for kind in BOTH:
        called.clear()
        result = await Runner.run(agent(kind, tools=[get_weather], tool_choice="required"), "What is the weather in Oslo, in celsius?")
        assert called, kind
        assert result.final_output, kind


@check
async def the_loop_streams() -> None:
    for kind in BOTH:
        called.clear()
        result = Runner.run_streamed(agent(kind, tools=[get_weather], tool_choice="required"), "What is the weather in Oslo, in celsius?")
        names = [event.name async for event in result.stream_events() if event.type == "run_item_stream_event"]
        assert names[:2] == ["tool_called", "tool_output"], kind
        assert called, kind


@check
async def the_output_is_of_the_class() -> None:
    for kind in BOTH:
        result = await Runner.run(agent(kind, output_type=Person), "Ada is an engineer.")
        assert isinstance(result.final_output, Person), kind


if __name__ == "__main__":
    set_tracing_disabled(True)
    run()
