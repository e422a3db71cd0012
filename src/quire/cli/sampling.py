"""How the next token is chosen when the user does not say: as the model's authors recommend, else carefully.

`SamplingParams` is the one declaration of names, types and limits; nothing of it is repeated here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from quire.store.store import Store
from quire.text.preset import authors_parameters, read_preset
from quire.types.errors import InvalidRequest
from quire.types.parameters import sampling_of
from quire.types.request import SamplingParams

CAREFUL = {"temperature": 0.7, "top_p": 0.95}  # a model's own distribution (1.0, 1.0) rambles
NOT_FOR_A_LINE = ("n", "logit_bias", "allowed_token_ids", "bad_words", "stop_token_ids", "logprobs", "prompt_logprobs")
NAMES = tuple(each.name for each in fields(SamplingParams) if each.name not in NOT_FOR_A_LINE)


def recommended(store: Store, model: str, path: Path) -> dict[str, Any]:
    """What the store knows, or else what generation_config.json beside the weights says; and over it the preset's."""
    folder = path if path.is_dir() else path.parent
    return _of_authors(store, model, folder) | sampling_of(read_preset(folder).parameters)


def _of_authors(store: Store, model: str, folder: Path) -> dict[str, Any]:
    manifest = next((each for each in store.list() if f"{each.name}:{each.tag}" == model), None)
    if manifest is not None and manifest.sampling:
        return dict(manifest.sampling)
    return CAREFUL | sampling_of(authors_parameters(folder))


def with_value(sampling: SamplingParams, name: str, text: str) -> SamplingParams:
    """These parameters with one of them changed to what the text spells. An error says what it takes."""
    if name not in NAMES:
        raise InvalidRequest(f"There is no parameter {name!r}: choose from {', '.join(NAMES)}.", field=name)
    kind = get_type_hints(SamplingParams)[name]
    return replace(sampling, **{name: _parse(name, kind, text)})


def changed(sampling: SamplingParams) -> Mapping[str, Any]:
    """The parameters that are not at the model's own distribution."""
    plain = SamplingParams()
    return {name: getattr(sampling, name) for name in NAMES if getattr(sampling, name) != getattr(plain, name)}


def _parse(name: str, kind: Any, text: str) -> Any:
    if name == "stop":
        return tuple(text.split())
    kinds = getattr(kind, "__args__", (kind,))
    if type(None) in kinds and text.lower() == "none":
        return None
    if bool in kinds:
        return text.lower() in ("1", "true", "yes", "on")
    wanted = int if int in kinds else float
    try:
        return wanted(text)
    except ValueError:
        what = "a whole number" if wanted is int else "a number"
        raise InvalidRequest(f"{name} is {text!r}; it must be {what}.", field=name) from None
