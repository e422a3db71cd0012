"""Toys of encoder-decoder models, made by transformers, and a driver of our graphs for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from quire.devices import base
from quire.models.draw import DrawnModel, draw
from quire.ops.batch import Batch, RowPart
from tests.models.toys import MemoryCheckpoint, as_tensors

VOCAB = 160
WHISPER = {"vocab_size": VOCAB, "d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
           "decoder_attention_heads": 2, "encoder_ffn_dim": 96, "decoder_ffn_dim": 128, "num_mel_bins": 24,
           "max_source_positions": 50, "max_target_positions": 120, "pad_token_id": 1, "bos_token_id": 1,
           "eos_token_id": 2, "decoder_start_token_id": 3, "suppress_tokens": None,
           "begin_suppress_tokens": None}  # fmt: skip
T5 = {"vocab_size": VOCAB, "d_model": 48, "d_kv": 16, "d_ff": 80, "num_layers": 2, "num_decoder_layers": 3,
      "num_heads": 4, "relative_attention_num_buckets": 12, "relative_attention_max_distance": 20,
      "decoder_start_token_id": 0}  # fmt: skip
FAR = {"relative_attention_max_distance": 128}  # that of GGUF files, which have no key for it
BART = {"vocab_size": VOCAB, "d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 96, "decoder_ffn_dim": 128, "max_position_embeddings": 128,
        "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None}  # fmt: skip
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "whisper": ("WhisperForConditionalGeneration", WHISPER),
    "t5": ("T5ForConditionalGeneration", {**T5, **FAR}),
    "t5-v1.1": (
        "T5ForConditionalGeneration",
        {**T5, **FAR, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "mt5": ("MT5ForConditionalGeneration", T5),
    "bart": ("BartForConditionalGeneration", BART),
    "bart-scaled": ("BartForConditionalGeneration", {**BART, "scale_embedding": True, "activation_function": "relu"}),
    "marian": ("MarianMTModel", {**BART, "scale_embedding": True, "activation_function": "swish"}),
}


@dataclass(frozen=True)
class SourceToy:
    """A transformers model, and the same as an open checkpoint."""

    torch_model: Any
    checkpoint: MemoryCheckpoint

    def draw(self) -> DrawnModel:
        return draw(self.checkpoint)

    def expected_logits(self, source: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
        """transformers' logits of a decoder's tokens, float32 [len(tokens), vocab]."""
        import torch

        ids = torch.tensor([list(tokens)])
        is_sound = source.dtype == np.float32
        given = (
            {"input_features": torch.tensor(source.T[None])} if is_sound else {"input_ids": torch.tensor(source[None])}
        )
        with torch.no_grad():
            return self.torch_model(**given, decoder_input_ids=ids).logits[0].numpy()


@cache
def make_source_toy(name: str) -> SourceToy:
    """A toy with random weights, norms, biases and tables."""
    import torch
    import transformers

    kind, settings = KINDS[name]
    torch.manual_seed(0)
    model_class = getattr(transformers, kind)
    model = model_class(model_class.config_class(**settings)).eval()
    for key, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_floating_point() and not (name == "marian" and "embed_positions" in key):
            tensor.data = torch.randn_like(tensor) * 0.15 + (tensor.ndim == 1) * 0.3
    arrays = {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
    metadata = {**model.config.to_dict(), "architectures": [kind]}
    model.tie_weights()
    return SourceToy(model, MemoryCheckpoint("safetensors", metadata, as_tensors(arrays)))


def random_source(name: str, length: int, seed: int = 0) -> np.ndarray:
    """Features of so many frames, or token ids."""
    rng = np.random.default_rng(seed)
    if name == "whisper":
        return rng.standard_normal((length, WHISPER["num_mel_bins"])).astype(np.float32)
    return rng.integers(3, VOCAB, length)


class SourceSession:
    """A model lowered for a device: encodes sources, then runs steps of texts that read them."""

    def __init__(self, model: DrawnModel, device: str | base.Device = "cpu", fuse: bool = True) -> None:
        assert model.source is not None
        self.model = model
        options = base.LoweringOptions(dtype="f32", fuse=fuse)
        most = model.source.max_tokens
        self.blocks_of_source = -(-most // 16)
        limits = base.Limits(max_tokens=128, max_rows=4, max_logits=128, max_blocks=20, num_blocks=80, kv_dtype="f32",
                             num_source_blocks=4 * self.blocks_of_source)  # fmt: skip
        opened = base.open(device) if isinstance(device, str) else device
        lower = opened.lower
        self.decoder = lower(model.graph, model.weights, limits, options)
        options = replace(options, samples=False)
        wide = base.Limits(max_tokens=most, max_rows=1, max_logits=most, max_blocks=-(-most // 16),
                           num_blocks=-(-most // 16), kv_dtype="f32")  # fmt: skip
        self.encoder = lower(model.source.encoder, model.source.weights, wide, options)
        self.pairs = lower(model.source.pairs, model.source.weights, wide, options)
        self.lengths: dict[int, int] = {}

    def encode(self, number: int, source: np.ndarray) -> np.ndarray:
        """Store a source in the blocks of this number; return the encoder's output."""
        is_sound = source.dtype == np.float32
        features = source.reshape(len(source) // 2, -1) if is_sound else None
        length = len(source) if features is None else len(features)
        ids = source.tolist() if features is None else [0] * length
        batch = Batch.of([RowPart(ids, 0, list(range(-(-length // 16))), length)], 16)
        hidden = self.encoder.launch(replace(batch, features=features)).result().logits
        zeros = Batch.of([RowPart([0] * length, 0, list(range(-(-length // 16))), length)], 16)
        pairs = self.pairs.launch(replace(zeros, features=hidden)).result().logits
        first = number * self.blocks_of_source * 16
        self.decoder.store_source(np.arange(first, first + length, dtype=np.int32), pairs)
        self.lengths[number] = length
        return hidden

    def part(self, number: int, tokens: Sequence[int], row: int) -> RowPart:
        first = number * self.blocks_of_source
        source = (self.lengths[number], list(range(first, first + self.blocks_of_source)))
        return RowPart(list(tokens), 0, list(range(20 * row, 20 * row + 20)), len(tokens), source=source)

    def logits(self, *texts: tuple[int, Sequence[int]]) -> list[np.ndarray]:
        """The logits of all tokens of some texts, each of a source, in one step."""
        parts = [self.part(number, tokens, row) for row, (number, tokens) in enumerate(texts)]
        found = self.decoder.launch(Batch.of(parts, 16)).result().logits
        ends = np.cumsum([len(tokens) for _, tokens in texts])[:-1]
        return np.split(found, ends)
