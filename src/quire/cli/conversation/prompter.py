"""The chat's input line: editing, history, Tab completion, and a pasted block as one message.

Imported only for a chat on a terminal: prompt_toolkit takes 0.15 s to import.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.shortcuts import CompleteStyle

from quire.cli.conversation.message_input import CONTINUATION

MAX_HISTORY = 1000
ENTRY = "\n# "  # FileHistory starts each entry with this

# Takes the text before the cursor; returns the candidates, and how many characters of each are already typed.
Complete = Callable[[str], tuple[Iterable[str], int]]


class Prompter:
    """Reads lines from the terminal. A pasted block is returned as one text with newlines."""

    def __init__(self, history: Path, complete: Complete) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=_History(history),
            completer=_Completer(complete),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            prompt_continuation=CONTINUATION,
            reserve_space_for_menu=0,
        )

    def read(self, prompt: str) -> str:
        """Return the next line. EOFError: Ctrl-D. KeyboardInterrupt: Ctrl-C."""
        try:
            return self._session.prompt(prompt)
        finally:
            # Text pasted while the answer streams is read by the next prompt: it must be bracketed as pasted too.
            self._set_bracketed_paste(True)

    def close(self) -> None:
        """Restore the terminal."""
        self._set_bracketed_paste(False)

    def _set_bracketed_paste(self, is_on: bool) -> None:
        output = self._session.output
        (output.enable_bracketed_paste if is_on else output.disable_bracketed_paste)()
        output.flush()


class _History(FileHistory):
    """Lines of earlier chats, in a file. I/O errors are ignored: a chat works without history."""

    def __init__(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDONLY, 0o600))  # readable by the user alone
            _drop_oldest(path)
        super().__init__(str(path))

    def load_history_strings(self) -> Iterable[str]:
        with contextlib.suppress(OSError):
            return list(super().load_history_strings())
        return []

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):
            super().store_string(string)


def _drop_oldest(path: Path) -> None:
    entries = path.read_text(encoding="utf-8", errors="replace").split(ENTRY)
    if len(entries) > MAX_HISTORY:
        path.write_text(ENTRY + ENTRY.join(entries[-(MAX_HISTORY // 2) :]), encoding="utf-8")


class _Completer(Completer):
    def __init__(self, complete: Complete) -> None:
        self._complete = complete

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        words, num_typed = self._complete(document.text_before_cursor)
        for word in words:
            yield Completion(word, start_position=-num_typed)
