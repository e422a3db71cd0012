"""A model's preset on disk: files beside its weights, under names that no checkpoint uses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from quire.config import Config
from quire.text.errors import BrokenPreset
from quire.types.message import Message
from quire.types.parameters import known_parameters
from quire.types.preset import Preset

# Role of a stored file -> its name in the folder of a model.
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
LICENCES = "preset*.license"  # numbered from the second on
ROLES = ("system", "user", "assistant")
MIN_CONTEXT = 2  # tokens: a num_ctx below it sets no limit


def read_preset(folder: Path) -> Preset:
    """The preset of the model in this folder; without any of the files, an empty one."""
    if (folder / FILES["adapter"]).exists():
        raise BrokenPreset("The model has a LoRA adapter, which cannot be applied yet: merge it into the weights.")
    texts = {role: _text(folder / name) for role, name in FILES.items() if (folder / name).is_file()}
    licences = sorted(folder.glob(LICENCES), key=lambda path: (len(path.name), path.name))
    return preset_of(texts, tuple(_text(path) for path in licences))


def preset_beside(path: Path) -> Preset:
    """The preset of a model that is a file or a folder."""
    return read_preset(path if path.is_dir() else path.parent)


def preset_of(texts: Mapping[str, str], licences: tuple[str, ...] = ()) -> Preset:
    """Make a preset from the texts of its files, by role."""
    messages = _json(texts.get("messages"), list)
    if not all(isinstance(each, dict) and each.get("role") in ROLES for each in messages):
        raise BrokenPreset("The preset messages of the model must have a role and a content.")
    return Preset(
        template=texts.get("template", ""),
        system=texts.get("system", ""),
        parameters=known_parameters(_json(texts.get("params"), dict)),
        messages=tuple(Message(each["role"], str(each.get("content", ""))) for each in messages),
        licences=licences,
    )


def with_model_settings(config: Config, preset: Preset) -> Config:
    """Use the Modelfile's num_ctx as the context, unless max_context is set, and its pooling, which is this model's."""
    if pooling := preset.parameters.get("pooling"):
        config = replace(config, embedding=replace(config.embedding, pooling=pooling))
    num_ctx = preset.parameters.get("num_ctx", 0)
    if config.scheduler.context_is_set or num_ctx < MIN_CONTEXT:
        return config
    return replace(config, scheduler=replace(config.scheduler, max_context=num_ctx))


def with_preset_messages(messages: Sequence[Message], preset: Preset) -> tuple[Message, ...]:
    """Add what the preset begins conversations with: its system message, unless they have one, and its examples."""
    num_own = 1 if messages and messages[0].role == "system" else 0
    system = messages[:num_own] or ([Message("system", preset.system)] if preset.system else [])
    return (*system, *preset.messages, *messages[num_own:])


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
        raise BrokenPreset(f"A preset file of the model is not JSON: {error}.") from error
    if not isinstance(value, kind):
        raise BrokenPreset(f"A preset file of the model must hold a JSON {'list' if kind is list else 'object'}.")
    return value
