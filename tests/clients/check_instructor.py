"""instructor against a server: `python tests/clients/check_instructor.py http://127.0.0.1:8000/v1`."""

from __future__ import annotations

from typing import Any, Literal

import instructor
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field, field_validator
from verdict import MODEL, check, run, server_url

CONNECTION = {"base_url": server_url(), "api_key": "none", "max_retries": 0}
MODES = (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA)
MESSAGES: Any = [{"role": "user", "content": "Ada is an engineer and 36 years old."}]
SETTINGS: Any = {"model": MODEL, "temperature": 0, "max_tokens": 200}


class Person(BaseModel):
    """A person."""

    name: str
    age: int = Field(ge=0, le=150)
    role: Literal["engineer", "painter", "other"]


class People(BaseModel):
    """Several people."""

    people: list[Person] = Field(min_length=1, max_length=3)


def client(mode: instructor.Mode) -> instructor.Instructor:
    return instructor.from_openai(OpenAI(**CONNECTION), mode=mode)


@check
def every_mode_gives_an_object_at_the_first_attempt() -> None:
    for mode in MODES:
        person = client(mode).create(response_model=Person, messages=MESSAGES, max_retries=0, **SETTINGS)
        assert isinstance(person, Person), mode


@check
def the_mode_json_gives_json_whose_keys_are_up_to_the_model() -> None:
    class Anything(BaseModel, extra="allow"):
        pass

    messages: Any = [{"role": "user", "content": 'Answer with {"ok": true} and nothing else.'}]
    answer = client(instructor.Mode.JSON).create(response_model=Anything, messages=messages, max_retries=0, **SETTINGS)
    assert isinstance(answer, Anything)


@check
def the_completion_comes_with_the_object() -> None:
    person, completion = client(instructor.Mode.TOOLS).create_with_completion(response_model=Person, messages=MESSAGES, **SETTINGS)
    assert isinstance(person, Person)
    assert completion.usage.completion_tokens > 0


@check
def nested_objects_and_partial_objects_stream() -> None:
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        parts = list(client(mode).create_partial(response_model=People, messages=MESSAGES, **SETTINGS))
        assert len(parts) > 2, mode
        assert People.model_validate(parts[-1].model_dump()), mode


@check
def an_iterable_of_objects_streams() -> None:
    people = list(client(instructor.Mode.TOOLS).create_iterable(response_model=Person, messages=MESSAGES, **SETTINGS))
    assert people
    assert all(isinstance(person, Person) for person in people)


@check
def an_object_that_its_validator_refuses_is_asked_for_again() -> None:
    attempts = []

    class Late(BaseModel):
        """A number that is right at the second attempt."""

        number: int

        @field_validator("number")
        @classmethod
        def only_the_second(cls, value: int) -> int:
            attempts.append(value)
            if len(attempts) == 1:
                raise ValueError("try another number")
            return value

    for mode in MODES:
        attempts.clear()
        answer = client(mode).create(response_model=Late, messages=MESSAGES, max_retries=1, **SETTINGS)
        assert isinstance(answer, Late), mode
        assert len(attempts) == 2, mode


@check
async def the_async_client_works() -> None:
    for mode in MODES:
        person = await instructor.from_openai(AsyncOpenAI(**CONNECTION), mode=mode).create(
            response_model=Person, messages=MESSAGES, max_retries=0, **SETTINGS
        )
        assert isinstance(person, Person), mode


@check
def responses_tools_give_an_object() -> None:
    settings = {"model": MODEL, "temperature": 0, "max_output_tokens": 200}
    person = client(instructor.Mode.RESPONSES_TOOLS).create(response_model=Person, messages=MESSAGES, max_retries=0, **settings)
    assert isinstance(person, Person)


@check
def a_model_by_its_name_is_found() -> None:
    person = instructor.from_provider(f"openai/{MODEL}", base_url=server_url(), api_key="none").create(
        response_model=Person, messages=MESSAGES, temperature=0, max_tokens=200
    )
    assert isinstance(person, Person)


if __name__ == "__main__":
    run()
