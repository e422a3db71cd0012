"""Create a model from another one: its files, with a preset (template, parameters, …) laid over its own.

What the preset leaves out stays as in the base. Parameters are merged one by one, licences are appended; messages,
template and system prompt replace those of the base.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from quire.text.go_chat import check_template
from quire.text.go_template.errors import GoSyntaxError
from quire.text.preset import FILES, preset_of
from quire.types.errors import InvalidRequest
from quire.types.message import Message
from quire.types.preset import Preset

from .manifest import Manifest, StoredFile
from .model_files import GGUF, SAFETENSORS, NewFile, files_at, flat_path, side_role
from .modelfile import Modelfile
from .names import is_path, parse_name
from .source import ModelOffer, Progress, no_progress
from .store import Store

MAGIC = b"GGUF"
INHERITED = ("format", "quantization", "num_parameters", "sampling")


class AdapterNotSupported(InvalidRequest):
    """A Modelfile has an ADAPTER, which the engine does not support."""

    code = "adapter_not_supported"

    def __init__(self) -> None:
        super().__init__(
            "ADAPTER: LoRA adapters cannot be applied yet. Merge the adapter into the weights first, then "
            "create the model FROM the result.",
            field="adapters",
        )


Check = Callable[[Path], None]  # raises if the model at this path cannot be run


def no_check(path: Path) -> None:
    """Accept every model."""


@dataclass(frozen=True, slots=True)
class Base:
    """What a model is created from."""

    files: tuple[NewFile | StoredFile, ...]  # weights, config and tokenizer
    preset: Preset
    about: ModelOffer


def create_model(
    store: Store, name: str, file: Modelfile, folder: Path, progress: Progress = no_progress, check: Check = no_check
) -> Manifest:
    """Create the model that a Modelfile describes. Paths in it are relative to `folder`."""
    if file.adapters:
        raise AdapterNotSupported
    preset = preset_of_file(file)
    check_preset(preset)
    if is_path(file.base):
        return create_from_base(store, name, _base_at(folder / Path(file.base).expanduser()), preset, progress, check)
    return create_from_base(store, name, base_of_name(store, file.base, progress), preset, progress, check)


def preset_of_file(file: Modelfile) -> Preset:
    """The preset of a Modelfile: everything but FROM."""
    messages = tuple(Message(role, content) for role, content in file.messages)  # type: ignore[arg-type]
    return Preset(file.template, file.system, file.parameters, messages, file.licences)


def create_from_base(
    store: Store, name: str, base: Base, preset: Preset, progress: Progress = no_progress, check: Check = no_check
) -> Manifest:
    """Create a model from a base, with this preset over the base's own. `check` raises if the base cannot be run."""
    check_preset(preset)
    store.check_files(base.files, check)
    return store.create(name, (*base.files, *_preset_files(_merge(base.preset, preset))), base.about, progress)


def base_of_name(store: Store, text: str, progress: Progress = no_progress) -> Base:
    """A model of the store as a base, pulled first if it is not there."""
    name = parse_name(text)
    if store.find(str(name)) is None:
        store.pull(str(name), progress)
    manifest = store.show(str(name))
    if manifest.of_role("adapter"):
        raise AdapterNotSupported
    inherited = {field: getattr(manifest, field) for field in INHERITED}
    about = ModelOffer(f"made from {manifest.name}:{manifest.tag}", licence=manifest.licence, **inherited)
    files = tuple(file for file in manifest.files if file.role not in FILES)
    return Base(files, preset_of_model(store, manifest), about)


def base_of_blobs(store: Store, files: Mapping[str, str]) -> Base:
    """Blobs of the store as a base, by the file names that the client gives them."""
    stored = []
    for name, digest in files.items():
        blob = store.find_blob(digest)
        if blob is None:
            raise InvalidRequest(f"files: There is no blob sha256:{digest[:64]}: upload it first.", field="files")
        plain = PurePosixPath(flat_path("/".join(PurePosixPath(name).parts[-2:]))).name
        role = side_role(plain) or "weights"
        if role == "weights" and not plain.lower().endswith((GGUF, SAFETENSORS, ".json")):
            raise InvalidRequest(
                f"files: {plain[:64]!r} is not a file of a GGUF or safetensors model: leave it out.", field="files"
            )
        if plain.lower().endswith(GGUF):
            _check_gguf(plain, store.layout.blob(digest))
        stored.append(replace(blob, role=role, file_name=plain))
    return Base(tuple(stored), Preset(), ModelOffer("made from uploaded files"))


def _base_at(path: Path) -> Base:
    files = files_at(path)
    for file in files:
        if isinstance(file.content, Path) and file.file_name.lower().endswith(GGUF):
            _check_gguf(file.file_name, file.content)
    return Base(files, Preset(), ModelOffer(f"made from {path.name}"))


def preset_of_model(store: Store, manifest: Manifest) -> Preset:
    """The preset of a stored model."""
    texts = {
        role: store.read(file).decode(errors="replace")
        for role in FILES
        for file in manifest.of_role(role)[:1]
        if role not in ("license", "adapter")
    }
    licences = tuple(store.read(file).decode(errors="replace") for file in manifest.of_role("license"))
    return preset_of(texts, licences)


def modelfile_text(store: Store, text: str, shows_path: bool = True) -> str:
    """A Modelfile that creates this model again: from the path of its weights, or from its name."""
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


def _merge(base: Preset, preset: Preset) -> Preset:
    return Preset(
        template=preset.template or base.template,
        system=preset.system or base.system,
        parameters={**base.parameters, **preset.parameters},
        messages=preset.messages or base.messages,
        licences=tuple(dict.fromkeys((*base.licences, *preset.licences))),
    )


def _preset_files(preset: Preset) -> list[NewFile]:
    messages = [{"role": message.role, "content": message.text} for message in preset.messages]
    texts = [
        ("template", preset.template),
        ("system", preset.system),
        ("params", json.dumps(dict(preset.parameters), sort_keys=True) if preset.parameters else ""),
        ("messages", json.dumps(messages) if messages else ""),
        *(("license", licence) for licence in preset.licences),
    ]
    return [NewFile(role, FILES[role], text.encode()) for role, text in texts if text]


def check_preset(preset: Preset) -> None:
    """Refuse a preset that no model can have."""
    if preset.template:
        try:
            check_template(preset.template)
        except GoSyntaxError as error:
            raise InvalidRequest(f"template: It is not a valid Go template: {error}.", field="template") from error


def _check_gguf(name: str, path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise InvalidRequest(
                f"{name} is not a GGUF file: it does not begin with GGUF. Choose another file.", field="from"
            )
