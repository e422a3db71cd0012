"""Reads the chat templates of a checkpoint, by name.

As in `transformers`, template files replace those in `tokenizer_config.json`: `chat_template.jinja` is the default, and
each file of `additional_chat_templates/` is named by its file name. If these have no default, that of the configuration
is used, and last `chat_template.json`, where older models with images have theirs.

A stored model has no subfolders: there `additional_chat_templates/rag.jinja` is `chat_template.rag.jinja`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.text.checkpoint_files import CONFIG, read_object
from quire.text.errors import BrokenTemplate

DEFAULT_FILE, LEGACY_FILE, MORE = "chat_template.jinja", "chat_template.json", "additional_chat_templates"
_FLAT = re.compile(r"chat_template\.([^/]+)\.jinja")


def flat_name(path: str) -> str:
    """The name of a template's file in a stored model; other paths are unchanged."""
    folder, _, name = path.rpartition("/")
    return f"chat_template.{name}" if folder == MORE and name.endswith(".jinja") else path


def name_of_template(path: str) -> str | None:
    """The name of the template in an additional file, by its path in the checkpoint."""
    found = _FLAT.fullmatch(flat_name(path))
    return found[1] if found else None


def template_sources(folder: Path) -> dict[str, str]:
    """The text of each template; empty if the checkpoint has none."""
    found = {"default": _text(folder / DEFAULT_FILE)} if (folder / DEFAULT_FILE).is_file() else {}
    for path in sorted((*folder.glob("chat_template.*.jinja"), *(folder / MORE).glob("*.jinja"))):
        if name := name_of_template(path.relative_to(folder).as_posix()):
            found[name] = _text(path)
    if "default" in found:
        return found
    declared = _declared(read_object(folder / CONFIG), CONFIG)
    if found:
        return {name: text for name, text in declared.items() if name == "default"} | found
    return declared or _declared(read_object(folder / LEGACY_FILE), LEGACY_FILE)


def _declared(config: Mapping[str, Any], source: str) -> dict[str, str]:
    """The field `chat_template`: a text, a list of objects with name and template, or an object of texts."""
    match config.get("chat_template"):
        case None:
            return {}
        case str(text):
            return {"default": text}
        case list(entries) if all(isinstance(each, dict) for each in entries):
            named = {each.get("name"): each.get("template") for each in entries}
        case dict(named):
            pass
        case other:
            raise BrokenTemplate(f"chat_template in {source} is a {type(other).__name__}, neither text nor a list.")
    if not all(isinstance(name, str) and isinstance(text, str) for name, text in named.items()):
        raise BrokenTemplate(f"chat_template in {source} lists templates without a name or a text.")
    return named


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BrokenTemplate(f"{path.name} cannot be read as a chat template: {error}") from error
