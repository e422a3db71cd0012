"""Read a model's sampling defaults: generation_config.json, `general.sampling.*` of a GGUF file, the Modelfile.

A later one overrides an earlier one. Values that `SamplingParams` would refuse are ignored: a model with an invalid
file is still served.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from quire.types.defaults import SamplingDefaults
from quire.types.errors import InvalidRequest
from quire.types.parameters import sampling_of
from quire.types.preset import Preset
from quire.types.request import SamplingParams
from quire.types.sampling_values import MAX_INT

GENERATION_CONFIG = "generation_config.json"
MODELFILE = "Modelfile"
GGUF = "GGUF header"

# Their names for ours. Other entries (num_beams, no_repeat_ngram_size, mirostat, …) have no counterpart here.
OF_GENERATION_CONFIG: Mapping[str, str] = MappingProxyType(
    {
        **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")},
        "max_new_tokens": "max_tokens",
    }
)
OF_GGUF: Mapping[str, str] = MappingProxyType(
    {
        "general.sampling.temp": "temperature",
        "general.sampling.top_k": "top_k",
        "general.sampling.top_p": "top_p",
        "general.sampling.min_p": "min_p",
        "general.sampling.penalty_repeat": "repetition_penalty",
    }
)
WHOLE = ("top_k", "max_tokens")


def read_sampling_defaults(
    folder: Path, metadata: Mapping[str, Any], preset: Preset, *, of_model: bool = True
) -> SamplingDefaults:
    """Read the defaults of the model in `folder`. Without `of_model`, only the Modelfile's parameters apply."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    own = ((GENERATION_CONFIG, _of_generation_config(folder)), (GGUF, _renamed(metadata, OF_GGUF)))
    for source, found in (*(own if of_model else ()), (MODELFILE, sampling_of(preset.parameters))):
        values |= found
        sources |= dict.fromkeys(found, source)
    return SamplingDefaults(values, sources)


def _of_generation_config(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / GENERATION_CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    values = _renamed(found, OF_GENERATION_CONFIG)
    return values | {"temperature": 0.0} if found.get("do_sample") is False else values


def _renamed(found: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    values = {}
    for theirs, ours in names.items():
        value = _value(ours, found.get(theirs))
        if value is not None:
            values[ours] = value
    return values


def _value(name: str, given: Any) -> float | int | None:
    """A value as `SamplingParams` takes it; None: it is missing or not valid."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        return None
    # GGUF stores 32-bit floats: 0.95 is read as 0.949999988.
    value = min(int(given), MAX_INT) if name in WHOLE else float(f"{given:.7g}")
    if name == "top_k":
        value = max(value, 0)  # -1 is "off" in some files
    try:
        SamplingParams().updated(**{name: value})
    except InvalidRequest:
        return None
    return value
