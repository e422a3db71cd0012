"""A chat on a terminal: messages go to the model, lines that begin with a slash to `slash`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire.cli.answer import Display, print_figures, stream_answer
from quire.cli.engine import Messages
from quire.cli.form import Form
from quire.cli.lines import read_message
from quire.cli.opened import OpenedModel, Opener, check_form, full_name
from quire.types.errors import InvalidRequest, QuireError

ROLES = ("system", "user", "assistant")


@dataclass(slots=True)
class Chat:
    """One conversation. Its owner is the loop below and the commands that it calls."""

    opened: OpenedModel
    opener: Opener
    form: Form = field(default_factory=Form)
    system: str = ""
    verbose: bool = False
    display: Display = field(default_factory=Display)
    messages: Messages = field(default_factory=list)

    def prompt(self, text: str) -> str | Messages:
        """What the model gets for a new message."""
        if self.opened.raw:
            return text
        head = [{"role": "system", "content": self.system}] if self.system else []
        return [*head, *self.messages, {"role": "user", "content": text}]

    def answer(self, text: str) -> bool:
        """Send a message and print the answer. False: it was stopped."""
        opened = self.opened
        answer = stream_answer(
            lambda: opened.engine.stream(self.prompt(text), opened.sampling, self.form), self.display
        )
        # A stopped answer stays in the conversation as far as it came: the user saw it.
        self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer.text}]
        if self.verbose:
            print_figures(answer.usage)
        return not answer.stopped

    def change_form(self, form: Form) -> None:
        """Use another format or way of thinking from now on, if the model can."""
        check_form(form, self.opened)
        self.form = form

    def change_model(self, name: str) -> None:
        """Go on with another model. If it cannot be opened, the present one stays."""
        present, new = self.opened.located, self.opener.locate(full_name(name))
        self.opened.engine.close()  # first: two models may not fit into memory
        try:
            self.opened = self.opener.open(new, self.form)
        except BaseException:
            self.opened = self.opener.open(present, self.form)
            raise

    def save(self, path: Path) -> None:
        """Write the conversation as JSON."""
        content = {"model": self.opened.name, "system": self.system, "messages": self.messages}
        try:
            path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be written: {error.strerror}.") from error

    def load(self, path: Path) -> None:
        """Go on with a conversation that was saved. It changes all or nothing."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise InvalidRequest(f"{path} is not JSON: {error}.") from error
        if not _is_conversation(content):
            raise InvalidRequest(f"{path} holds no conversation that /save wrote.")
        self.system, self.messages = content.get("system", ""), content["messages"]


def _is_conversation(content: Any) -> bool:
    if not isinstance(content, dict) or not isinstance(content.get("system", ""), str):
        return False
    messages = content.get("messages")
    return isinstance(messages, list) and all(
        isinstance(each, dict) and each.get("role") in ROLES and isinstance(each.get("content"), str)
        for each in messages
    )


def talk(chat: Chat, commands: Callable[[Chat, str], bool], read: Callable[[str], str]) -> None:
    """Answer what `read` returns until the user leaves. `commands(chat, line)` runs a slash command; True: leave."""
    print(f"{chat.opened.name}. Write a message; /help for commands, Ctrl-D to leave.", file=sys.stderr)
    while True:
        try:
            text = read_message(read)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print("\nCtrl-D or /bye leaves.", file=sys.stderr)
            continue
        if not text.strip():
            continue
        try:
            if text.startswith("/") and "\n" not in text:
                if commands(chat, text):
                    return
            elif not chat.answer(text):
                print("(stopped)", file=sys.stderr)
        except KeyboardInterrupt:
            print("\n(stopped)", file=sys.stderr)
        except QuireError as error:
            print(f"error: {error.public}", file=sys.stderr)
