"""Toys of Qwen3.5 with experts."""

import numpy as np

from tests.models.case import Arrays, Case, Config, Conversion, Keys, split_experts
from tests.models.cases.qwen3_5 import FULL, LINEAR, tiled_keys, tiled_tensor
from tests.models.cases.qwen3_next import SHARED, shared_keys, shared_tensor

KIND = "Qwen3_5MoeForCausalLM"
CASES = {"qwen3_5_moe": Case(KIND, {**SHARED, "num_hidden_layers": 2, "layer_types": [LINEAR, FULL]})}


def _keys(c: Config) -> Keys:
    return {**tiled_keys(c), **shared_keys(c)}


def _tensor(name: str, array: np.ndarray, c: Config) -> np.ndarray | Arrays:
    found = shared_tensor(name, array, c)
    made = tiled_tensor(name, array, c) if found is None else found
    return split_experts(name, made, c) if isinstance(made, np.ndarray) else made


GGUF = Conversion("qwen35moe", keys=_keys, tensor=_tensor)
