"""Write a random model of any architecture that GGUF files can have, in the size of SmolLM2-135M.

Its configuration has the keys that our architecture reads and its tensors are the ones that our architecture names, so
most architectures need no line here. llama.cpp must load the file too: what it requires beyond that is in OWN_HEAD and
OTHER_VALUES. One that needs a key beyond VALUES cannot be written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from quire.bench.engines.random_gguf import Q4_1, Shape, write_random_gguf
from quire.models.config import read_config
from quire.models.errors import UnsupportedModel
from quire.models.names import stored_shapes
from quire.models.registry import Architecture, all_architectures, by_gguf_name
from quire.weights.checkpoint import open_checkpoint

VALUES: dict[str, int | float] = {
    "block_count": 30,
    "context_length": 8192,
    "embedding_length": 576,
    "feed_forward_length": 1536,
    "expert_count": 16,
    "expert_used_count": 4,
    "expert_feed_forward_length": 384,
    "attention.head_count": 9,
    "attention.head_count_kv": 3,
    "attention.key_length": 64,
    "attention.value_length": 64,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
    "attention.sliding_window": 4096,
    "attention.scale": 0.125,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "embedding_scale": 12.0,
    "residual_scale": 0.25,
    "logit_scale": 0.25,
    "rope.freq_base": 100000.0,
    "rope.dimension_count": 64,
}

OTHER_VALUES: dict[str, dict[str, int | float]] = {
    "gptneox": {"attention.head_count_kv": 9, "use_parallel_residual": True}
}
# Architectures whose files always have a head. In the others it is the table of embeddings, as in SmolLM2.
OWN_HEAD = frozenset({"gptneox", "nemotron", "olmo2", "phi2", "phi3", "stablelm", "xverse"})


@dataclass(frozen=True, slots=True)
class _Header:
    """A checkpoint before its tensors exist: what its configuration is read from."""

    container: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Any]


def write_small_model(architecture: str, tokenizer_model: Path, folder: Path) -> Path:
    """Write a file of this architecture, by its GGUF name, with the tokenizer of another model, unless it exists."""
    found = by_gguf_name(all_architectures(), has_experts=False)
    if architecture not in found:
        names = ", ".join(sorted(found))
        raise UnsupportedModel(f"There is no architecture {architecture!r}. In GGUF files there are: {names}.")
    tokenizer = {
        key: value for key, value in open_checkpoint(tokenizer_model).metadata.items() if key.startswith("tokenizer.")
    }
    config = _config(found[architecture])
    shapes = _shapes(found[architecture], config, len(tokenizer["tokenizer.ggml.tokens"]))
    metadata = {**config, "general.file_type": 3, **tokenizer}  # 3: Q4_1
    return write_random_gguf(folder / f"{architecture}.q4_1.gguf", metadata, shapes, Q4_1)


def _config(arch: Architecture) -> dict[str, Any]:
    keys, values = arch.keys.gguf, {**VALUES, **OTHER_VALUES.get(arch.gguf or "", {})}
    spelled = {ours: keys.spelling.get(ours, ours) for ours in values if ours in keys.read}
    named = {f"{arch.gguf}.{name}": values[ours] for ours, name in spelled.items()}
    # llama.cpp reads families from general.name, and then requires their special tokens
    return {"general.architecture": arch.gguf, "general.name": "random weights", **named}


def _shapes(arch: Architecture, config: Mapping[str, Any], vocab_size: int) -> dict[str, Shape]:
    """The tensors of a model, with the biases that config.json files of its architecture declare by default."""
    table = SimpleNamespace(shape=(vocab_size, VALUES["embedding_length"]))
    tensors = {"token_embd.weight": table, **({"output.weight": table} if arch.gguf in OWN_HEAD else {})}
    found = read_config(_Header("gguf", config, tensors), arch.keys, arch.config)
    declared = arch.keys.config
    biased = {word for flag, words in declared.biases.items() if declared.defaults.get(flag) for word in words}
    return stored_shapes("gguf", replace(found, biased=frozenset(biased)), arch.names)
