"""Loads the model for `quire run`: from a running server if one has it, else into this process."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from quire.cli.model.answer_options import AnswerOptions, check_think
from quire.cli.model.chat_model import ChatModel, find_served_model, load_local_model
from quire.cli.model.sampling_parameters import DEFAULTS
from quire.cli.options import CommandSettings
from quire.cli.terminal.progress import show_progress
from quire.store.errors import BadName
from quire.store.names import DEFAULT_TAG, parse_name
from quire.store.store import DEFAULT_MODEL
from quire.types.errors import InvalidRequest
from quire.types.request import SamplingParams

# Flags that do not configure the engine: a server's model can be used with them.
NOT_ENGINE_FLAGS = {"home", "log_level", "log_format", "host", "port", "api_key"}


class ModelFile(NamedTuple):
    """A model on this disk."""

    name: str  # with its tag
    path: Path


@dataclass(frozen=True, slots=True)
class ModelSession:
    """A model that is ready to answer, with the sampling parameters to use."""

    file: ModelFile
    model: ChatModel
    sampling: SamplingParams
    raw: bool = False  # the prompt is continued as plain text: no chat template, no conversation

    @property
    def name(self) -> str:
        """The model's name with its tag."""
        return self.file.name


class LoadFlags(Protocol):
    """The flags of `quire run` that loading depends on."""

    @property
    def device(self) -> str: ...
    @property
    def raw(self) -> bool: ...
    @property
    def keep_alive(self) -> float | None: ...
    def sampling(self, defaults: Mapping[str, Any]) -> SamplingParams: ...


@dataclass(frozen=True, slots=True)
class ModelLoader:
    """Loads models by name, all with the same flags."""

    flags: LoadFlags
    settings: CommandSettings

    def fetch(self, name: str) -> ModelFile:
        """Find a model by its full name; pull it if it is not on this disk."""
        with show_progress() as progress:
            return ModelFile(name, self.settings.store.resolve(name, progress))

    def load(self, file: ModelFile, options: AnswerOptions) -> ModelSession:
        """Load a model. Raise if it does not support the answer options."""
        model = self._chat_model(file)
        try:
            raw = self.flags.raw or model.template.is_default
            if raw and not self.flags.raw:
                print("This model has no chat template: it continues your text.", file=sys.stderr)
            defaults = {} if self.flags.raw else DEFAULTS
            sampling = self.flags.sampling({**defaults, **model.sampling_defaults})
            loaded = ModelSession(file, model, sampling, raw)
            check_options(options, loaded)
        except BaseException:
            model.close()
            raise
        return loaded

    def stored_names(self) -> list[str]:
        """Return the names of models that can be loaded without a pull."""
        return [f"{each.name}:{each.tag}" for each in self.settings.store.list()]

    def _chat_model(self, file: ModelFile) -> ChatModel:
        """Use a running server's model, unless flags ask for engine settings that it may not have."""
        has_engine_flags = self.flags.device != "auto" or self.settings.flags.keys() - NOT_ENGINE_FLAGS
        can_be_served = not has_engine_flags and parse_name(file.name).kind != "path"
        serve, keep_alive = self.settings.config.serve, self.flags.keep_alive
        if can_be_served:
            served = find_served_model(file.name.removesuffix(f":{DEFAULT_TAG}"), serve, keep_alive)
            if served is not None:
                return served
        if keep_alive is not None:
            why = (
                f"No server at {serve.host}:{serve.port} has {file.name}"
                if can_be_served
                else "A path or an engine flag was given"
            )
            raise InvalidRequest(
                f"--keepalive has no effect here. {why}, so the model runs in this process and is freed at exit. "
                "Start `quire serve` first, or remove --keepalive.",
                field="keepalive",
            )
        return load_local_model(file.path, self.flags.device, self.settings.flags)


def check_options(options: AnswerOptions, loaded: ModelSession) -> None:
    """Raise if the model does not support the answer options."""
    if options.think is None:
        return
    if loaded.raw:
        raise InvalidRequest(
            "--think needs a chat template, and this text is continued without one. Remove --think.", "think"
        )
    check_think(options.think, loaded.model.template.sources)


def full_name(text: str) -> str:
    """Return a model's name with its tag."""
    try:
        return str(parse_name(text))
    except BadName as error:
        if " " not in text:
            raise
        raise BadName(text, f"the model comes first: quire run {DEFAULT_MODEL} {text!r}") from error
