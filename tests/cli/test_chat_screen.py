"""A chat as a user sees it: on a terminal that moves its cursor, marks pasted text and has a right margin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.conftest import Quire, install_default
from tests.cli.terminal import EmulatedTerminal, at_prompt, emulated_terminal

pytestmark = pytest.mark.pure

COLUMNS = 40
PASTE, END_OF_PASTE = "\x1b[200~", "\x1b[201~"


@pytest.fixture
def chat(quire: Quire) -> Iterator[EmulatedTerminal]:
    install_default(quire)
    with emulated_terminal(quire.command("run", quire.model), quire.environment, COLUMNS) as terminal:
        terminal.see(at_prompt)
        yield terminal


def asked(quire: Quire) -> list[str]:
    return [each["prompt"][-1]["content"] for each in quire.told("stream")]


def test_a_pasted_block_is_one_message(chat, quire):
    block = "\n".join(f"line {number}" for number in range(40))
    chat.type(PASTE + block.replace("\n", "\r") + END_OF_PASTE)
    chat.see("line 39")
    assert asked(quire) == [], "it is sent when the user sends it"
    chat.type(" and the rest\r")
    chat.see(lambda seen: at_prompt(seen) and "You said:" in seen)
    assert asked(quire) == [block + " and the rest"]


def test_a_block_that_begins_with_a_slash_is_no_command(chat, quire):
    chat.type(f"{PASTE}/usr/bin\r/usr/lib{END_OF_PASTE}\r")
    chat.see(lambda seen: at_prompt(seen) and "You said:" in seen)
    assert asked(quire) == ["/usr/bin\n/usr/lib"]


def test_keys_typed_during_an_answer_become_the_next_message(chat, quire):
    chat.type("pause here\r")
    chat.see("You said:")
    chat.type("typed early")
    quire.go_on()
    seen = chat.see(lambda display: display.endswith("typed early"))
    assert "You said: pause here\n>>> typed early" in seen, "nothing was echoed into the answer"
    chat.type("\r")
    chat.see("You said: typed early")
    assert asked(quire) == ["pause here", "typed early"]


def test_a_block_pasted_during_an_answer_is_one_message_too(chat, quire):
    chat.type("pause\r")
    chat.see("You said:")
    chat.type(f"{PASTE}one\rtwo\rthree{END_OF_PASTE}")
    quire.go_on()
    chat.see(lambda seen: seen.endswith("three"))
    chat.type("\r")
    chat.see(lambda seen: at_prompt(seen) and seen.count("You said:") == 2)
    assert asked(quire) == ["pause", "one\ntwo\nthree"]


def test_answers_are_wrapped_at_words(chat, quire):
    words = "Lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore"
    chat.type(f"{PASTE}{words}{END_OF_PASTE}\r")
    seen = chat.see(lambda seen: at_prompt(seen) and "labore" in seen.partition("You said:")[2])
    answer = seen[seen.index("You said:") :].removesuffix("\n>>>").splitlines()
    assert len(answer) == 3 and max(map(len, answer)) < COLUMNS
    assert " ".join(answer) == f"You said: {words}"


def test_tab_completes_commands_parameters_and_models(chat, quire):
    chat.type("/mo\t")
    chat.see(lambda seen: seen.endswith("/model"))
    chat.type(" sm\t")
    chat.see(lambda seen: seen.endswith("/model smollm2:135m"))
    chat.type("\r")
    chat.see("smollm2:135m answers from now on.")
    assert len(quire.told("open")) == 2 and len(quire.told("closed")) == 1
    chat.type("/set tempe\t")
    chat.see(lambda seen: seen.endswith("/set temperature"))


def test_the_terminal_echoes_again_after_the_chat(quire):
    shell = ["/bin/sh", "-c", f"{' '.join(quire.command('run', quire.model))}; echo left; read line; echo got $line"]
    with emulated_terminal(shell, quire.environment) as terminal:
        terminal.see(at_prompt)
        terminal.type("/bye\r")
        terminal.see("left")
        terminal.type("visible")
        terminal.see(lambda seen: seen.endswith("visible"))
        terminal.type("\r")
        terminal.see("got visible")


def test_keys_typed_during_a_single_answer_are_left_to_the_shell(quire):
    question = f"{' '.join(quire.command('run', quire.model, 'pause'))}; read line; echo got $line"
    with emulated_terminal(["/bin/sh", "-c", question], quire.environment) as terminal:
        terminal.see("You said:")
        terminal.type("typed early\r")
        quire.go_on()
        seen = terminal.see("got typed early")
        assert "You said: pause\n" in seen
