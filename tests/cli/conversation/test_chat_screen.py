"""A chat on an emulated terminal: cursor movement, pasted text and the right margin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.conftest import Quire, store_default_model
from tests.cli.pseudo_terminal import EmulatedTerminal, at_prompt, emulated_terminal

pytestmark = pytest.mark.pure

COLUMNS = 40
PASTE, END_OF_PASTE = "\x1b[200~", "\x1b[201~"


@pytest.fixture
def chat(quire: Quire) -> Iterator[EmulatedTerminal]:
    store_default_model(quire)
    with emulated_terminal(quire.command("run", quire.model), quire.environment, COLUMNS) as terminal:
        terminal.wait_for_display(at_prompt)
        yield terminal


def sent(quire: Quire) -> list[str]:
    return [each["prompt"][-1]["content"] for each in quire.logged("stream")]


def test_a_pasted_block_is_one_message(chat, quire):
    block = "\n".join(f"line {number}" for number in range(40))
    chat.type(PASTE + block.replace("\n", "\r") + END_OF_PASTE)
    chat.wait_for_display("line 39")
    assert sent(quire) == [], "nothing is sent before Enter"
    chat.type(" and the rest\r")
    chat.wait_for_display(lambda seen: at_prompt(seen) and "You said:" in seen)
    assert sent(quire) == [block + " and the rest"]


def test_a_pasted_block_that_begins_with_a_slash_is_a_message(chat, quire):
    chat.type(f"{PASTE}/usr/bin\r/usr/lib{END_OF_PASTE}\r")
    chat.wait_for_display(lambda seen: at_prompt(seen) and "You said:" in seen)
    assert sent(quire) == ["/usr/bin\n/usr/lib"]


def test_keys_typed_during_an_answer_become_the_next_message(chat, quire):
    chat.type("pause here\r")
    chat.wait_for_display("You said:")
    chat.type("typed early")
    quire.resume_answer()
    seen = chat.wait_for_display(lambda display: display.endswith("typed early"))
    assert "You said: pause here\n>>> typed early" in seen, "nothing was echoed into the answer"
    chat.type("\r")
    chat.wait_for_display("You said: typed early")
    assert sent(quire) == ["pause here", "typed early"]


def test_a_block_pasted_during_an_answer_is_one_message_too(chat, quire):
    chat.type("pause\r")
    chat.wait_for_display("You said:")
    chat.type(f"{PASTE}one\rtwo\rthree{END_OF_PASTE}")
    quire.resume_answer()
    chat.wait_for_display(lambda seen: seen.endswith("three"))
    chat.type("\r")
    chat.wait_for_display(lambda seen: at_prompt(seen) and seen.count("You said:") == 2)
    assert sent(quire) == ["pause", "one\ntwo\nthree"]


def test_answers_are_wrapped_at_words(chat, quire):
    words = "Lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore"
    chat.type(f"{PASTE}{words}{END_OF_PASTE}\r")
    seen = chat.wait_for_display(lambda seen: at_prompt(seen) and "labore" in seen.partition("You said:")[2])
    answer = seen[seen.index("You said:") :].removesuffix("\n>>>").splitlines()
    assert len(answer) == 3 and max(map(len, answer)) < COLUMNS
    assert " ".join(answer) == f"You said: {words}"


def test_tab_completes_commands_parameters_and_models(chat, quire):
    chat.type("/mo\t")
    chat.wait_for_display(lambda seen: seen.endswith("/model"))
    chat.type(" sm\t")
    chat.wait_for_display(lambda seen: seen.endswith("/model smollm2:135m"))
    chat.type("\r")
    chat.wait_for_display("Switched to smollm2:135m.")
    assert len(quire.logged("open")) == 2 and len(quire.logged("closed")) == 1
    chat.type("/set tempe\t")
    chat.wait_for_display(lambda seen: seen.endswith("/set temperature"))


def test_the_terminal_echoes_again_after_the_chat(quire):
    shell = ["/bin/sh", "-c", f"{' '.join(quire.command('run', quire.model))}; echo left; read line; echo got $line"]
    with emulated_terminal(shell, quire.environment) as terminal:
        terminal.wait_for_display(at_prompt)
        terminal.type("/bye\r")
        terminal.wait_for_display("left")
        terminal.type("visible")
        terminal.wait_for_display(lambda seen: seen.endswith("visible"))
        terminal.type("\r")
        terminal.wait_for_display("got visible")


def test_keys_typed_during_a_single_answer_go_to_the_shell(quire):
    question = f"{' '.join(quire.command('run', quire.model, 'pause'))}; read line; echo got $line"
    with emulated_terminal(["/bin/sh", "-c", question], quire.environment) as terminal:
        terminal.wait_for_display("You said:")
        terminal.type("typed early\r")
        quire.resume_answer()
        seen = terminal.wait_for_display("got typed early")
        assert "You said: pause\n" in seen
