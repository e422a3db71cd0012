"""Sampling parameters on the command line: what holds if neither the user nor the model says, and how one is spelled.

`SamplingParams` is the one declaration of names, types and limits; nothing of it is repeated here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from quire.types.errors import InvalidRequest
from quire.types.request import SamplingParams

CAREFUL = {"temperature": 0.7, "top_p": 0.95}  # the plain distribution (1.0, 1.0) of a small model rambles
NOT_FOR_A_LINE = ("n", "logit_bias", "allowed_token_ids", "bad_words", "stop_token_ids", "logprobs", "prompt_logprobs")
NAMES = tuple(each.name for each in fields(SamplingParams) if each.name not in NOT_FOR_A_LINE)


def with_value(sampling: SamplingParams, name: str, text: str) -> SamplingParams:
    """These parameters with one of them changed to what the text spells. An error says what it takes."""
    if name not in NAMES:
        raise InvalidRequest(f"There is no parameter {name!r}: choose from {', '.join(NAMES)}.", field=name)
    kind = get_type_hints(SamplingParams)[name]
    return sampling.updated(**{name: _parse(name, kind, text)})


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
