"""What a checkpoint says about its model, in one set of words, whether it came with config.json or as GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from quire.graph.weight import StoredTensor
from quire.models.errors import UnsupportedModel
from quire.models.quantization import Quantization, read_quantization
from quire.models.rope import RopeConfig, rope_from_config, rope_from_gguf

Metadata = Mapping[str, Any]


class CheckpointSource(Protocol):
    """An open checkpoint, as `weights` gives it."""

    @property
    def container(self) -> str: ...  # "gguf", "safetensors", or "dummy": no tensors, those of safetensors are made up
    @property
    def metadata(self) -> Metadata: ...  # GGUF's key-value pairs, or the content of config.json
    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The numbers of one model. Everything an architecture's file may look at while it draws."""

    num_layers: int
    hidden: int
    ffn: int  # width of the feed-forward block
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float
    max_context: int
    rope: RopeConfig
    windows: tuple[int | None, ...]  # per layer: how many tokens attention sees; None: all
    tied: bool  # the head is the embedding table
    eos_ids: tuple[int, ...] = ()
    biased: frozenset[str] = frozenset()  # words of linears whose bias config.json promises
    initial_spread: float = 0.02  # standard deviation of the weights before training
    quantization: Quantization | None = None  # of safetensors; GGUF says it tensor by tensor

    def sizes(self) -> dict[str, int]:
        """The words in which names.py states shapes."""
        return {
            "vocab": self.vocab_size,
            "hidden": self.hidden,
            "ffn": self.ffn,
            "q": self.num_heads * self.head_dim,
            "kv": self.num_kv_heads * self.head_dim,
            "head_dim": self.head_dim,
        }


def read_config(checkpoint: CheckpointSource, defaults: Metadata) -> ModelConfig:
    """`defaults` are the architecture's own, for keys that its config.json may leave out."""
    if checkpoint.container == "gguf":
        return _from_gguf(checkpoint)
    return _from_config_json({**defaults, **checkpoint.metadata})


def _from_config_json(c: Metadata) -> ModelConfig:
    if (act := c.get("hidden_act", "silu")) not in ("silu", "swish"):
        raise UnsupportedModel(f"The activation function {act!r} is not supported: only silu is.")
    num_layers, num_heads = _require(c, "num_hidden_layers"), _require(c, "num_attention_heads")
    hidden, max_context = _require(c, "hidden_size"), _require(c, "max_position_embeddings")
    head_dim = int(c.get("head_dim") or hidden // num_heads)
    return ModelConfig(
        num_layers=num_layers,
        hidden=hidden,
        ffn=_require(c, "intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=int(c.get("num_key_value_heads") or num_heads),
        head_dim=head_dim,
        vocab_size=_require(c, "vocab_size"),
        norm_eps=float(c.get("rms_norm_eps", 1e-6)),
        max_context=max_context,
        rope=rope_from_config(c, head_dim, max_context),
        windows=_windows(c, num_layers),
        tied=bool(c.get("tie_word_embeddings", False)),
        eos_ids=_ids(c.get("eos_token_id")),
        biased=_biased(c),
        initial_spread=float(c.get("initializer_range", 0.02)),
        quantization=read_quantization(c.get("quantization_config")),
    )


def _windows(c: Metadata, num_layers: int) -> tuple[int | None, ...]:
    """Mistral has one window for all layers, or null. Qwen has a switch, and full attention in the first layers."""
    window = c.get("sliding_window")
    if not window or c.get("use_sliding_window") is False:
        return (None,) * num_layers
    types = c.get("layer_types")
    if types is None:
        first = int(c.get("max_window_layers", 0)) if "use_sliding_window" in c else 0
        types = ["sliding_attention" if i >= first else "full_attention" for i in range(num_layers)]
    known = {"sliding_attention": int(window), "full_attention": None}
    if unknown := set(types) - set(known):
        raise UnsupportedModel(f"Layers of the type {', '.join(sorted(unknown))} are not supported.")
    return tuple(known[kind] for kind in types)


def _biased(c: Metadata) -> frozenset[str]:
    attention = {"attn.q", "attn.k", "attn.v", "attn.out"} if c.get("attention_bias") else set()
    mlp = {"mlp.gate", "mlp.up", "mlp.down"} if c.get("mlp_bias") else set()
    return frozenset(attention | mlp)


def _from_gguf(checkpoint: CheckpointSource) -> ModelConfig:
    metadata, arch = checkpoint.metadata, checkpoint.metadata["general.architecture"]
    c = {key.removeprefix(f"{arch}."): metadata[key] for key in metadata if key.startswith(f"{arch}.")}
    hidden, num_heads = _require(c, "embedding_length"), _require(c, "attention.head_count")
    num_layers, max_context = _require(c, "block_count"), _require(c, "context_length")
    head_dim = int(c.get("attention.key_length", hidden // num_heads))
    if int(c.get("attention.value_length", head_dim)) != head_dim:
        raise UnsupportedModel("Keys and values of different sizes are not supported.")
    if "token_embd.weight" not in checkpoint.tensors:
        raise UnsupportedModel("The file has no tensor token_embd.weight: it is not a whole language model.")
    return ModelConfig(
        num_layers=num_layers,
        hidden=hidden,
        ffn=_require(c, "feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=_require(c, "attention.head_count_kv") if "attention.head_count_kv" in c else num_heads,
        head_dim=head_dim,
        # the table may have more rows than the tokenizer has tokens, and it is what the logits are made of
        vocab_size=checkpoint.tensors["token_embd.weight"].shape[0],
        norm_eps=float(c["attention.layer_norm_rms_epsilon"]),
        max_context=max_context,
        rope=rope_from_gguf(c, head_dim, max_context),
        windows=_gguf_windows(c, num_layers),
        tied="output.weight" not in checkpoint.tensors,
        eos_ids=_ids([metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]),
    )


def _gguf_windows(c: Metadata, num_layers: int) -> tuple[int | None, ...]:
    """One window for all layers, unless the file says which ones. Zero means none."""
    window = int(c.get("attention.sliding_window", 0)) or None
    pattern = c.get("attention.sliding_window_pattern", [True] * num_layers)
    if isinstance(pattern, int | float) or len(pattern) != num_layers:
        raise UnsupportedModel(f"The sliding window pattern {pattern!r} does not say which layers have a window.")
    return tuple(window if slides else None for slides in pattern)


def _require(c: Metadata, key: str) -> int:
    """A number that every model has. GGUF can state one per layer; we take those that are all the same."""
    if c.get(key) is None:
        raise UnsupportedModel(f"The model's configuration does not say {key!r}.")
    numbers = {int(n) for n in c[key]} if hasattr(c[key], "__len__") else {int(c[key])}
    if len(numbers) != 1:
        raise UnsupportedModel(f"Layers that differ in {key!r} are not supported.")
    return numbers.pop()


def _ids(value: Any) -> tuple[int, ...]:
    """None, one id, or several, some of which may be None: each once, in order."""
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(dict.fromkeys(int(v) for v in values if v is not None))
