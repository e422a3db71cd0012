"""What `quire run` can require of an answer beside sampling: a format, and thinking."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from quire.types.errors import InvalidRequest
from quire.types.request import Constraint, ConstraintKind

LEVELS = ("low", "medium", "high")
THINK_VALUES = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
FORMATS = "json, a JSON schema, or the path of a file with a JSON schema"

Think = bool | str | None  # None: the template's default; a string is one of LEVELS


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """Format and thinking of every answer of a chat."""

    constraint: Constraint | None = None
    think: Think = None

    @property
    def template_variables(self) -> dict[str, Any]:
        """Variables that switch thinking in chat templates. Templates use different names for the switch."""
        if self.think is None:
            return {}
        level = {"reasoning_effort": self.think} if isinstance(self.think, str) else {}
        return {"enable_thinking": bool(self.think), "thinking": bool(self.think), **level}


def parse_format(text: str) -> Constraint | None:
    """Parse the value of --format: `json`, a JSON schema, or the path of a file with one. Empty: no format."""
    if not text:
        return None
    if text == "json":
        return Constraint(ConstraintKind.JSON)
    return Constraint(ConstraintKind.SCHEMA, json.dumps(_schema(text)))


def _schema(text: str) -> Any:
    source, where = text, "--format"
    if not text.lstrip().startswith("{"):
        path = Path(text).expanduser()
        try:
            source, where = path.read_text(encoding="utf-8"), text
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InvalidRequest(
                f"--format {text}: not a format, and not a readable file ({reason}). Use {FORMATS}."
            ) from None
    try:
        schema = json.loads(source)
    except ValueError as error:
        raise InvalidRequest(f"{where} is not JSON: {error}.", field="format") from None
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{where} is a JSON {type(schema).__name__}; a JSON schema is an object.", field="format")
    return schema


def parse_think(text: str) -> Think:
    """Parse the value of --think: `true`, `false` or a level. Empty: the template's default."""
    value = text.lower()
    if not value or value in LEVELS:
        return value or None
    if value not in THINK_VALUES:
        raise InvalidRequest(f"--think {text}: use --think, --no-think, or --think {'|'.join(LEVELS)}.", "think")
    return THINK_VALUES[value]


def check_think(think: Think, sources: Mapping[str, str]) -> None:
    """Raise if the model's chat template would ignore `think`."""
    if think is None:
        return
    source = sources.get("default", "")
    # Imported here: without --think none of it is needed.
    has_switch, has_level = import_module("quire.text.thinking").thinking_switches(source)
    always = import_module("quire.text.parsers.reasoning").reasoning_of([source]) is not None
    if isinstance(think, str) and not has_level:
        other = "Use --think or --no-think" if has_switch else "Remove --think"
        raise InvalidRequest(
            f"This model's chat template has no thinking levels, so --think {think} has no effect. {other}.", "think"
        )
    if think is True and not (has_switch or has_level or always):
        raise InvalidRequest("This model does not think: its chat template has no reasoning. Remove --think.", "think")
    if think is False and not has_switch and (has_level or always):
        other = "Use --think low" if has_level else "Choose another model"
        raise InvalidRequest(
            f"This model always thinks: its chat template has no switch to turn it off. {other}.", "think"
        )
