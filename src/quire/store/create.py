"""A model out of another one: its files, and over what it brings (template, parameters, …) what a preset says.

What is not said stays as the base has it. Parameters are added to the base's one by one, licences after the base's;
messages, template and system prompt take the place of the base's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from quire.text.go_chat import check_template
from quire.text.go_template.errors import GoSyntaxError
from quire.text.preset import FILES, preset_of
from quire.text.template_files import flat_name
from quire.types.errors import InvalidRequest
from quire.types.message import Message
from quire.types.preset import Preset

from .manifest import Manifest, StoredFile
from .modelfile import Modelfile
from .names import is_path, parse_name
from .parts import GGUF, SAFETENSORS, Part, parts_of, side_role
from .source import Offer, Progress, silent
from .store import Store

MAGIC = b"GGUF"
INHERITED = ("format", "quantization", "num_parameters", "sampling")


class AdapterNotSupported(InvalidRequest):
    """A Modelfile has an ADAPTER, and the engine applies none."""

    code = "adapter_not_supported"

    def __init__(self) -> None:
        super().__init__(
            "ADAPTER: LoRA adapters cannot be applied yet. Merge the adapter into the weights first, and make the "
            "model FROM those.",
            field="adapters",
        )


Check = Callable[[Path], None]  # raises if the model at this path cannot be run


def no_check(path: Path) -> None:
    """Whatever it is."""


@dataclass(frozen=True, slots=True)
class Base:
    """What a model is made from."""

    parts: tuple[Part | StoredFile, ...]  # weights and what belongs to them
    preset: Preset
    about: Offer


def create(
    store: Store, name: str, file: Modelfile, folder: Path, progress: Progress = silent, check: Check = no_check
) -> Manifest:
    """The model that a Modelfile describes. Paths in it are meant from `folder` on."""
    if file.adapters:
        raise AdapterNotSupported
    preset = preset_of_file(file)
    check_preset(preset)
    if is_path(file.base):
        return make(store, name, _base_at(folder / Path(file.base).expanduser()), preset, progress, check)
    return make(store, name, base_of_name(store, file.base, progress), preset, progress, check)


def preset_of_file(file: Modelfile) -> Preset:
    """What a Modelfile says beside FROM."""
    messages = tuple(Message(role, content) for role, content in file.messages)  # type: ignore[arg-type]
    return Preset(file.template, file.system, file.parameters, messages, file.licences)


def make(
    store: Store, name: str, base: Base, preset: Preset, progress: Progress = silent, check: Check = no_check
) -> Manifest:
    """A model of this base with this preset over the base's own. `check` raises if the base cannot be run."""
    check_preset(preset)
    store.try_out(base.parts, check)
    return store.create(name, (*base.parts, *_parts(_over(base.preset, preset))), base.about, progress)


def base_of_name(store: Store, text: str, progress: Progress = silent) -> Base:
    """A model of the store, fetched first if it is not there."""
    name = parse_name(text)
    if store.find(str(name)) is None:
        store.pull(str(name), progress)
    manifest = store.show(str(name))
    if manifest.of_role("adapter"):
        raise AdapterNotSupported
    known = {field: getattr(manifest, field) for field in INHERITED}
    about = Offer(f"made from {manifest.name}:{manifest.tag}", licence=manifest.licence, **known)
    files = tuple(file for file in manifest.files if file.role not in FILES)
    return Base(files, preset_of_model(store, manifest), about)


def base_of_blobs(store: Store, files: Mapping[str, str]) -> Base:
    """Blobs that are in the store, under the names that their sender gives them."""
    parts = []
    for name, digest in files.items():
        blob = store.find_blob(digest)
        if blob is None:
            raise InvalidRequest(f"files: There is no blob sha256:{digest[:64]}: send it first.", field="files")
        plain = PurePosixPath(flat_name("/".join(PurePosixPath(name).parts[-2:]))).name
        role = side_role(plain) or "weights"
        if role == "weights" and not plain.lower().endswith((GGUF, SAFETENSORS, ".json")):
            raise InvalidRequest(f"files: {plain[:64]!r} is no file of a GGUF or safetensors model.", field="files")
        if plain.lower().endswith(GGUF):
            _check_gguf(plain, store.layout.blob(digest))
        parts.append(replace(blob, role=role, file_name=plain))
    return Base(tuple(parts), Preset(), Offer("made of files that were sent"))


def _base_at(path: Path) -> Base:
    parts = parts_of(path)
    for part in parts:
        if isinstance(part.content, Path) and part.file_name.lower().endswith(GGUF):
            _check_gguf(part.file_name, part.content)
    return Base(parts, Preset(), Offer(f"made from {path.name}"))


def preset_of_model(store: Store, manifest: Manifest) -> Preset:
    """What a stored model brings beside its weights."""
    texts = {
        role: store.read(file).decode(errors="replace")
        for role in FILES
        for file in manifest.of_role(role)[:1]
        if role not in ("license", "adapter")
    }
    licences = tuple(store.read(file).decode(errors="replace") for file in manifest.of_role("license"))
    return preset_of(texts, licences)


def modelfile_of(store: Store, text: str, shows_path: bool = True) -> str:
    """A Modelfile that makes this model again: from where its weights lie, or else from itself."""
    manifest = store.show(text)
    preset = preset_of_model(store, manifest)
    name = f"{manifest.name}:{manifest.tag}"
    path = store.find(name)
    file = Modelfile(
        base=str(path) if shows_path else name,
        parameters=dict(preset.parameters),
        template=preset.template,
        system=preset.system,
        messages=tuple((message.role, message.text) for message in preset.messages),
        licences=preset.licences,
    )
    return f"# To make a model from this one, begin with:\n# FROM {name}\n\n{file}"


def _over(base: Preset, preset: Preset) -> Preset:
    return Preset(
        template=preset.template or base.template,
        system=preset.system or base.system,
        parameters={**base.parameters, **preset.parameters},
        messages=preset.messages or base.messages,
        licences=tuple(dict.fromkeys((*base.licences, *preset.licences))),
    )


def _parts(preset: Preset) -> list[Part]:
    messages = [{"role": message.role, "content": message.text} for message in preset.messages]
    said = [
        ("template", preset.template),
        ("system", preset.system),
        ("params", json.dumps(dict(preset.parameters), sort_keys=True) if preset.parameters else ""),
        ("messages", json.dumps(messages) if messages else ""),
        *(("license", licence) for licence in preset.licences),
    ]
    return [Part(role, FILES[role], text.encode()) for role, text in said if text]


def check_preset(preset: Preset) -> None:
    """Refuse a preset that no model could have."""
    if preset.template:
        try:
            check_template(preset.template)
        except GoSyntaxError as error:
            raise InvalidRequest(f"template: It is no template in Go's dialect: {error}.", field="template") from error


def _check_gguf(name: str, path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise InvalidRequest(f"{name} is no GGUF file: it does not begin with these letters.", field="from")
