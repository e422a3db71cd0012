"""A model's configuration in one set of names, read from config.json or from GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from quire.graph.weight import StoredTensor
from quire.models.errors import UnsupportedModel
from quire.models.keys import ConfigKeys, KeySet
from quire.models.quantization import Quantization, read_quantization
from quire.models.rope import RopeConfig, rope_from_config, rope_from_gguf
from quire.models.values import MAX_HEAD_DIM, MAX_LAYERS, MAX_SHOWN, Values, brief

Metadata = Mapping[str, Any]

_GGUF_END_TOKENS = tuple(f"tokenizer.ggml.{kind}_token_id" for kind in ("eos", "eot", "eom"))


class CheckpointSource(Protocol):
    """An open checkpoint, as `weights` returns it."""

    @property
    def container(self) -> str: ...  # "gguf", "safetensors", or "dummy": no tensors; random ones are made
    @property
    def metadata(self) -> Metadata: ...  # GGUF's metadata, or the content of config.json
    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The configuration of one model: everything that an architecture may use while it draws."""

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
    biased: frozenset[str] = frozenset()  # names of linears that have a bias, by config.json
    init_std: float = 0.02  # standard deviation of the weights before training
    quantization: Quantization | None = None  # of safetensors; in GGUF every tensor has its own format

    def sizes(self) -> dict[str, int]:
        """Return the sizes by the names that names.py uses in shapes."""
        return {
            "vocab": self.vocab_size,
            "hidden": self.hidden,
            "ffn": self.ffn,
            "q": self.num_heads * self.head_dim,
            "kv": self.num_kv_heads * self.head_dim,
            "head_dim": self.head_dim,
        }


def read_config(checkpoint: CheckpointSource, keys: ConfigKeys) -> ModelConfig:
    """Read the configuration with the architecture's keys. Every error names the wrong key."""
    if checkpoint.container == "gguf":
        return _from_gguf(checkpoint, keys.gguf)
    return _from_config_json(checkpoint.metadata, keys.config)


def _from_config_json(raw: Metadata, keys: KeySet) -> ModelConfig:
    c = keys.values(raw, architecture=_display_name(raw.get("architectures")))
    num_layers = c.size("num_hidden_layers", most=MAX_LAYERS)
    hidden, max_context = c.size("hidden_size"), c.size("max_position_embeddings")
    num_heads = c.size("num_attention_heads")
    num_kv_heads = c.size("num_key_value_heads", num_heads)
    head_dim = _head_dim(c, "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    return ModelConfig(
        num_layers=num_layers,
        hidden=hidden,
        ffn=c.size("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=c.size("vocab_size"),
        norm_eps=c.fraction("rms_norm_eps", 1e-6),
        max_context=max_context,
        rope=rope_from_config({key: raw[key] for key in raw if key in keys.read}, head_dim, max_context),
        windows=_windows(c, raw, keys, num_layers),
        tied=c.flag("tie_word_embeddings"),
        eos_ids=c.token_ids("eos_token_id"),
        biased=_biased(c),
        init_std=c.fraction("initializer_range", 0.02),
        quantization=read_quantization(c.mapping("quantization_config")),
    )


def _head_dim(c: Values, hidden: str, heads: str, kv_heads: str, head_dim: str) -> int:
    """Return the size of a head, which rope rotates in two halves. The arguments are keys."""
    num_heads = c.uniform_size(heads)
    num_kv_heads = c.uniform_size(kv_heads, num_heads)
    if num_heads % num_kv_heads:
        raise UnsupportedModel(f"{num_heads} query heads ({heads}) cannot share {num_kv_heads} key heads ({kv_heads}).")
    size = c.uniform_size(hidden)
    if head_dim not in c and size % num_heads:
        raise UnsupportedModel(f"{hidden}, {size}, is not a multiple of the number of heads, {num_heads} ({heads}).")
    dim = c.size(head_dim, size // num_heads, MAX_HEAD_DIM)
    if dim % 2 or dim > MAX_HEAD_DIM:
        raise UnsupportedModel(
            f"A head size of {dim} ({head_dim}, or {hidden} / {heads}) is not supported: rope needs an even number up "
            f"to {MAX_HEAD_DIM:,}."
        )
    return dim


def _windows(c: Values, raw: Metadata, keys: KeySet, num_layers: int) -> tuple[int | None, ...]:
    """Return the window of every layer.

    Mistral has one window for all layers, or null. Qwen has a switch, and full attention in the first layers. An
    architecture that reads `layer_types` follows them; in others they must agree with the other keys.
    """
    is_on = c.flag("use_sliding_window") or "use_sliding_window" not in keys.read
    window = c.size_or_none("sliding_window") if is_on else None
    first_layer = c.integer("max_window_layers") if window and "max_window_layers" in keys.read else 0
    windows = tuple(window if i >= first_layer else None for i in range(num_layers))
    kinds = Values(raw).texts("layer_types")
    if kinds is None:
        return windows
    known = {"full_attention": None, "attention": None, "sliding_attention": window}
    if unknown := set(kinds) - set(known):
        raise UnsupportedModel(f"layer_types has {', '.join(sorted(map(brief, unknown)))}, which is not supported.")
    if len(kinds) != num_layers:
        raise UnsupportedModel(f"layer_types has {len(kinds)} entries, but num_hidden_layers is {num_layers}.")
    if "sliding_attention" in kinds and window is None:
        raise UnsupportedModel("layer_types has sliding_attention, but the model's configuration sets no window.")
    listed = tuple(known[kind] for kind in kinds)
    if "layer_types" not in keys.read and listed != windows:
        raise UnsupportedModel(
            f"layer_types has full_attention, but sliding_window sets a window of {window} tokens for all layers."
        )
    return listed


def _biased(c: Values) -> frozenset[str]:
    attention = {"attn.q", "attn.k", "attn.v", "attn.out"} if c.flag("attention_bias") else set()
    mlp = {"mlp.gate", "mlp.up", "mlp.down"} if c.flag("mlp_bias") else set()
    return frozenset(attention | mlp)


def _from_gguf(checkpoint: CheckpointSource, keys: KeySet) -> ModelConfig:
    metadata, arch = checkpoint.metadata, str(checkpoint.metadata.get("general.architecture"))
    prefix = f"{arch}."
    raw = {key.removeprefix(prefix): metadata[key] for key in metadata if key.startswith(prefix)}
    c = keys.values(raw, architecture=arch, prefix=prefix)
    hidden, num_heads = c.uniform_size("embedding_length"), c.uniform_size("attention.head_count")
    num_layers, max_context = c.uniform_size("block_count", most=MAX_LAYERS), c.uniform_size("context_length")
    num_kv_heads = c.uniform_size("attention.head_count_kv", num_heads)
    heads = ("embedding_length", "attention.head_count", "attention.head_count_kv")
    head_dim = _head_dim(c, *heads, "attention.key_length")
    if c.size("attention.value_length", head_dim) != head_dim:
        raise c.refusal(
            "attention.value_length", f"{head_dim}, as keys and values of different sizes are not supported"
        )
    table = checkpoint.tensors.get("token_embd.weight")
    if table is None or not table.shape:
        raise UnsupportedModel("The file has no table token_embd.weight: it is not a whole language model.")
    ids = Values({key: metadata[key] for key in _GGUF_END_TOKENS if key in metadata})
    return ModelConfig(
        num_layers=num_layers,
        hidden=hidden,
        ffn=c.uniform_size("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        # the table may have more rows than the tokenizer has tokens; its rows determine the number of logits
        vocab_size=table.shape[0],
        norm_eps=c.fraction("attention.layer_norm_rms_epsilon"),
        max_context=max_context,
        rope=rope_from_gguf(raw, head_dim, max_context, prefix),
        windows=_gguf_windows(c, raw, num_layers),
        tied="output.weight" not in checkpoint.tensors,
        eos_ids=tuple(dict.fromkeys(each for key in _GGUF_END_TOKENS for each in ids.token_ids(key))),
    )


def _gguf_windows(c: Values, raw: Metadata, num_layers: int) -> tuple[int | None, ...]:
    """Return the window of every layer: one for all, unless a pattern lists them. Zero means none."""
    window = c.integer_or_none("attention.sliding_window") or None
    pattern = raw.get("attention.sliding_window_pattern", (True,) * num_layers)
    is_list = isinstance(pattern, list | tuple)
    if not is_list or len(pattern) != num_layers or not all(each in (0, 1) for each in pattern):
        raise UnsupportedModel(f"The sliding window pattern {brief(pattern)} does not say which layers have a window.")
    return tuple(window if slides else None for slides in pattern)


def _display_name(architectures: Any) -> str:
    """Return the name of the architecture for messages."""
    is_list = isinstance(architectures, list | tuple)
    return ", ".join(map(str, architectures))[:MAX_SHOWN] if is_list and architectures else "this architecture"
