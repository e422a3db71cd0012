"""What a file of `tests/models/cases` is made of: toy models of an architecture, and how GGUF files store them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

VOCAB = 131
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1088,
    "rms_norm_eps": 1e-5,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}  # inside the small vocabulary


@dataclass(frozen=True)
class Case:
    """A toy: a class of transformers, and its configuration where it differs from SIZES."""

    kind: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    min_tokens: int = 1  # transformers computes shorter texts with other factors of rope
    max_tokens: int = 1 << 30  # transformers rounds numbers of longer texts, or another case of the kind has them
    in_gguf: bool = True  # False: GGUF has no key for a property of this case
    oldest: str = "5.0"  # release of transformers that computes it as published models are computed
    as_saved: bool = False  # transformers writes other tensors than it has in memory
    # The tensors of a published file by those in memory, where transformers reads them and does not write them.
    published: Callable[[dict[str, np.ndarray], Any], dict[str, np.ndarray]] | None = None


Config = Any  # of transformers
Keys = dict[str, Any]
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Conversion:
    """How llama.cpp's converter stores an architecture. Names of tensors come from the `gguf` package."""

    arch: str  # the name in general.architecture
    # The name there of models with this configuration, where it is another.
    name_of: Callable[[Config], str | None] = lambda c: None
    # Keys beyond `base_keys`, without the architecture's name. A value of None: no such key.
    keys: Callable[[Config], Keys] = lambda c: {}
    # The array that is stored for a tensor of safetensors. A dict: several, by names of safetensors. None: no tensor.
    tensor: Callable[[str, np.ndarray, Config], np.ndarray | Arrays | None] = lambda name, array, c: array
    # Tensors that only GGUF files have.
    extra: Callable[[Config], Arrays] = lambda c: {}
    # Keys that list a number for each layer, with the tensor that has it in safetensors.
    numbers: Mapping[str, str] = field(default_factory=dict)


def rope(kind: str, **numbers: Any) -> dict[str, Any]:
    """The keys of a rope of this kind."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **numbers}}


LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=32)


def to_pairs(array: np.ndarray, num_heads: int) -> np.ndarray:
    """Reorder the rows of each head from halves to pairs, as converters do for rope in pairs."""
    halves = array.reshape(num_heads, 2, array.shape[0] // num_heads // 2, -1)
    return halves.swapaxes(1, 2).reshape(array.shape)


def pair_heads(name: str, array: np.ndarray, c: Config) -> np.ndarray:
    """Reorder the rows of q and k of a Llama."""
    heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}.get(name.split(".")[-2])
    return array if heads is None else to_pairs(array, heads)


def base_keys(c: Config) -> Keys:
    """The keys that most architectures have."""
    eps = getattr(c, "rms_norm_eps", None)
    layer_eps = next((getattr(c, key) for key in ("layer_norm_eps", "layer_norm_epsilon") if hasattr(c, key)), None)
    keys = {
        "block_count": c.num_hidden_layers,
        "context_length": getattr(c, "max_position_embeddings", None),
        "embedding_length": c.hidden_size,
        "feed_forward_length": getattr(c, "intermediate_size", None),
        "attention.head_count": getattr(c, "num_attention_heads", None),
        "attention.head_count_kv": getattr(c, "num_key_value_heads", None),
        "attention.layer_norm_rms_epsilon": eps,
        "attention.layer_norm_epsilon": layer_eps if eps is None else None,
        **rope_keys(getattr(c, "rope_parameters", None)),
    }
    if head_dim := getattr(c, "head_dim", None):
        keys |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    return {key: value for key, value in keys.items() if value is not None}


def rope_keys(parameters: Mapping[str, Any] | None) -> Keys:
    """The keys of a rope for all layers; llama3 and longrope are tensors."""
    if not parameters or "rope_theta" not in parameters:
        return {}
    keys = {"rope.freq_base": parameters["rope_theta"]}
    if parameters["rope_type"] in ("linear", "yarn"):
        keys |= {"rope.scaling.type": parameters["rope_type"], "rope.scaling.factor": parameters["factor"]}
    if parameters["rope_type"] == "yarn":
        keys["rope.scaling.original_context_length"] = parameters["original_max_position_embeddings"]
    return keys


def llama3_divisors(c: Config) -> Arrays:
    """The tensor of divisors for each pair that stands for llama3's numbers."""
    parameters = c.rope_parameters
    if parameters["rope_type"] != "llama3":
        return {}
    dim, divisors = c.head_dim, []
    for i in range(0, dim, 2):
        wavelength = 2 * np.pi * parameters["rope_theta"] ** (i / dim)
        turns = parameters["original_max_position_embeddings"] / wavelength
        if turns > parameters["high_freq_factor"]:
            divisors.append(1.0)
        elif turns < parameters["low_freq_factor"]:
            divisors.append(parameters["factor"])
        else:
            low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
            smooth = (turns - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / parameters["factor"] + smooth))
    return {"rope_freqs.weight": np.array(divisors, np.float32)}


EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40}


def expert_keys(c: Config) -> Keys:
    """The keys of experts that most architectures have."""
    return {
        "expert_count": c.num_local_experts if hasattr(c, "num_local_experts") else c.num_experts,
        "expert_used_count": c.num_experts_per_tok,
        "expert_feed_forward_length": getattr(c, "moe_intermediate_size", None),
    }


def split_experts(name: str, array: np.ndarray, c: Config) -> np.ndarray | Arrays:
    """GGUF has a stack of gates and one of ups; transformers has both in one."""
    if not name.endswith("experts.gate_up_proj"):
        return {f"{name}.weight": array} if name.endswith("experts.down_proj") else array
    gate, up = np.split(array, 2, axis=1)
    stem = name.removesuffix("gate_up_proj")
    return {f"{stem}gate_proj.weight": gate, f"{stem}up_proj.weight": up}
