"""Sampling parameters as text on the command line. `SamplingParams` declares their names, types and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from quire.types.errors import InvalidRequest
from quire.types.request import SamplingParams

# Used where neither the user nor the model's files set them: at 1.0 and 1.0 small models ramble.
DEFAULTS = {"temperature": 0.7, "top_p": 0.95}
NOT_ON_ONE_LINE = ("n", "logit_bias", "allowed_token_ids", "bad_words", "stop_token_ids", "logprobs", "prompt_logprobs")
NAMES = tuple(each.name for each in fields(SamplingParams) if each.name not in NOT_ON_ONE_LINE)


def with_value(sampling: SamplingParams, name: str, text: str) -> SamplingParams:
    """Return the parameters with one of them set to the value that the text gives."""
    if name not in NAMES:
        raise InvalidRequest(f"There is no parameter {name!r}. Choose from {', '.join(NAMES)}.", field=name)
    kind = get_type_hints(SamplingParams)[name]
    return sampling.updated(**{name: _parse(name, kind, text)})


def changed_parameters(sampling: SamplingParams) -> Mapping[str, Any]:
    """Return the parameters that differ from the defaults of `SamplingParams`."""
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
    if str in kinds:
        return text
    number = int if int in kinds else float
    try:
        return number(text)
    except ValueError:
        what = "a whole number" if number is int else "a number"
        raise InvalidRequest(f"{name} is {text!r}; it must be {what}.", field=name) from None
