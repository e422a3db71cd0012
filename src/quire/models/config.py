"""What a checkpoint says about its model, in one set of words, whether it came with config.json or as GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from quire.graph.weight import StoredTensor, Weight
from quire.models.errors import UnsupportedModel
from quire.models.keys import ConfigKeys, KeySet
from quire.models.quantization import Quantization, read_quantization
from quire.models.rope import ALL, CHUNKED, FULL, SLIDING, RopeConfig, ropes_from_config, ropes_from_gguf
from quire.models.values import MAX_HEAD_DIM, MAX_LAYERS, MAX_SHOWN, Values, brief
from quire.types.kinds import PoolKind

Metadata = Mapping[str, Any]

SLOPES = "slopes"  # the weight that `draw` computes for ALiBi
ATTENTION = ("attn.q", "attn.k", "attn.v", "attn.out")  # words of linears
QKV, MLP = ATTENTION[:3], ("mlp.gate", "mlp.up", "mlp.down")
# config.json's names of the activations of feed-forward blocks -> those of our op
_ACTIVATIONS = {
    **{"silu": "silu", "swish": "silu", "relu": "relu", "relu2": "relu2", "gelu": "gelu"},
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_tanh"),
}
KEY_LENGTH = "attention.key_length"
_GGUF_END_TOKENS = tuple(f"tokenizer.ggml.{kind}_token_id" for kind in ("eos", "eot", "eom"))


class CheckpointSource(Protocol):
    """An open checkpoint, as `weights` gives it."""

    @property
    def container(self) -> str: ...  # "gguf", "safetensors", or "dummy": no tensors, those of safetensors are made up
    @property
    def metadata(self) -> Metadata: ...  # GGUF's key-value pairs, or the content of config.json
    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The numbers that every decoder has. An architecture with more of them has a subclass that reads them."""

    num_layers: int
    hidden: int
    ffn: int  # width of the feed-forward block; 0: there is none
    num_heads: int  # of attention; 0, as the next two: no layer has it
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float
    max_context: int
    ropes: Mapping[str, RopeConfig]  # by layer type, or one under ALL; empty: no rotary positions
    layer_types: tuple[str, ...]  # per layer: FULL or SLIDING, or a type of the architecture's own
    windows: tuple[int | None, ...]  # per layer: how many tokens attention reads; None: all
    tied: bool  # the head is the embedding table
    eos_ids: tuple[int, ...] = ()
    biased: frozenset[str] = frozenset()  # words of linears whose bias config.json declares
    alibi: float = 0.0  # factor of the slopes by which scores fall with the distance (SLOPES); 0: they do not
    activation: str = "silu"  # of the feed-forward block, where the architecture reads it
    num_labels: int = 1  # of a head of classes
    init_std: float = 0.02  # standard deviation of the weights before training
    extra_layers: int = 0  # behind the last one, for drafting further tokens (MTP); they are not drawn
    quantization: Quantization | None = None  # of safetensors; GGUF says it tensor by tensor

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        """Make the configuration from what all decoders have, and from keys that only this one has."""
        return cls(**base)

    def complete(self, weights: dict[str, Weight]) -> Self:
        """The configuration once the weights are bound.

        An architecture may add weights that it computes, and replace numbers that are stored as tensors.
        """
        return self

    @property
    def classifier_pool(self) -> PoolKind:
        """How a model with a head of classes pools: a decoder by its last token, which has read all others."""
        return PoolKind.LAST

    @property
    def longest_context(self) -> int:
        """The longest context that may be asked for: a dynamic rope stretches the trained one by its factor."""
        return max(self.max_context, *(int(rope.trained_context * rope.factor) for rope in self.ropes.values()), 0)

    def rope_of(self, layer: int) -> str:
        """The key of a layer's rope in `ropes`."""
        return self.layer_types[layer] if self.layer_types[layer] in self.ropes else ALL

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        """The words in which architectures state shapes; with a layer, those of that layer."""
        return {
            "one": 1,
            "vocab": self.vocab_size,
            "hidden": self.hidden,
            "two_hidden": 2 * self.hidden,
            "ffn": self.ffn,
            "heads": self.num_heads,
            "kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "q": self.num_heads * self.head_dim,
            "kv": self.num_kv_heads * self.head_dim,
            "positions": self.max_context,
            "labels": self.num_labels,
        }


def read_config(checkpoint: CheckpointSource, keys: ConfigKeys, kind: type[ModelConfig] = ModelConfig) -> ModelConfig:
    """Read a checkpoint's configuration by the keys of its architecture. Every error names the key that is wrong."""
    if checkpoint.container == "gguf":
        return _from_gguf(checkpoint, keys.gguf, kind)
    return _from_config_json(checkpoint.metadata, keys.config, kind)


def _from_config_json(given: Metadata, keys: KeySet, kind: type[ModelConfig]) -> ModelConfig:
    c = keys.values(given, architecture=_named(given.get("architectures")))
    num_layers = c.size("num_hidden_layers", _num_listed(given, keys), MAX_LAYERS)
    hidden, max_context = c.size("hidden_size"), c.size("max_position_embeddings")
    has_heads, has_ffn = "num_attention_heads" in keys.read, "intermediate_size" in keys.read
    num_heads = c.size("num_attention_heads") if has_heads else 0
    heads = ("hidden_size", "num_attention_heads", "num_key_value_heads")
    head_dim = _head_dim(c, *heads, keys.head_dim) if has_heads else 0
    layer_types, windows = _windows(c, given, keys, num_layers)
    base: dict[str, Any] = {
        "num_layers": num_layers,
        "hidden": hidden,
        "ffn": c.size("intermediate_size", 4 * hidden if "intermediate_size" in keys.spelling else None)
        if has_ffn
        else 0,
        "num_heads": num_heads,
        "num_kv_heads": c.size("num_key_value_heads", num_heads) if has_heads else 0,
        "head_dim": head_dim,
        "vocab_size": c.size("vocab_size"),
        "norm_eps": c.fraction("rms_norm_eps", 1e-6),
        "max_context": max_context,
        "ropes": ropes_from_config(c, head_dim, max_context, keys.rope) if "rope_theta" in keys.read else {},
        "layer_types": layer_types,
        "windows": windows,
        "tied": c.flag("tie_word_embeddings"),
        "eos_ids": c.token_ids("eos_token_id"),
        "biased": _biased(c, keys),
        "activation": _activation(c),
        "num_labels": _num_labels(given),
        "init_std": c.fraction("initializer_range", 0.02),
        "extra_layers": c.integer_or_none("num_nextn_predict_layers") or 0,
        "quantization": read_quantization(c.mapping("quantization_config")),
    }
    return kind.read(base, c, is_gguf=False)


def _num_labels(given: Metadata) -> int:
    """The number of classes: of their names, or as given; by default 2."""
    named, count = given.get("id2label"), given.get("num_labels")
    return len(named) if isinstance(named, Mapping) and named else count if isinstance(count, int) and count > 0 else 2


def _num_listed(given: Metadata, keys: KeySet) -> int | None:
    """The number of layers of a file that may list them instead, in a list or as letters of a text."""
    lists = [given[key] for key in keys.layer_lists if isinstance(given.get(key), list | tuple | str)]
    if keys.layer_lists and not lists:
        raise UnsupportedModel(f"The model's configuration lacks '{keys.layer_lists[0]}'.")
    return len(lists[0]) if lists else None


def _head_dim(c: Values, hidden: str, heads: str, kv_heads: str, head_dim: str) -> int:
    """The size of a head, which rope turns in two halves. The arguments are keys."""
    num_heads = c.uniform_size(heads)
    num_kv_heads = c.uniform_size(kv_heads, num_heads)
    if num_heads % num_kv_heads:
        raise UnsupportedModel(f"{num_heads} query heads ({heads}) cannot share {num_kv_heads} key heads ({kv_heads}).")
    size = c.uniform_size(hidden)
    if head_dim not in c and size % num_heads:
        raise UnsupportedModel(
            f"{hidden}, {size}, is not a multiple of the number of heads, {num_heads} ({heads}), and {head_dim} is not "
            "set."
        )
    found = c.size(head_dim, size // num_heads, MAX_HEAD_DIM)
    if found % 2 or found > MAX_HEAD_DIM:
        raise UnsupportedModel(
            f"Heads of {found} numbers ({head_dim}, or {hidden} for each of {heads}) are not supported: rope needs an "
            f"even number up to {MAX_HEAD_DIM:,}."
        )
    return found


def _windows(
    c: Values, given: Metadata, keys: KeySet, num_layers: int
) -> tuple[tuple[str, ...], tuple[int | None, ...]]:
    """Mistral has one window for all layers, or null. Qwen has a switch, and full attention in the first layers.

    `sliding_window_pattern` gives every so many-th layer full attention. `layer_types` decide in an architecture that
    reads them; in others they must say the same as the other keys.
    """
    is_on = c.flag("use_sliding_window") or "use_sliding_window" not in keys.read
    window = c.size_or_none("sliding_window") if is_on else None
    first_layer = c.integer("max_window_layers") if window and "max_window_layers" in keys.read else 0
    kinds = Values(given).texts("layer_types")
    period = c.size_or_none("sliding_window_pattern") if window and kinds is None else None
    periodic = _periodic(window, period, num_layers)
    windows = tuple(each if i >= first_layer else None for i, each in enumerate(periodic))
    if kinds is None:
        return tuple(FULL if window is None else SLIDING for window in windows), windows
    known = {FULL: None, "attention": None, SLIDING: window}
    known |= {CHUNKED: None} if "attention_chunk_size" in keys.read else {}  # the architecture reads its chunks
    known |= dict.fromkeys(keys.layer_types)
    if unknown := set(kinds) - set(known):
        raise UnsupportedModel(f"layer_types has {', '.join(sorted(map(brief, unknown)))}, which is not supported.")
    if len(kinds) != num_layers:
        raise UnsupportedModel(f"layer_types has {len(kinds)} entries; by num_hidden_layers there are {num_layers}.")
    if SLIDING in kinds and window is None:
        raise UnsupportedModel("layer_types has sliding_attention, and the model's configuration sets no window.")
    listed = tuple(known[kind] for kind in kinds)
    if "layer_types" not in keys.read and listed != windows:
        raise UnsupportedModel(
            f"layer_types has full_attention, and by sliding_window all layers have a window of {window} tokens."
        )
    return tuple(FULL if each == "attention" else each for each in kinds), listed


def _periodic(window: int | None, period: int | None, num_layers: int) -> tuple[int | None, ...]:
    """Return the window of every layer: none in every `period`-th, or in no layer without a period."""
    return tuple(window if not period or (i + 1) % period else None for i in range(num_layers))


def _biased(c: Values, keys: KeySet) -> frozenset[str]:
    return frozenset(word for flag, words in keys.biases.items() if c.flag(flag) for word in words)


def _activation(c: Values) -> str:
    name = c.text("hidden_act", "silu")
    if name not in _ACTIVATIONS:
        raise c.refusal("hidden_act", f"one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _from_gguf(checkpoint: CheckpointSource, keys: KeySet, kind: type[ModelConfig]) -> ModelConfig:
    metadata, arch = checkpoint.metadata, str(checkpoint.metadata.get("general.architecture"))
    prefix = f"{arch}."
    given = {key.removeprefix(prefix): metadata[key] for key in metadata if key.startswith(prefix)}
    given |= {key: metadata[key] for key in keys.read if key in metadata}  # a few keys have no architecture in front
    given |= {flag: tensor in checkpoint.tensors for flag, tensor in keys.tensors.items()}
    c = keys.values(given, architecture=arch, prefix=prefix)
    has_heads, has_ffn = "attention.head_count" in keys.read, "feed_forward_length" in keys.read
    hidden, num_heads = c.uniform_size("embedding_length"), c.uniform_size("attention.head_count") if has_heads else 0
    num_blocks, max_context = c.uniform_size("block_count", most=MAX_LAYERS), c.uniform_size("context_length")
    extra_layers = c.integer_or_none("nextn_predict_layers") or 0  # counted among the blocks
    if extra_layers >= num_blocks:
        raise c.refusal("nextn_predict_layers", f"less than {num_blocks}, the block_count")
    num_layers = num_blocks - extra_layers
    heads = ("embedding_length", "attention.head_count", "attention.head_count_kv")
    head_dim = _head_dim(c, *heads, keys.head_dim) if has_heads else 0
    if has_heads and keys.head_dim == KEY_LENGTH and c.size("attention.value_length", head_dim) != head_dim:
        raise c.refusal(
            "attention.value_length", f"{head_dim}, as keys and values of different sizes are not supported"
        )
    table = checkpoint.tensors.get("token_embd.weight")
    if table is None or not table.shape:
        raise UnsupportedModel("The file has no table token_embd.weight: it is not a whole language model.")
    ids = Values({key: metadata[key] for key in _GGUF_END_TOKENS if key in metadata})
    windows = _gguf_windows(c, keys, given, num_layers)
    eps = "attention.layer_norm_rms_epsilon"
    base: dict[str, Any] = {
        "num_layers": num_layers,
        "hidden": hidden,
        "ffn": c.uniform_size("feed_forward_length") if has_ffn else 0,
        "num_heads": num_heads,
        "num_kv_heads": c.uniform_size("attention.head_count_kv", num_heads) if has_heads else 0,
        "head_dim": head_dim,
        # the table may have more rows than the tokenizer has tokens, and the logits are as many as its rows
        "vocab_size": table.shape[0],
        "norm_eps": c.fraction(eps if eps in keys.read else "attention.layer_norm_epsilon"),
        "max_context": max_context,
        "ropes": ropes_from_gguf(c, head_dim, max_context, keys.rope) if "rope.freq_base" in keys.read else {},
        "layer_types": tuple(FULL if window is None else SLIDING for window in windows),
        "windows": windows,
        "tied": "output.weight" not in checkpoint.tensors,
        # no key has it: an architecture's default is that of its config.json files, such as the exact gelu of
        # GPT-NeoX and Falcon, where llama.cpp takes the tanh approximation
        "activation": _activation(c),
        "num_labels": len(given.get("classifier.output_labels") or ()) or 1,
        "extra_layers": extra_layers,
        "eos_ids": tuple(dict.fromkeys(each for key in _GGUF_END_TOKENS for each in ids.token_ids(key))),
    }
    return kind.read(base, c, is_gguf=True)


def _gguf_windows(c: Values, keys: KeySet, given: Metadata, num_layers: int) -> tuple[int | None, ...]:
    """One window for all layers, unless the file or the architecture says which ones. Zero means none."""
    window = c.integer_or_none("attention.sliding_window") or None
    key = "attention.sliding_window_pattern"
    pattern = given.get(key, keys.defaults.get(key, 0))
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern >= 0:
        return _periodic(window, pattern, num_layers)
    is_list = isinstance(pattern, list | tuple)
    if not is_list or len(pattern) != num_layers or not all(each in (0, 1) for each in pattern):
        raise UnsupportedModel(f"The sliding window pattern {brief(pattern)} does not say which layers have a window.")
    return tuple(window if slides else None for slides in pattern)


def _named(architectures: Any) -> str:
    """What messages call the model."""
    is_list = isinstance(architectures, list | tuple)
    return ", ".join(map(str, architectures))[:MAX_SHOWN] if is_list and architectures else "this architecture"
