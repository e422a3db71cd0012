"""LLM.chat and POST /v1/chat/completions give the same answer to the same conversation, field for field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.engine.llm import LLM
from quire.serve.dialects.openai.dialect import DIALECT
from quire.text.preset import FILES
from quire.types.answer import Completion
from quire.types.message import ToolCall
from quire.types.request import SamplingParams
from tests.serve.running import Running, link_or_copy, running

pytestmark = pytest.mark.e2e

# Answers begin within a thought, unless the request says that the model is not to think.
TEMPLATE = (
    "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n<think>"
    "{{ if .IsThinkSet }}{{ if not .Think }}</think>{{ end }}{{ end }}"
)
EXAMPLES = [
    {"role": role, "content": content}
    for pair in (("Is 1+1=2?", "<think>Easy.</think>Yes."), ("Is 2+2=4?", "<think>Easy.</think>Yes.")) * 2
    for role, content in zip(("user", "assistant"), pair, strict=True)
]
PRESET = {
    "template": TEMPLATE,
    "system": "Answer with yes or no.",
    "messages": json.dumps(EXAMPLES),
    "params": json.dumps({"temperature": 0, "num_predict": 40}),
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Look up the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
        },
    },
}
QUESTION = [{"role": "user", "content": "Is 3+3=6?"}]
CALLED = [
    {"role": "user", "content": [{"type": "text", "text": "The weather"}, {"type": "text", "text": "in Rome?"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "Sunny, 24 degrees"},
]


@pytest.fixture(scope="module", params=["plain", "modelfile"])
def folder(request: pytest.FixtureRequest, model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model alone, and with a Modelfile's template, system prompt, messages and parameters."""
    made = tmp_path_factory.mktemp(request.param)
    link_or_copy(model_file, made / "model.gguf")
    for role, text in PRESET.items() if request.param == "modelfile" else ():
        (made / FILES[role]).write_text(text)
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with running(folder / "model.gguf", (DIALECT,)) as made:
        yield made


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder / "model.gguf", num_blocks=300, max_context=1024) as made:
        yield made


def of_server(server: Running, body: dict[str, Any]) -> dict[str, Any]:
    response = server.http.post("/v1/chat/completions", json={"return_token_ids": True, **body})
    assert response.status_code == 200, response.text
    answer = response.json()
    (choice,) = answer["choices"]
    message, usage = choice["message"], answer["usage"]
    return {
        "text": message["content"] or "",
        "reasoning": message.get("reasoning"),
        "calls": [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", ())],
        "finish_reason": choice["finish_reason"],
        "stop_reason": choice.get("stop_reason"),
        "tokens": choice["token_ids"],
        "prompt": answer["prompt_token_ids"],
        "usage": (usage["prompt_tokens"], usage["completion_tokens"]),
        "thought": usage["completion_tokens_details"]["reasoning_tokens"],
        "forced": usage["completion_tokens_details"].get("forced_tokens", 0) > 0,  # drafts may have come first
    }


def of_python(completion: Completion) -> dict[str, Any]:
    return {
        "text": completion.text,
        "reasoning": completion.reasoning,
        "calls": [(call.name, call.arguments) for call in completion.tool_calls],
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "tokens": list(completion.tokens),
        "prompt": list(completion.prompt_tokens),
        "usage": (completion.usage.prompt, completion.usage.output),
        "thought": completion.usage.reasoning,
        "forced": completion.usage.forced > 0,
    }


def both(
    server: Running, llm: LLM, messages: list[dict[str, Any]], sampling: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """The answer, which both give."""
    found = of_server(server, {"messages": messages, **sampling, **more})
    (completion,) = llm.chat(messages, SamplingParams(**sampling), **more)
    assert of_python(completion) == found
    deltas = list(llm.stream(messages, SamplingParams(**sampling), **more))
    assert "".join(delta.text for delta in deltas) == found["text"]
    assert "".join(delta.reasoning for delta in deltas) == (found["reasoning"] or "")
    parts = [part for delta in deltas for part in delta.tool_calls]
    assert [part.name for part in parts if part.id is not None] == [name for name, _ in found["calls"]]
    assert "".join(part.arguments for part in parts) == "".join(arguments for _, arguments in found["calls"])
    assert [token for delta in deltas for token in delta.tokens] == found["tokens"]
    assert deltas[-1].finish == found["finish_reason"]
    return found


GREEDY = {"temperature": 0, "max_tokens": 40}


def test_a_question(server: Running, llm: LLM, folder: Path) -> None:
    found = both(server, llm, QUESTION, GREEDY)
    assert found["text"]
    if (folder / FILES["template"]).exists():
        assert found["reasoning"] and found["thought"] > 0, "the examples show the model how to think"


def test_parameters_that_are_not_given_are_the_modelfiles(server: Running, llm: LLM, folder: Path) -> None:
    if not (folder / FILES["params"]).exists():
        pytest.skip("the model alone has no parameters")
    assert both(server, llm, QUESTION, {})["usage"][1] <= 40
    assert both(server, llm, QUESTION, {"max_tokens": 3})["finish_reason"] == "length"


def test_a_question_that_is_not_to_be_thought_about(server: Running, llm: LLM) -> None:
    found = both(server, llm, QUESTION, GREEDY, chat_template_kwargs={"enable_thinking": False})
    assert found["text"] and found["reasoning"] is None
    assert both(server, llm, QUESTION, GREEDY, reasoning_effort="none") == found


def test_a_stop_string(server: Running, llm: LLM) -> None:
    messages = [{"role": "user", "content": "Count from one to ten."}]
    whole = both(server, llm, messages, GREEDY)
    stop = max(whole["text"], whole["reasoning"] or "", key=len)[1:4]
    found = both(server, llm, messages, {**GREEDY, "stop": [stop, "zebra"]})
    assert (found["finish_reason"], found["stop_reason"]) == ("stop", stop)
    assert len(found["tokens"]) < len(whole["tokens"])


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_required_call(server: Running, llm: LLM, choice: Any) -> None:
    messages = [{"role": "user", "content": "How is the weather in Rome?"}]
    no_thought = {"enable_thinking": False}
    more = {"tools": [WEATHER], "tool_choice": choice, "chat_template_kwargs": no_thought}
    found = both(server, llm, messages, {"temperature": 0, "max_tokens": 120}, **more)
    assert found["finish_reason"] == "tool_calls" and found["forced"]
    ((name, arguments),) = found["calls"]
    assert name == "get_weather" and json.loads(arguments)["city"] in ("Paris", "Rome")


def test_calls_and_their_results_in_the_conversation(server: Running, llm: LLM) -> None:
    if not llm.template.writes_bos:
        pytest.skip("the Modelfile's template has no place for calls")
    for more in ({"tools": [WEATHER]}, {"tools": [WEATHER], "tool_choice": "none"}, {}):
        found = both(server, llm, CALLED, GREEDY, **more)
        assert found["text"] or found["calls"]


def test_a_call_is_an_object_that_goes_back_into_the_conversation(llm: LLM) -> None:
    question = {"role": "user", "content": "How is the weather in Rome?"}
    (asked,) = llm.chat(
        [question],
        SamplingParams(temperature=0, max_tokens=120),
        tools=[WEATHER],
        tool_choice="required",
        chat_template_kwargs={"enable_thinking": False},
    )
    (call,) = asked.tool_calls
    assert isinstance(call, ToolCall) and call.id and call.parsed_arguments == json.loads(call.arguments)
    if not llm.template.writes_bos:
        return  # the Modelfile's template has no place for calls
    called = {"role": "assistant", "content": asked.text, "tool_calls": asked.tool_calls}
    result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny"}
    (answer,) = llm.chat([question, called, result], SamplingParams(temperature=0, max_tokens=8), tools=[WEATHER])
    assert answer.prompt is not None and "Sunny" in answer.prompt and "get_weather" in answer.prompt
