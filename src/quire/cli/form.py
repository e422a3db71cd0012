"""What `quire run` can ask of an answer besides its tokens: a format, and thinking."""

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
SWITCHED = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}

Think = bool | str | None  # None: as the model's template has it; a text is a level


@dataclass(frozen=True, slots=True)
class Form:
    """Sent with every message of a chat."""

    constraint: Constraint | None = None
    think: Think = None

    @property
    def template_variables(self) -> dict[str, Any]:
        """Variables that switch thinking in chat templates. Templates differ in the name they read."""
        if self.think is None:
            return {}
        level = {"reasoning_effort": self.think} if isinstance(self.think, str) else {}
        return {"enable_thinking": bool(self.think), "thinking": bool(self.think), **level}


def constraint_of(text: str) -> Constraint | None:
    """`json`, a JSON schema, or the path of a file with one. Empty: no format."""
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
            takes = "write json, a JSON schema, or the path of a file with a schema"
            raise InvalidRequest(f"--format {text}: no such format, and no such file ({reason}): {takes}.") from None
    try:
        schema = json.loads(source)
    except ValueError as error:
        raise InvalidRequest(f"{where} is not JSON: {error}.", field="format") from None
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{where} holds {type(schema).__name__}; a JSON schema is an object.", field="format")
    return schema


def think_of(text: str) -> Think:
    """`true`, `false` or a level. Empty: as the template has it."""
    said = text.lower()
    if not said or said in LEVELS:
        return said or None
    if said not in SWITCHED:
        raise InvalidRequest(f"--think {text}: write --think, --no-think, or --think {'|'.join(LEVELS)}.", "think")
    return SWITCHED[said]


def check_think(think: Think, sources: Mapping[str, str]) -> None:
    """Refuse what the model's chat template would ignore."""
    if think is None:
        return
    source = sources.get("default", "")
    # By name, here: an answer that is not told to think needs none of it.
    has_switch, has_level = import_module("quire.text.thinking").thinking_switches(source)
    always = import_module("quire.text.parsers.reasoning").reasoning_of([source]) is not None
    if isinstance(think, str) and not has_level:
        other = "use --think or --no-think" if has_switch else "leave it out"
        raise InvalidRequest(
            f"This model's chat template takes no level of thinking, so not {think}: {other}.", "think"
        )
    if think is True and not (has_switch or has_level or always):
        raise InvalidRequest("This model does not think: its chat template has no place for thoughts.", "think")
    if think is False and not has_switch and (has_level or always):
        other = "use --think low" if has_level else "choose another model"
        raise InvalidRequest(f"This model always thinks: its chat template has no switch for it. {other}.", "think")
