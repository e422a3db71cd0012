"""Toy folders made by sentence-transformers: embedders with prompts, dense layers and norms, and cross-encoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WORDS = (  # noqa: SIM905
    "the a of is in on city river mountain capital castle bridge museum winter summer red blue green old new tall deep "
    "north south cold warm famous small large near far query document what where which who"
).split()
VOCAB = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *WORDS,
    *(f"number{n}" for n in range(300)),
    "##s",
    "!",
    "?",
    ":",
]
SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
         "max_position_embeddings": 64, "vocab_size": len(VOCAB)}  # fmt: skip


def _randomize(model: Any, seed: int) -> None:
    import torch

    torch.manual_seed(seed)
    for each in model.parameters():
        each.data = torch.randn_like(each) * (0.2 if each.ndim == 1 else 0.3) + (1.0 if each.ndim == 1 else 0.0)


def _write_model(kind: str, folder: Path, seed: int, **config: Any) -> Path:
    import transformers

    model = getattr(transformers, kind)(transformers.BertConfig(**SIZES, **config)).eval()
    _randomize(model, seed)
    model.save_pretrained(folder)
    tokenizer = transformers.BertTokenizer(vocab={word: i for i, word in enumerate(VOCAB)}, model_max_length=64)
    tokenizer.save_pretrained(folder)
    return folder


def write_embedder(folder: Path, *, dense: bool = True, pooling: str = "mean", normalizes: bool = True) -> Path:
    """An embedder with prompts; returns its folder."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules as models

    plain = _write_model("BertModel", folder / "plain", seed=1)
    parts = [models.Transformer(str(plain), max_seq_length=40), models.Pooling(48, pooling_mode=pooling)]
    if dense:
        parts.append(models.Dense(48, 32))
        _randomize(parts[-1], seed=2)
    parts += [models.Normalize()] if normalizes else []
    made = SentenceTransformer(modules=parts, device="cpu", prompts={"query": "query: ", "document": "document: "})
    made.save(str(folder / "whole"))
    return folder / "whole"


def write_cross_encoder(folder: Path, num_labels: int = 1) -> Path:
    """A cross-encoder; returns its folder."""
    return _write_model("BertForSequenceClassification", folder, seed=3, num_labels=num_labels)
