"""A model's preset on disk: files beside its weights, under names that no checkpoint has; and how it begins a talk."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from quire.text.checkpoint_files import GENERATION, read_object
from quire.text.errors import BrokenPreset
from quire.types.message import Message
from quire.types.parameters import known_parameters
from quire.types.preset import Preset

T = TypeVar("T")

# What a stored file is for -> what it is called in a folder that someone opens as a model.
FILES: Mapping[str, str] = MappingProxyType(
    {
        "template": "preset.template",
        "system": "preset.system",
        "params": "preset.params.json",
        "messages": "preset.messages.json",
        "license": "preset.license",
        "adapter": "preset.adapter",
    }
)
LICENCES = "preset*.license"  # from the second on with a number
ROLES = ("system", "user", "assistant")
_OF_AUTHORS = ("temperature", "top_p", "top_k", "min_p", "typical_p")


def read_preset(folder: Path) -> Preset:
    """The preset of the model in this folder; without any of the files, an empty one."""
    if (folder / FILES["adapter"]).exists():
        raise BrokenPreset("The model has a LoRA adapter, which cannot be applied yet: merge it into the weights.")
    texts = {role: _text(folder / name) for role, name in FILES.items() if (folder / name).is_file()}
    licences = sorted(folder.glob(LICENCES), key=lambda path: (len(path.name), path.name))
    return preset_of(texts, tuple(_text(path) for path in licences))


def authors_parameters(folder: Path) -> dict[str, Any]:
    """How the authors of a checkpoint want it sampled: what its generation_config.json says, in the preset's words."""
    said = read_object(folder / GENERATION)
    names = {"repetition_penalty": "repeat_penalty", **{name: name for name in _OF_AUTHORS}}
    found = {names[name]: said[name] for name in names if isinstance(said.get(name), int | float)}
    return known_parameters(found | ({"temperature": 0.0} if said.get("do_sample") is False else {}))


def preset_of(texts: Mapping[str, str], licences: tuple[str, ...] = ()) -> Preset:
    """Out of what the files say, by what they are for."""
    messages = _json(texts.get("messages"), list)
    if not all(isinstance(each, dict) and each.get("role") in ROLES for each in messages):
        raise BrokenPreset("The messages that the model brings are not messages with a role and a content.")
    return Preset(
        template=texts.get("template", ""),
        system=texts.get("system", ""),
        parameters=known_parameters(_json(texts.get("params"), dict)),
        messages=tuple(Message(each["role"], str(each.get("content", ""))) for each in messages),
        licences=licences,
    )


def begun(
    talk: Sequence[T], preset: Preset, role_of: Callable[[T], object], made: Callable[[Message], T]
) -> tuple[T, ...]:
    """A conversation after what the model brings: its system message unless the talk has one, and its examples."""
    num_own = 1 if talk and role_of(talk[0]) == "system" else 0
    system = talk[:num_own] or ([made(Message("system", preset.system))] if preset.system else [])
    return (*system, *map(made, preset.messages), *talk[num_own:])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BrokenPreset(f"{path.name} of the model is not text in UTF-8.") from error


def _json(text: str | None, kind: type) -> Any:
    if text is None:
        return kind()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BrokenPreset(f"What the model brings beside its weights is not JSON: {error}.") from error
    if not isinstance(value, kind):
        raise BrokenPreset("What the model brings beside its weights is JSON of another kind than it should be.")
    return value
