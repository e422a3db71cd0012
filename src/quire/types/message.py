"""One turn of a conversation. Separate from chat.py because a model's preset has messages too."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that an assistant made."""

    id: str
    name: str
    arguments: str  # JSON text

    @property
    def parsed_arguments(self) -> dict[str, Any] | None:
        """The arguments as a dictionary; None if they are not a JSON object, as in an answer that was cut off."""
        try:
            value = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    text: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()  # of an assistant
    tool_call_id: str | None = None  # of a tool: which call this answers
    name: str | None = None
    keep: float | None = None  # pin the prompt up to the end of this message for so many seconds
