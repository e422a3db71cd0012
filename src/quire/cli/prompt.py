"""The prompt of a chat: editing, history, completion with Tab, and a pasted block as one message.

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

from quire.cli.lines import MORE

MAX_HISTORY = 1000
ENTRY = "\n# "  # how FileHistory begins an entry

# For the text before the cursor: the words that may stand there, and how many characters of each are typed already.
Complete = Callable[[str], tuple[Iterable[str], int]]


class Prompter:
    """Reads lines from the terminal. A pasted block comes as one text with newlines in it."""

    def __init__(self, history: Path, complete: Complete) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=_History(history),
            completer=_Completer(complete),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            prompt_continuation=MORE,
            reserve_space_for_menu=0,
        )

    def read(self, prompt: str) -> str:
        """The next line. EOFError: Ctrl-D. KeyboardInterrupt: Ctrl-C."""
        try:
            return self._session.prompt(prompt)
        finally:
            # What is pasted while the answer streams is read by the next prompt: it has to be marked as pasted, too.
            self._set_paste_marks(True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._set_paste_marks(False)

    def _set_paste_marks(self, are_on: bool) -> None:
        output = self._session.output
        (output.enable_bracketed_paste if are_on else output.disable_bracketed_paste)()
        output.flush()


class _History(FileHistory):
    """Lines of earlier chats. A history that cannot be kept is no reason not to chat."""

    def __init__(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDONLY, 0o600))  # what users ask is theirs alone
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
        path.write_text(ENTRY + ENTRY.join(entries[-MAX_HISTORY // 2 :]), encoding="utf-8")


class _Completer(Completer):
    def __init__(self, complete: Complete) -> None:
        self._complete = complete

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        words, num_typed = self._complete(document.text_before_cursor)
        for word in words:
            yield Completion(word, start_position=-num_typed)
