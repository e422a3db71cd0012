"""GGUF files of encoders, with the names of the `gguf` package and what llama.cpp's converter does with the tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from quire.models.draw import draw
from quire.text.tokenizer import Tokenizer
from quire.types.kinds import PoolKind
from tests.models.encoders import EncoderToy, make_encoder, some_ids
from tests.models.test_encoders import assert_alike, pooled_by_references
from tests.models.toys import MemoryCheckpoint, as_tensors

pytestmark = pytest.mark.device
gguf = pytest.importorskip("gguf")

ARCHITECTURES = {
    "bert": "BERT",
    "xlm-roberta": "BERT",
    "xlm-roberta-classifier": "BERT",
    "nomic_bert": "NOMIC_BERT",
    "jina_bert": "JINA_BERT_V2",
    "modernbert": "MODERN_BERT",
    "embedding_gemma": "GEMMA_EMBEDDING",
}
POOLING = {"mean": 1, "cls": 2, "last": 3}


def to_gguf(toy: EncoderToy, name: str) -> MemoryCheckpoint:
    c = toy.model.config
    arch = gguf.MODEL_ARCH[ARCHITECTURES[name]]
    prefix = gguf.MODEL_ARCH_NAMES[arch]
    names = gguf.get_tensor_name_map(arch, c.num_hidden_layers)
    offset = 2 if "xlm" in name else 0
    keys: dict[str, Any] = {
        "block_count": c.num_hidden_layers,
        "context_length": c.max_position_embeddings - offset,
        "embedding_length": c.hidden_size,
        "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_attention_heads,
        "attention.causal": False,
        "pooling_type": 4 if "classifier" in name else POOLING[toy.case.pooling],
    }
    if "gemma" in name:
        keys |= {"attention.layer_norm_rms_epsilon": c.rms_norm_eps, "attention.head_count_kv": c.num_key_value_heads}
        keys |= {"attention.key_length": c.head_dim, "attention.value_length": c.head_dim}
        keys |= {"attention.sliding_window": 32, "attention.sliding_window_pattern": [1, 1, 0]}
        keys |= {"rope.freq_base": 1000000.0}
    else:
        keys |= {"attention.layer_norm_epsilon": getattr(c, "layer_norm_eps", None) or c.norm_eps}
    if "nomic" in name:
        keys |= {"rope.freq_base": 1000.0}
    if "modern" in name:
        keys |= {"rope.freq_base": 160000.0, "attention.sliding_window": c.local_attention}
    metadata = {"general.architecture": prefix, **{f"{prefix}.{key}": value for key, value in keys.items()}}
    metadata["tokenizer.ggml.token_type_count"] = getattr(c, "type_vocab_size", 0)
    arrays = {}
    for key, array in load_file(toy.folder / "model.safetensors").items():
        if ("pooler" in key and "xlm" in name) or key.endswith("position_ids"):
            continue
        if offset and "position_embeddings" in key:
            array = array[offset:]
        if "gemma" in name and key.endswith("norm.weight"):
            array = array + 1
        stem, _, kind = key.rpartition(".")
        if name in ("bert", "jina_bert") and stem.startswith("pooler"):
            continue
        plain = stem.removeprefix("bert.").removeprefix("roberta.")
        found = next((each for each in (stem, plain, f"model.{plain}") if names.get_name(each)), None)
        assert found, key
        arrays[f"{names.get_name(found)}.{kind}"] = array
    return MemoryCheckpoint("gguf", metadata, as_tensors(arrays))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_gguf_file_of_an_encoder_gives_the_same_vectors(name):
    toy, tokens = make_encoder(name), some_ids(70)
    checkpoint = to_gguf(toy, name)
    model = draw(checkpoint)
    assert_alike(pooled_by_references(model, tokens), toy.expected(tokens))


def test_dense_layers_of_a_gguf_file_follow_the_pooling():
    toy, tokens = make_encoder("embedding_gemma"), some_ids(20)
    checkpoint = to_gguf(toy, "embedding_gemma")
    rng = np.random.default_rng(0)
    dense = {f"dense_{n}.weight": rng.standard_normal(s).astype(np.float32) for n, s in ((2, (80, 48)), (3, (48, 80)))}
    model = draw(MemoryCheckpoint("gguf", checkpoint.metadata, {**checkpoint.tensors, **as_tensors(dense)}))
    assert model.pool is PoolKind.MEAN
    expected = dense["dense_3.weight"] @ (dense["dense_2.weight"] @ toy.expected(tokens))
    assert_alike(pooled_by_references(model, tokens), expected)


def wordpiece_metadata() -> dict[str, Any]:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁hello", "▁world", "s", "▁un", "able", "▁!", "▁a"]
    ids = {"unknown": 1, "cls": 2, "seperator": 3, "padding": 0, "mask": 4}
    return {
        "general.architecture": "bert",
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [3, 3, 3, 3, 3, *[1] * 7],
        **{f"tokenizer.ggml.{name}_token_id": value for name, value in ids.items()},
    }


def test_a_wordpiece_vocabulary_of_gguf_encodes_as_bert_does():
    transformers = pytest.importorskip("transformers")
    written = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s", "un", "##able", "!", "a"]
    reference = transformers.BertTokenizer(vocab={piece: i for i, piece in enumerate(written)})
    tokenizer = Tokenizer.from_gguf(wordpiece_metadata())
    for text in ("Hello worlds!", "unable", "strange", "[CLS] hello", "Héllo  wörld"):
        expected = reference(text)["input_ids"] if "[" not in text else None
        assert expected is None or tokenizer.encode(text) == expected, text
    assert tokenizer.encode("hello [SEP]")[1:-1].count(3) == 0, "a text cannot name a special token"
    assert tokenizer.pair_frame == ((2,), (3,), (3,), True)
    assert tokenizer.decode(tokenizer.encode("Hello worlds!")) == "hello worlds!"


def test_a_gguf_file_of_a_decoder_with_a_head_of_classes_computes_their_logits():
    toy, tokens = make_encoder("qwen3-causal"), some_ids(20)
    c, arch = toy.model.config, gguf.MODEL_ARCH.QWEN3
    names = gguf.get_tensor_name_map(arch, c.num_hidden_layers)
    arrays = {}
    for key, array in load_file(toy.folder / "model.safetensors").items():
        stem, _, kind = key.rpartition(".")
        arrays[f"{names.get_name(stem)}.{kind}"] = array
    arrays["cls.output.weight"] = arrays["token_embd.weight"][[9, 4]]  # as llama.cpp's converter makes it
    keys = {
        "block_count": c.num_hidden_layers, "context_length": c.max_position_embeddings, "pooling_type": 4,
        "embedding_length": c.hidden_size, "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_attention_heads, "attention.head_count_kv": c.num_key_value_heads,
        "attention.key_length": c.head_dim, "attention.value_length": c.head_dim, "rope.freq_base": 10000.0,
        "attention.layer_norm_rms_epsilon": c.rms_norm_eps, "classifier.output_labels": ("yes", "no"),
    }  # fmt: skip
    metadata = {"general.architecture": "qwen3", **{f"qwen3.{key}": value for key, value in keys.items()}}
    model = draw(MemoryCheckpoint("gguf", metadata, as_tensors(arrays)))
    assert (model.pool, "logits" in model.graph.outputs) == (PoolKind.LAST, False)
    import torch

    with torch.no_grad():
        expected = toy.model(torch.tensor([tokens])).logits[0, -1, [9, 4]].numpy()
    assert_alike(pooled_by_references(model, tokens), expected)
