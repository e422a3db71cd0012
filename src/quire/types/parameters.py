"""Ollama's model parameters: their names, their types, and their meaning in `SamplingParams`.

They occur in a Modelfile, in the options of a request and in the file `params` of a stored model. num_ctx is a model's
context (text/preset.py) or a request's limit; pooling, which Ollama does not have, is a model's. Parameters that choose
how Ollama loads a model (num_gpu, num_thread, …) are checked and have no effect: a model is loaded once for all
requests, on the engine's device.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from quire.types.errors import InvalidRequest
from quire.types.kinds import PoolKind
from quire.types.sampling_values import MAX_INT

WHOLE = (
    *("num_predict", "top_k", "seed", "repeat_last_n", "num_keep", "num_ctx", "num_batch", "num_gpu", "main_gpu"),
    *("num_thread", "draft_num_predict"),
)
REAL = (*("temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty"),)
KINDS: Mapping[str, str] = {
    **dict.fromkeys(WHOLE, "a whole number"),
    **dict.fromkeys(REAL, "a number"),
    "use_mmap": "true or false",
    "stop": "text",
    "pooling": " or ".join(PoolKind),  # how the vectors of a text's tokens become one
}
DROPPED = (  # by Ollama
    *("mirostat", "mirostat_tau", "mirostat_eta", "tfs_z", "penalize_newline", "low_vram", "f16_kv", "logits_all"),
    *("vocab_only", "use_mlock", "numa", "embedding_only", "rope_frequency_base", "rope_frequency_scale", "num_gqa"),
)
TRUE, FALSE = ("1", "t", "true"), ("0", "f", "false")  # in upper or lower case, as in Go

MAX_SEED = 2**63
LIKELIEST_ONLY = 1e-6  # a top_p of 0: the smallest share that still has a token in it


def parameter_of(name: str, text: str) -> Any:
    """Parse the value of a parameter. For `stop`, one of its strings."""
    check_name(name)
    if name == "stop":
        return text
    if name == "pooling":
        return check_parameters({name: text})[name]
    try:
        if name == "use_mmap":
            return _truth(text)
        value = float(text)
        if not math.isfinite(value):
            raise ValueError
        return int(value) if name in WHOLE else value
    except ValueError:
        raise _wrong(name, text) from None


def check_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check parameters from JSON: whole numbers lose their fraction, `stop` becomes a list."""
    checked: dict[str, Any] = {}
    for name, value in given.items():
        check_name(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if name == "stop":
            stops = [value] if isinstance(value, str) else value
            if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
                raise _wrong(name, value)
            checked[name] = list(stops)
        elif name == "pooling" and value in tuple(PoolKind):
            checked[name] = str(value)
        elif name == "use_mmap" and isinstance(value, bool):
            checked[name] = value
        elif is_number and name in REAL:
            checked[name] = float(value)
        elif is_number and name in WHOLE:
            checked[name] = int(value)
        else:
            raise _wrong(name, value)
    sampling_of(checked)
    return checked


def known_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """The valid ones among a stored model's parameters: those unknown to this version are left out."""
    known: dict[str, Any] = {}
    for name, value in given.items():
        try:
            known |= check_parameters({name: value})
        except InvalidRequest:
            continue
    return known


def check_name(name: str) -> None:
    """Refuse an unknown name."""
    if name in DROPPED:
        public = f"The parameter {name} was dropped by Ollama and has no effect: leave it out."
        raise InvalidRequest(public, field=f"parameters.{name}")
    if name not in KINDS:
        public = f"There is no parameter {name[:64]!r}: choose from {', '.join(sorted(KINDS))}."
        raise InvalidRequest(public, field=f"parameters.{name[:64]}")


def modelfile_lines(parameters: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values as in the lines of a Modelfile; a list becomes several lines."""
    lines = []
    for name, value in sorted(parameters.items()):
        values: Sequence[Any] = value if isinstance(value, list) else [value]
        lines += [(name, each if isinstance(each, str) else _number(each)) for each in values]
    return lines


def sampling_of(parameters: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """The fields of `SamplingParams` that these parameters set.

    Values outside their range mean what llama.cpp makes of them: off, or only the likeliest token. `at` is their place
    in the request, for errors.
    """
    fields: dict[str, Any] = {}
    for name, value in parameters.items():
        match name:
            case "num_predict":  # -1: no limit, -2: until the context is full
                fields["max_tokens"] = min(int(value), MAX_INT) if value >= 1 else None
            case "temperature":
                fields[name] = max(float(value), 0.0)
            case "top_k":
                fields[name] = min(max(int(value), 0), MAX_INT)
            case "top_p" | "typical_p":
                fields[name] = min(max(float(value), LIKELIEST_ONLY), 1.0)
            case "min_p":
                fields[name] = min(max(float(value), 0.0), 1.0)
            case "repeat_penalty":
                fields["repetition_penalty"] = _within(name, value, 1e-6, 1e6)
            case "presence_penalty" | "frequency_penalty":
                fields[name] = _within(name, value, -2.0, 2.0)
            case "seed":
                fields[name] = None if int(value) == -1 else _seed(int(value), at)
            case "stop":
                fields[name] = tuple(stop for stop in value if stop)
    return fields


def _within(name: str, value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise InvalidRequest(f"{name} is {value:g}; it must be from {low:g} to {high:g}.", field=name)
    return float(value)


def _seed(value: int, at: str) -> int:
    if not -MAX_SEED <= value < MAX_SEED:
        raise InvalidRequest(f"{at}seed: Does not fit into 64 bits", field=f"{at}seed")
    return value


def _truth(text: str) -> bool:
    if text.lower() not in (*TRUE, *FALSE):
        raise ValueError
    return text.lower() in TRUE


def _number(value: Any) -> str:
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def _wrong(name: str, value: Any) -> InvalidRequest:
    kind = "text or a list of texts" if name == "stop" else KINDS[name]
    return InvalidRequest(f"{name} is {str(value)[:64]!r}; it must be {kind}.", field=f"parameters.{name}")
