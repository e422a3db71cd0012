"""Small random models made by `transformers`, as open checkpoints, with the names of either container.

The GGUF names and keys follow the rules of its converter, not our tables, so that our tables are tested.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from quire.graph.interpret import Interpreter
from quire.graph.weight import ComputedTensor
from quire.models.config import read_config
from quire.models.draw import DrawnModel, draw
from quire.models.names import stored_shapes
from quire.models.registry import Architecture
from quire.ops.batch import Batch, RowPart

VOCAB = 131
BLOCK = 16


@dataclass(frozen=True)
class MemoryCheckpoint:
    """A checkpoint in memory, as `weights` would return it for one on disk."""

    container: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, ComputedTensor]


def as_tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, ComputedTensor]:
    return {name: ComputedTensor(name, np.ascontiguousarray(array)) for name, array in arrays.items()}


@dataclass(frozen=True)
class Toy:
    """A transformers model and its checkpoint, from which our graph is drawn."""

    torch_model: Any
    checkpoint: MemoryCheckpoint

    def draw(self, container: str = "safetensors") -> DrawnModel:
        return draw(self.checkpoint if container == "safetensors" else self.as_gguf())

    def as_gguf(self) -> MemoryCheckpoint:
        """Return the same model as a GGUF checkpoint."""
        return to_gguf(self.checkpoint)

    def expected_logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Return transformers' logits, float32 [len(tokens), vocab]."""
        import torch

        ids = torch.tensor([list(tokens)], device=self.torch_model.device)
        with torch.no_grad():
            return self.torch_model(ids).logits[0].float().cpu().numpy()

    def expected_greedy(self, tokens: Sequence[int], num_steps: int) -> list[int]:
        """Return `num_steps` tokens of transformers' generate."""
        import torch

        ids = torch.tensor([list(tokens)], device=self.torch_model.device)
        kwargs = {"max_new_tokens": num_steps, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        with torch.no_grad():
            text = self.torch_model.generate(ids, attention_mask=torch.ones_like(ids), **kwargs)[0]
        return text[len(tokens) :].tolist()


SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}


def _rope(kind: str, **numbers: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **numbers}}


def _longrope(pairs: int) -> dict[str, Any]:
    factors = {"short_factor": [1.0 + 0.1 * i for i in range(pairs)], "long_factor": [1.5 + i for i in range(pairs)]}
    return {"original_max_position_embeddings": 64, **_rope("longrope", **factors)}


TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}  # inside the small vocabulary
LLAMA3 = _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = _rope("yarn", factor=4.0, original_max_position_embeddings=32)
# case name: (class in transformers, changes to SIZES)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "llama-tied-biased": ("LlamaForCausalLM", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama-llama3": ("LlamaForCausalLM", {**LLAMA3, "num_hidden_layers": 3}),
    "llama-linear": ("LlamaForCausalLM", _rope("linear", factor=4.0)),
    "llama-yarn": ("LlamaForCausalLM", YARN),
    "llama-wide-heads": ("LlamaForCausalLM", {"head_dim": 20, "num_key_value_heads": 1}),
    "mistral-window": ("MistralForCausalLM", {"sliding_window": 11}),
    "mistral-null": ("MistralForCausalLM", {"sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 16}),
    "qwen3-yarn-tied": ("Qwen3ForCausalLM", {"head_dim": 10, "tie_word_embeddings": True, **YARN}),
    "gemma2": (
        "Gemma2ForCausalLM",
        {"head_dim": 16, "num_hidden_layers": 3, "sliding_window": 7, "query_pre_attn_scalar": 10},
    ),
    "gemma2-plain-scores": (
        "Gemma2ForCausalLM",
        {"head_dim": 8, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "phi3": ("Phi3ForCausalLM", {"sliding_window": 9, **TOKENS, **_rope("default", partial_rotary_factor=0.5)}),
    "phi3-longrope": ("Phi3ForCausalLM", {**TOKENS, **_longrope(4)}),
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 256, **TOKENS}),
    "cohere": ("CohereForCausalLM", {**TOKENS}),
    "cohere-normed-heads": ("CohereForCausalLM", {"use_qk_norm": True, "logit_scale": 0.5, **TOKENS}),
}
LLAMA_LIKE = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@cache
def make_toy(name: str) -> Toy:
    """Return the toy of a case."""
    kind, different = CASES[name]
    return toy_of(kind, different, seed=sum(name.encode()))


def toy_of(kind: str, different: Mapping[str, Any], seed: int) -> Toy:
    """Make a model of this class, with weights far enough from zero that every part of it matters."""
    transformers = pytest.importorskip("transformers")
    config_class = getattr(transformers, kind.replace("ForCausalLM", "Config").replace("LMHeadModel", "Config"))
    sizes = {key: SIZES[key] for key in SIZES if hasattr(config_class(), key) and key not in config_class.attribute_map}
    config = config_class(**{**sizes, **different}, attn_implementation="eager", architectures=[kind])
    model = random_model(kind, config, seed)
    arrays = {key: tensor.float().numpy() for key, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        del arrays["lm_head.weight"]  # as save_pretrained does
    return Toy(model, MemoryCheckpoint("safetensors", config.to_dict(), as_tensors(arrays)))


def toy_with_config_file(kind: str, different: Mapping[str, Any], seed: int = 1) -> Toy:
    """Make a model whose config.json has only these keys beside its sizes, as a user may have edited it."""
    transformers = pytest.importorskip("transformers")
    config_class = getattr(transformers, kind.replace("ForCausalLM", "Config"))
    config_file = {"architectures": [kind], "model_type": config_class.model_type, **SIZES, **different}
    config = config_class.from_dict(copy.deepcopy(config_file))
    config._attn_implementation = "eager"
    model = random_model(kind, config, seed)
    arrays = {key: tensor.float().numpy() for key, tensor in model.state_dict().items()}
    return Toy(model, MemoryCheckpoint("safetensors", config_file, as_tensors(arrays)))


def random_model(kind: str, config: Any, seed: int) -> Any:
    """A model of transformers. Norms and biases are random too."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    model = getattr(transformers, kind)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.25 if parameter.dim() == 2 else 1.0 + 0.3 * noise)
    return model


# Names in config.json checkpoints and in GGUF, without the prefix of the layer.
_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def to_gguf(checkpoint: MemoryCheckpoint) -> MemoryCheckpoint:
    """Convert a checkpoint like the usual converter: other names and keys, and Llama's rows of q and k in pairs."""
    c = checkpoint.metadata
    arch = {"Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}.get(c["architectures"][0], "llama")
    heads = {"q_proj": c["num_attention_heads"], "k_proj": c["num_key_value_heads"]} if arch == "llama" else {}
    arrays = {}
    for name, tensor in checkpoint.tensors.items():
        stem, _, kind = name.rpartition(".")
        array = tensor.array
        if count := heads.get(stem.rpartition(".")[2]):
            halves = array.reshape(count, 2, array.shape[0] // count // 2, -1)
            array = halves.swapaxes(1, 2).reshape(array.shape)
        if stem.startswith("model.layers."):
            _, _, layer, word = stem.split(".", 3)
            arrays[f"blk.{layer}.{_GGUF_NAMES[word]}.{kind}"] = array
        else:
            arrays[f"{_GGUF_NAMES[stem]}.{kind}"] = array
    keys = _gguf_keys(c)
    if arch == "llama" and c.get("sliding_window"):
        keys["attention.sliding_window"] = c["sliding_window"]
    metadata = {"general.architecture": arch, **{f"{arch}.{key}": value for key, value in keys.items()}}
    return MemoryCheckpoint("gguf", metadata, as_tensors({**arrays, **_gguf_rope(c)[1]}))


def _gguf_keys(c: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a model, without the architecture in front."""
    keys = {
        "block_count": c["num_hidden_layers"],
        "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"],
        "feed_forward_length": c["intermediate_size"],
        "attention.head_count": c["num_attention_heads"],
        "attention.head_count_kv": c["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": c["rms_norm_eps"],
        "rope.freq_base": c["rope_parameters"]["rope_theta"],
        **_gguf_rope(c)[0],
    }
    if head_dim := c.get("head_dim"):
        keys |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    return keys


def _gguf_rope(c: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Keys for linear and yarn; for llama3 a tensor of divisors."""
    rope = c["rope_parameters"]
    if rope["rope_type"] in ("linear", "yarn"):
        keys = {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
        if rope["rope_type"] == "yarn":
            keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        return keys, {}
    if rope["rope_type"] == "default":
        return {}, {}
    dim = c["head_dim"]
    divisors = []
    for i in range(0, dim, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (i / dim)
        turns = rope["original_max_position_embeddings"] / wavelength
        if turns > rope["high_freq_factor"]:
            divisors.append(1.0)
        elif turns < rope["low_freq_factor"]:
            divisors.append(rope["factor"])
        else:
            smooth = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return {}, {"rope_freqs.weight": np.array(divisors, np.float32)}


def random_checkpoint(arch: Architecture, container: str, tied: bool = False) -> MemoryCheckpoint:
    """Make a two-layer model of any architecture from its declared names. Needs no torch; does not test the names."""
    metadata = {"architectures": [arch.name], **SIZES, "head_dim": 8, "tie_word_embeddings": tied, "sliding_window": 3}
    config = read_config(MemoryCheckpoint("safetensors", metadata, {}), arch.keys, arch.config)
    rng = np.random.default_rng(0)
    shapes = stored_shapes(container, config, arch.names)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) * 0.3 for name, shape in shapes.items()}
    if container == "gguf":
        rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
        keys = _gguf_keys({**metadata, **rope})
        metadata = {"general.architecture": arch.gguf, **{f"{arch.gguf}.{key}": value for key, value in keys.items()}}
    return MemoryCheckpoint(container, metadata, as_tensors(arrays))


class Session:
    """Texts that grow in one interpreter's cache, in scattered blocks."""

    def __init__(self, model: DrawnModel, num_blocks: int = 40, seed: int = 0) -> None:
        self.interpreter = Interpreter(model.graph, model.weights, num_blocks, BLOCK)
        self.num_blocks = num_blocks
        self._free = [int(block) for block in np.random.default_rng(seed).permutation(num_blocks)]
        self._tables: dict[str, list[int]] = {}
        self._computed: dict[str, int] = {}

    def step(self, chunks: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
        """Append a chunk to each text; return logits [len(chunk), vocab] by text."""
        parts = []
        for text, chunk in chunks.items():
            table, start = self._tables.setdefault(text, []), self._computed.get(text, 0)
            while len(table) * BLOCK < start + len(chunk):
                table.append(self._free.pop())
            self._computed[text] = start + len(chunk)
            parts.append(RowPart(chunk, start, list(table), num_logits=len(chunk)))
        batch = Batch.of(parts, BLOCK)
        batch.check(self.num_blocks, BLOCK)
        logits = self.interpreter.run(batch)
        return {text: logits[batch.starts[r] : batch.starts[r + 1]] for r, text in enumerate(chunks)}


def some_tokens(count: int) -> list[int]:
    """Return `count` random tokens, always the same ones for a count."""
    return np.random.default_rng(count).integers(0, VOCAB, count).tolist()
