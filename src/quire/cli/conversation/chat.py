"""A chat on a terminal: messages go to the model, lines that begin with a slash to `slash_commands`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire.cli.conversation.answer_printer import DisplayOptions, print_answer, print_timings
from quire.cli.conversation.message_input import read_message
from quire.cli.model.answer_options import AnswerOptions
from quire.cli.model.chat_model import Messages
from quire.cli.model.loader import ModelLoader, ModelSession, check_options, full_name
from quire.types.errors import InvalidRequest, QuireError

ROLES = ("system", "user", "assistant")


@dataclass(slots=True)
class ChatSession:
    """One conversation: its messages, its model and how answers are made. Slash commands change it."""

    loaded: ModelSession
    loader: ModelLoader
    options: AnswerOptions = field(default_factory=AnswerOptions)
    system: str = ""
    verbose: bool = False
    display: DisplayOptions = field(default_factory=DisplayOptions)
    messages: Messages = field(default_factory=list)

    def prompt(self, text: str) -> str | Messages:
        """Return what is sent to the model for a new message."""
        if self.loaded.raw:
            return text
        head = [{"role": "system", "content": self.system}] if self.system else []
        return [*head, *self.messages, {"role": "user", "content": text}]

    def answer(self, text: str) -> bool:
        """Send a message and print the answer. False: the user stopped it."""
        loaded = self.loaded
        answer = print_answer(
            lambda: loaded.model.stream(self.prompt(text), loaded.sampling, self.options), self.display
        )
        # A stopped answer stays in the conversation: the user has seen that much of it.
        self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer.text}]
        if self.verbose:
            print_timings(answer.usage)
        return not answer.is_stopped

    def change_options(self, options: AnswerOptions) -> None:
        """Use another format or thinking mode for the next answers. Raise if the model does not support it."""
        check_options(options, self.loaded)
        self.options = options

    def change_model(self, name: str) -> None:
        """Continue with another model. If it cannot be loaded, keep the current one."""
        current, new = self.loaded.file, self.loader.fetch(full_name(name))
        self.loaded.model.close()  # before loading: two models may not fit in memory
        try:
            self.loaded = self.loader.load(new, self.options)
        except BaseException:
            self.loaded = self.loader.load(current, self.options)
            raise

    def save(self, path: Path) -> None:
        """Write the conversation to a JSON file."""
        content = {"model": self.loaded.name, "system": self.system, "messages": self.messages}
        try:
            path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise InvalidRequest(f"Cannot write {path}: {error.strerror}.") from error

    def restore(self, path: Path) -> None:
        """Continue a saved conversation. On an error nothing changes."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidRequest(f"Cannot read {path}: {error.strerror}.") from error
        except ValueError as error:
            raise InvalidRequest(f"{path} is not JSON: {error}.") from error
        if not _is_conversation(content):
            raise InvalidRequest(f"{path} is not a conversation saved by /save.")
        self.system, self.messages = content.get("system", ""), content["messages"]


def _is_conversation(content: Any) -> bool:
    if not isinstance(content, dict) or not isinstance(content.get("system", ""), str):
        return False
    messages = content.get("messages")
    return isinstance(messages, list) and all(
        isinstance(each, dict) and each.get("role") in ROLES and isinstance(each.get("content"), str)
        for each in messages
    )


def run_chat(chat: ChatSession, run_command: Callable[[ChatSession, str], bool], read: Callable[[str], str]) -> None:
    """Answer the messages of `read` until the user leaves. `run_command` runs a slash command; True: leave."""
    print(f"{chat.loaded.name}. Type a message. /help lists commands, Ctrl-D exits.", file=sys.stderr)
    while True:
        try:
            text = read_message(read)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print("\nUse Ctrl-D or /bye to exit.", file=sys.stderr)
            continue
        if not text.strip():
            continue
        try:
            if text.startswith("/") and "\n" not in text:
                if run_command(chat, text):
                    return
            elif not chat.answer(text):
                print("(stopped)", file=sys.stderr)
        except KeyboardInterrupt:
            print("\n(stopped)", file=sys.stderr)
        except QuireError as error:
            print(f"error: {error.public}", file=sys.stderr)
