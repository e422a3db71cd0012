"""A chat on a pseudo-terminal, with a stand-in for the engine."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from quire.cli.conversation.message_input import read_message
from quire.cli.model.sampling_parameters import NAMES, with_value
from quire.types.errors import InvalidRequest
from quire.types.request import SamplingParams
from tests.cli.conftest import Quire, store_default_model
from tests.cli.pseudo_terminal import Terminal, at_prompt, emulated_terminal, on_terminal

pytestmark = pytest.mark.pure


@pytest.fixture
def chat(quire: Quire) -> Iterator[Terminal]:
    with on_terminal(quire.command("run", quire.model), quire.environment) as terminal:
        terminal.wait_for(">>> ")
        yield terminal


def test_the_conversation_is_sent_until_it_is_cleared(chat, quire):
    assert "You said: hello" in chat.say("hello")
    chat.say("and more")
    words = [each["content"].strip() for each in quire.logged("stream")[-1]["prompt"]]
    assert words == ["hello", "You said: hello", "and more"]
    assert "Conversation cleared." in chat.say("/clear")
    chat.say("anew")
    assert [each["content"] for each in quire.logged("stream")[-1]["prompt"]] == ["anew"]


def test_ctrl_c_stops_the_answer_and_not_the_program(chat, quire):
    chat.type("forever\r")
    chat.wait_for("and on and on")
    chat.type("\x03")
    assert "(stopped)" in chat.wait_for(">>> ")
    assert len(quire.logged("closed stream")) == 1
    assert "You said: still here" in chat.say("still here")
    words = [each["content"] for each in quire.logged("stream")[-1]["prompt"]]
    assert words[1].startswith("You said: and on and on"), "the printed part of a stopped answer is kept"


def test_ctrl_c_at_the_prompt_prints_how_to_exit(chat):
    chat.type("half a line")
    chat.wait_for("half a line")
    chat.type("\x03")
    assert "Use Ctrl-D or /bye to exit." in chat.wait_for(">>> ")
    assert "You said: hi" in chat.say("hi")


@pytest.mark.parametrize("way", ["\x04", "/bye\r", "/exit\r"])
def test_the_chat_exits(chat, quire, way):
    chat.type(way)
    assert chat.wait_for_exit() == 0
    assert quire.logged("closed")


def test_parameters_and_the_system_message_are_set_and_shown(chat, quire):
    chat.say("/set temperature 0.5")
    chat.say("/set parameter top_k 7")
    chat.say("/set stop END FIN")
    chat.say('/set system "Be brief."')
    output = chat.say("/show")
    for text in ("toy.gguf", "temperature 0.5", "top_k 7", "top_p 0.95", "Be brief."):
        assert text in output
    chat.say("hi")
    (call,) = quire.logged("stream")
    assert call["prompt"][0] == {"role": "system", "content": "Be brief."}
    assert {"temperature": 0.5, "top_k": 7, "stop": ["END", "FIN"]}.items() <= call["sampling"].items()


def test_the_format_is_set_and_turned_off(chat, quire):
    chat.say("/set format json")
    assert "format      json" in chat.say("/show")
    chat.say("hi")
    chat.say("/set noformat")
    chat.say("hi")
    assert [each["constraint"] and each["constraint"]["kind"] for each in quire.logged("stream")] == [
        "json_object",
        None,
    ]
    assert "error: This model does not think" in chat.say("/set think")
    assert "error: --format yaml: not a format" in chat.say("/set format yaml")


def test_the_current_model_is_kept_if_the_new_one_does_not_exist(chat, quire):
    assert "error: There is no file or folder gone.gguf" in chat.say("/model gone.gguf")
    assert "error: /model needs a name: /model NAME." in chat.say("/model")
    assert "You said: hi" in chat.say("hi")
    assert len(quire.logged("open")) == 1


def test_an_error_is_one_line_and_the_chat_continues(chat):
    assert "error: top_p is 7.0; it must be above 0 and at most 1." in chat.say("/set top_p 7")
    assert "error: There is no parameter 'heat'. Choose from" in chat.say("/set heat 7")
    assert "error: top_k is 'x'; it must be a whole number." in chat.say("/set top_k x")
    assert "error: There is no command /dance" in chat.say("/dance")
    assert "error: /save needs a file: /save FILE." in chat.say("/save")
    assert "error: The engine failed" in chat.say("fail")
    assert "You said: hi" in chat.say("hi")


def test_a_conversation_is_saved_and_loaded(chat, quire, tmp_path):
    chat.say("/set system Be kind.")
    chat.say("hello")
    file = tmp_path / "talk.json"
    assert "2 messages saved" in chat.say(f"/save {file}")
    assert [each["role"] for each in json.loads(file.read_text())["messages"]] == ["user", "assistant"]
    chat.say("/clear")
    assert "2 messages loaded" in chat.say(f"/load {file}")
    chat.say("again")
    assert [each["role"] for each in quire.logged("stream")[-1]["prompt"]] == ["system", "user", "assistant", "user"]
    file.write_text('{"messages": [{"role": "wizard", "content": "x"}]}')
    assert "is not a conversation saved by /save" in chat.say(f"/load {file}")
    assert f"Cannot read {tmp_path / 'nothing'}: No such file" in chat.say(f"/load {tmp_path / 'nothing'}")
    assert f"Cannot write {tmp_path}" in chat.say(f"/save {tmp_path}")


def test_messages_of_several_lines(chat, quire):
    chat.type('"""one\r')
    chat.wait_for("... ")
    chat.type('two"""\r')
    chat.wait_for(">>> ")
    chat.type("three \\\r")
    chat.wait_for("... ")
    chat.say("four")
    assert [each["prompt"][-1]["content"] for each in quire.logged("stream")] == ["one\ntwo", "three \nfour"]


def test_help_and_verbose_timings(chat):
    assert "/load FILE" in chat.say("/help")
    chat.say("/set verbose on")
    assert "tokens per second:   5.0" in chat.say("hi")
    chat.say("/set verbose off")
    assert "tokens per second" not in chat.say("hi")


def test_history_is_kept_between_chats(quire):
    for _ in range(2):
        with on_terminal(quire.command("run", quire.model), quire.environment) as terminal:
            terminal.wait_for(">>> ")
            terminal.say("remember me")
            terminal.type("/bye\r")
            assert terminal.wait_for_exit() == 0
    history = (quire.folder / "home" / "history").read_text()
    assert history.count("remember me") == 2
    with emulated_terminal(quire.command("run", quire.model), quire.environment) as terminal:
        terminal.wait_for_display(at_prompt)
        terminal.type("\x10\x10\r")  # Ctrl-P twice: two lines back in the history
        terminal.wait_for_display("You said: remember me")


def test_the_module_starts_a_chat_with_the_default_model_on_a_terminal(quire):
    store_default_model(quire)
    with on_terminal(quire.command("-m"), quire.environment) as terminal:
        assert "smollm2:135m. Type a message" in terminal.wait_for(">>> ")
        assert "You said: hi" in terminal.say("hi")


@pytest.mark.parametrize(
    "typed, message",
    [
        (["hi"], "hi"),
        (["a\\", "b\\", "c"], "a\nb\nc"),
        (["a\\"], "a"),
        (['"""a', "", 'b"""'], "a\n\nb"),
        (['"""a"""'], "a"),
        (['"""', "a", '"""'], "a"),
        (['"""a'], "a"),
        (["  hi  "], "  hi"),
    ],
)
def test_read_message_joins_lines(typed, message):
    lines = iter(typed)

    def read(prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    assert read_message(read) == message


def test_every_parameter_of_a_chat_can_be_set():
    values = {"ignore_eos": "on", "stop": "END", "seed": "3", "max_tokens": "9", "speculate": "off"}
    for name in NAMES:
        changed = with_value(SamplingParams(max_tokens=5), name, values.get(name, "1"))
        assert isinstance(changed, SamplingParams)
    assert with_value(SamplingParams(seed=4), "seed", "none").seed is None
    with pytest.raises(InvalidRequest, match="it must be a number"):
        with_value(SamplingParams(), "temperature", "hot")
