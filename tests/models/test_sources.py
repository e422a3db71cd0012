"""Encoder-decoder models: logits are those of transformers, whatever sources and texts share a step."""

from __future__ import annotations

import numpy as np
import pytest

from quire.models.draw import draw
from quire.ops.registry import relative_error
from tests.models.sources import KINDS, SourceSession, SourceToy, make_source_toy, random_source
from tests.models.toys import MemoryCheckpoint

pytestmark = pytest.mark.device
LENGTH = {"whisper": 100}  # frames of a source; others are counted in tokens
TEXTS = ([3, 9, 17, 40, 5], [3, 8], [3, *range(20, 60)])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("fuse", [False, True])
def test_logits_are_those_of_transformers(name: str, fuse: bool):
    toy = make_source_toy(name)
    session = SourceSession(toy.draw(), fuse=fuse)
    sources = [random_source(name, LENGTH.get(name, 5 + 31 * seed), seed) for seed in range(2)]
    for number, source in enumerate(sources):
        session.encode(number, source)
    texts = [(0, TEXTS[0]), (1, TEXTS[1]), (0, TEXTS[2])]
    together = session.logits(*texts)
    for (number, tokens), found in zip(texts, together, strict=True):
        assert relative_error(found, toy.expected_logits(sources[number], tokens)) < 1e-4
    alone = [session.logits(text)[0] for text in texts]
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("name", ["t5", "t5-v1.1"])
def test_a_gguf_file_gives_the_same_logits(name: str):
    toy = make_source_toy(name)
    session = SourceSession(draw(as_gguf(toy)))
    source = random_source(name, 40)
    session.encode(0, source)
    (found,) = session.logits((0, TEXTS[0]))
    assert relative_error(found, toy.expected_logits(source, TEXTS[0])) < 1e-4


def as_gguf(toy: SourceToy) -> MemoryCheckpoint:
    """As llama.cpp's converter writes it."""
    gguf = pytest.importorskip("gguf")
    c = toy.torch_model.config
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.T5, max(c.num_layers, c.num_decoder_layers))
    tensors, stored = {}, toy.checkpoint.tensors
    is_tied = c.scale_decoder_outputs  # files of models without this scale have a head of their own
    for key, tensor in stored.items():
        if key.endswith("embed_tokens.weight") or (key == "lm_head.weight" and is_tied):
            continue
        stem, _, kind = key.rpartition(".")
        assert names.get_name(stem), key
        tensors[f"{names.get_name(stem)}.{kind}"] = tensor
    keys = {
        "context_length": 512, "embedding_length": c.d_model, "feed_forward_length": c.d_ff,
        "block_count": c.num_layers, "decoder_block_count": c.num_decoder_layers, "attention.head_count": c.num_heads,
        "attention.key_length": c.d_kv, "attention.value_length": c.d_kv, "decoder_start_token_id": 0,
        "attention.layer_norm_epsilon": c.layer_norm_epsilon, "attention.layer_norm_rms_epsilon": c.layer_norm_epsilon,
        "attention.relative_buckets_count": c.relative_attention_num_buckets,
    }  # fmt: skip
    metadata = {"general.architecture": "t5", **{f"t5.{key}": value for key, value in keys.items()}}
    return MemoryCheckpoint("gguf", metadata, tensors)
