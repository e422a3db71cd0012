"""The model that `quire run` talks to: in a server that runs already, or opened for this process alone."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from quire.cli.engine import Engine, open_engine, served_model
from quire.cli.form import Form, check_think
from quire.cli.options import Given
from quire.cli.progress import shown
from quire.cli.sampling import CAREFUL
from quire.store.errors import BadName
from quire.store.names import DEFAULT_TAG, parse_name
from quire.store.store import DEFAULT_MODEL
from quire.types.errors import InvalidRequest
from quire.types.request import SamplingParams

SAME_ANYWHERE = {"home", "log_level", "log_format", "host", "port", "api_key"}  # flags that say nothing of an engine


class LocatedModel(NamedTuple):
    """A model that is here."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model that can be asked."""

    located: LocatedModel
    engine: Engine
    sampling: SamplingParams
    raw: bool = False  # text is continued as it is: no template, no memory

    @property
    def name(self) -> str:
        """Its full name."""
        return self.located.name


class RunFlags(Protocol):
    """What `quire run` was told about the model and its sampling."""

    @property
    def device(self) -> str: ...
    @property
    def raw(self) -> bool: ...
    @property
    def keep_alive(self) -> float | None: ...
    def sampling(self, defaults: Mapping[str, Any]) -> SamplingParams: ...


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens models by name, all with the same flags."""

    options: RunFlags
    given: Given

    def locate(self, name: str) -> LocatedModel:
        """Find a model by its full name, and fetch it if it is not here yet."""
        with shown() as progress:
            return LocatedModel(name, self.given.store.resolve(name, progress))

    def open(self, located: LocatedModel, form: Form) -> OpenedModel:
        """Load a model. An error says what of the form it cannot do."""
        name, path = located
        engine = self._engine(name, path)
        try:
            raw = self.options.raw or engine.template.is_default
            if raw and not self.options.raw:
                print("This model has no chat template: it continues what you write.", file=sys.stderr)
            ours = {} if self.options.raw else CAREFUL
            sampling = self.options.sampling({**ours, **engine.sampling_defaults})
            opened = OpenedModel(located, engine, sampling, raw)
            check_form(form, opened)
        except BaseException:
            engine.close()
            raise
        return opened

    def model_names(self) -> list[str]:
        """Models that can be opened without fetching them."""
        return [f"{each.name}:{each.tag}" for each in self.given.store.list()]

    def _engine(self, name: str, path: Path) -> Engine:
        """A server's that runs already, unless the flags ask for other settings than that has; else one of our own."""
        is_plain = self.options.device == "auto" and not self.given.flags.keys() - SAME_ANYWHERE
        is_plain &= parse_name(name).kind != "path"
        serve, keep_alive = self.given.config.serve, self.options.keep_alive
        if is_plain:
            served = served_model(name.removesuffix(f":{DEFAULT_TAG}"), serve, keep_alive)
            if served is not None:
                return served
        if keep_alive is not None:
            why = (
                f"No server at {serve.host}:{serve.port} has {name}"
                if is_plain
                else "A path or a flag of the engine was given"
            )
            raise InvalidRequest(
                f"{why}, so the model runs in this process and is freed when it ends: there is nothing to keep. "
                "Start `quire serve` first, or leave --keepalive out.",
                field="keepalive",
            )
        return open_engine(path, self.options.device, self.given.of_engine)


def check_form(form: Form, opened: OpenedModel) -> None:
    """Refuse what this model cannot be asked for."""
    if form.think is None:
        return
    if opened.raw:
        raise InvalidRequest(
            "--think needs a chat template, and here text is continued as it is: leave it out.", "think"
        )
    check_think(form.think, opened.engine.template.sources)


def full_name(text: str) -> str:
    """The name of a model with its tag."""
    try:
        return str(parse_name(text))
    except BadName as error:
        if " " not in text:
            raise
        raise BadName(text, f"the model comes first, quire run {DEFAULT_MODEL} {text!r}") from error
