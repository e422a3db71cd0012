"""The parameters of a model in Ollama's words: their names, what each takes, and what each means in ours.

A Modelfile, the options of a request and the file `params` of a stored model all speak of these. num_ctx is a model's
context (text/preset.py) or a request's limit. The others that choose how Ollama loads a model (num_gpu, num_thread, …)
are known and checked, and change nothing here: a model is loaded once for everyone, on the device of the engine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from quire.types.errors import InvalidRequest
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
}
GONE = (  # which Ollama dropped
    *("mirostat", "mirostat_tau", "mirostat_eta", "tfs_z", "penalize_newline", "low_vram", "f16_kv", "logits_all"),
    *("vocab_only", "use_mlock", "numa", "embedding_only", "rope_frequency_base", "rope_frequency_scale", "num_gqa"),
)
TRUE, FALSE = ("1", "t", "true"), ("0", "f", "false")  # in any case, as Go reads them

MAX_SEED = 2**63
LIKELIEST_ONLY = 1e-6  # a top_p of 0: the smallest share that still has a token in it


def parameter_of(name: str, text: str) -> Any:
    """The value that a text spells. Of `stop`, one of its strings."""
    check_name(name)
    if name == "stop":
        return text
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
    """The parameters that JSON says: a number without its fraction where none is wanted, `stop` always a list."""
    checked: dict[str, Any] = {}
    for name, value in given.items():
        check_name(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if name == "stop":
            stops = [value] if isinstance(value, str) else value
            if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
                raise _wrong(name, value)
            checked[name] = list(stops)
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
    """Those of a model that someone else made: what this version does not know is left out."""
    known: dict[str, Any] = {}
    for name, value in given.items():
        try:
            known |= check_parameters({name: value})
        except InvalidRequest:
            continue
    return known


def check_name(name: str) -> None:
    """Refuse a name that is none."""
    if name in GONE:
        public = f"The parameter {name} is no longer known, to Ollama either: leave it out."
        raise InvalidRequest(public, field=f"parameters.{name}")
    if name not in KINDS:
        public = f"There is no parameter {name[:64]!r}: choose from {', '.join(sorted(KINDS))}."
        raise InvalidRequest(public, field=f"parameters.{name[:64]}")


def spelled(parameters: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values as lines of a Modelfile have them; a list is several lines."""
    lines = []
    for name, value in sorted(parameters.items()):
        values: Sequence[Any] = value if isinstance(value, list) else [value]
        lines += [(name, each if isinstance(each, str) else _number(each)) for each in values]
    return lines


def sampling_of(parameters: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """What these mean in `SamplingParams`, and no more than is said.

    Values beyond their range mean what llama.cpp makes of them: off, or only the likeliest token. `at` is where they
    are said, for errors.
    """
    said: dict[str, Any] = {}
    for name, value in parameters.items():
        match name:
            case "num_predict":  # -1: no limit, -2: until the context is full
                said["max_tokens"] = min(int(value), MAX_INT) if value >= 1 else None
            case "temperature":
                said[name] = max(float(value), 0.0)
            case "top_k":
                said[name] = min(max(int(value), 0), MAX_INT)
            case "top_p" | "typical_p":
                said[name] = min(max(float(value), LIKELIEST_ONLY), 1.0)
            case "min_p":
                said[name] = min(max(float(value), 0.0), 1.0)
            case "repeat_penalty":
                said["repetition_penalty"] = _within(name, value, 1e-6, 1e6)
            case "presence_penalty" | "frequency_penalty":
                said[name] = _within(name, value, -2.0, 2.0)
            case "seed":
                said[name] = None if int(value) == -1 else _seed(int(value), at)
            case "stop":
                said[name] = tuple(stop for stop in value if stop)
    return said


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
