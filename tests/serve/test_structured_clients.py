"""Plain Pydantic models through the libraries that people use, against a whole server with the real model.

What the small model writes may be silly. It has the right shape, it validates, and it comes to an end: strings are
bounded, since a model that repeats itself within one is the model's own affair.
"""

from __future__ import annotations

import datetime
import enum
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from quire.serve.http.app import all_dialects
from tests.serve.running import running

anthropic = pytest.importorskip("anthropic")
ollama = pytest.importorskip("ollama")
openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")

pytestmark = pytest.mark.e2e

QUESTION: list[Any] = [{"role": "user", "content": "Jason is 25 years old and lives at 12 Main Street in Oslo."}]
LIMIT = 200


Short = Annotated[str, pydantic.Field(max_length=24)]


class Address(pydantic.BaseModel):
    street: Short
    city: Short


class Person(pydantic.BaseModel):
    """A person."""

    name: Short
    age: int | None = None
    address: Address


class Mood(enum.Enum):
    glad = "glad"
    sad = "sad"


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: Annotated[int, pydantic.Field(le=9)]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"
    good: bool


class Record(pydantic.BaseModel):
    """Every kind of field that a plain schema of Pydantic has a word of its own for."""

    id: pydantic.UUID4
    either: int | bool
    mood: Mood
    moods: set[Mood]
    scores: dict[Mood, int]
    at: datetime.datetime
    day: datetime.date
    path: Annotated[Path, pydantic.Field(json_schema_extra={"maxLength": 24})]
    secret: Annotated[pydantic.SecretStr, pydantic.Field(max_length=24)]
    pet: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


@pytest.fixture(scope="module")
def server(model_file):
    with running(model_file, all_dialects()) as made:
        yield made


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def plain(model: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": model.model_json_schema()}}


def tool_of(model: Any, **more: Any) -> dict[str, Any]:
    schema = model.model_json_schema()
    return {"type": "function", "function": {"name": model.__name__, "parameters": schema, **more}}


@pytest.mark.parametrize("seed", range(2))
def test_a_plain_schema_has_no_extra_keys_and_ends(client, server, seed):
    asked = {"model": "toy", "messages": QUESTION, "max_tokens": LIMIT, "temperature": 0.8, "seed": seed}
    said = client.chat.completions.create(**asked, response_format=plain(Person)).choices[0]
    assert said.finish_reason == "stop"
    Person.model_validate_json(said.message.content)
    assert set(json.loads(said.message.content)) <= {"name", "age", "address"}
    options = {"num_predict": LIMIT, "seed": seed, "temperature": 0.8}
    with ollama.Client(host=server.url) as other:
        answer = other.chat("toy", QUESTION, format=Person.model_json_schema(), options=options)
    assert answer.done_reason == "stop"
    Person.model_validate_json(answer.message.content)


def test_every_field_of_a_record_is_of_its_type(client):
    asked = {"model": "toy", "messages": QUESTION, "max_tokens": 500, "temperature": 0}
    said = client.chat.completions.create(**asked, response_format=plain(Record)).choices[0]
    assert said.finish_reason == "stop"
    Record.model_validate_json(said.message.content)


def test_the_client_parses_models_itself(client):
    asked = {"model": "toy", "temperature": 0}
    said = client.chat.completions.parse(**asked, messages=QUESTION, response_format=Person, max_tokens=LIMIT)
    assert isinstance(said.choices[0].message.parsed, Person)
    told = client.responses.parse(**asked, input=QUESTION[0]["content"], text_format=Person, max_output_tokens=LIMIT)
    assert isinstance(told.output_parsed, Person) and told.status == "completed"


@pytest.mark.parametrize("strict", [None, True])
def test_a_named_tool_is_called_once_with_what_its_schema_declares(client, strict):
    named = {"type": "function", "function": {"name": "Person"}}
    for seed in range(2):
        said = client.chat.completions.create(
            model="toy", messages=QUESTION, max_tokens=LIMIT, temperature=0.8, seed=seed,
            tools=[tool_of(Person, strict=strict), tool_of(Address)], tool_choice=named,
        ).choices[0]  # fmt: skip
        (call,) = said.message.tool_calls
        Person.model_validate_json(call.function.arguments)
        assert set(json.loads(call.function.arguments)) <= {"name", "age", "address"}


@pytest.mark.parametrize("seed", range(2))
def test_a_required_call_is_one_call_in_every_dialect(client, server, seed):
    now = {"type": "function", "function": {"name": "now"}}  # it has no arguments
    asked = {"model": "toy", "messages": QUESTION, "max_tokens": LIMIT, "temperature": 0.9, "seed": seed}
    said = client.chat.completions.create(**asked, tools=[tool_of(Address), now], tool_choice="required").choices[0]
    assert said.finish_reason == "tool_calls" and len(said.message.tool_calls) == 1
    flat = {"type": "function", "name": "Address", "parameters": Address.model_json_schema(), "strict": False}
    told = client.responses.create(
        model="toy", input="Oslo?", tools=[flat], tool_choice="required", max_output_tokens=LIMIT, temperature=0.9,
        text={"format": {"type": "json_schema", "name": "x", "schema": Person.model_json_schema()}},
    )  # fmt: skip
    assert [item.type for item in told.output] == ["function_call"] and told.status == "completed"
    tools = [{"name": "Address", "input_schema": Address.model_json_schema()}]
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as other:
        for choice in ({"type": "any"}, {"type": "tool", "name": "Address"}):
            answer = other.messages.create(
                model="toy", messages=QUESTION, max_tokens=LIMIT, tools=tools, tool_choice=choice
            )
            assert [block.type for block in answer.content] == ["tool_use"] and answer.stop_reason == "tool_use"
            Address.model_validate(answer.content[0].input)


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
@pytest.mark.parametrize("strict", [None, True])
def test_langchain_answers_with_the_model(server, method, strict):
    langchain_openai = pytest.importorskip("langchain_openai")
    chat = langchain_openai.ChatOpenAI(
        model="toy", base_url=f"{server.url}/v1", api_key="none", max_tokens=LIMIT, temperature=0, max_retries=0
    )
    answer = chat.with_structured_output(Person, method=method, strict=strict).invoke(QUESTION[0]["content"])
    assert isinstance(answer, Person)


def test_the_setting_leaves_objects_open_and_strict_closes_them(model_file):
    empty = {"type": "object", "properties": {}}
    with running(model_file, all_dialects(), open_objects=True) as made:
        asked = {"model": "toy", "messages": QUESTION, "max_tokens": 12, "temperature": 0}
        for strict, is_empty in ((True, True), (False, False)):
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": empty, "strict": strict}}
            said = made.http.post("/v1/chat/completions", json=asked | {"response_format": form}).json()["choices"][0]
            assert (said["message"]["content"] == "{}") is is_empty
