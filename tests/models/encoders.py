"""Toys of encoders and of decoders that embed, made by transformers, as folders."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from quire.models.draw import DrawnModel, draw
from quire.weights.checkpoint import open_checkpoint

VOCAB = 131
SIZES = {"vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 3,
         "num_attention_heads": 6, "max_position_embeddings": 200}  # fmt: skip
KV = {"num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
LABELS = {"num_labels": 3}


@dataclass(frozen=True)
class EncoderCase:
    """A class of transformers, its configuration, and the pooling of its vectors."""

    kind: str
    config: dict[str, Any] = field(default_factory=dict)
    pooling: str = "mean"
    sizes: dict[str, Any] = field(default_factory=lambda: SIZES)
    max_tokens: int = 190


DISTIL = {"vocab_size": VOCAB, "dim": 48, "hidden_dim": 88, "n_layers": 2, "n_heads": 6, "max_position_embeddings": 200}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "cls_token_id": 1, "sep_token_id": 2}
GEMMA = {**KV, "use_bidirectional_attention": True, "sliding_window": 32, "query_pre_attn_scalar": 16,
         "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}  # fmt: skip
CASES = {
    "bert": EncoderCase("BertModel"),
    "bert-cls": EncoderCase("BertModel", {"hidden_act": "relu"}, "cls"),
    "bert-weighted": EncoderCase("BertModel", {}, "weighted"),
    "bert-masked": EncoderCase("BertForMaskedLM"),
    "bert-classifier": EncoderCase("BertForSequenceClassification", LABELS),
    "roberta": EncoderCase("RobertaModel"),
    "roberta-classifier": EncoderCase("RobertaForSequenceClassification", LABELS),
    "xlm-roberta": EncoderCase("XLMRobertaModel", {"type_vocab_size": 1}, "cls"),
    "xlm-roberta-classifier": EncoderCase("XLMRobertaForSequenceClassification", {"num_labels": 1}),
    "distilbert": EncoderCase("DistilBertModel", {}, "mean", DISTIL),
    "distilbert-classifier": EncoderCase("DistilBertForSequenceClassification", LABELS, "cls", DISTIL),
    "mpnet": EncoderCase("MPNetModel"),
    "mpnet-classifier": EncoderCase("MPNetForSequenceClassification", LABELS),
    "modernbert": EncoderCase("ModernBertModel", {**TOKENS, "local_attention": 32}),
    "modernbert-classifier": EncoderCase("ModernBertForSequenceClassification", {**TOKENS, **LABELS}),
    "modernbert-mean": EncoderCase(
        "ModernBertForSequenceClassification", {**TOKENS, **LABELS, "classifier_pooling": "mean", "local_attention": 20}
    ),
    "nomic_bert": EncoderCase("NomicBertModel"),
    "gte": EncoderCase("GteModel", {}, "cls"),
    "gte-without-types": EncoderCase("GteModel", {"type_vocab_size": 0}, "cls"),
    "jina_embeddings_v3": EncoderCase("JinaEmbeddingsV3Model"),
    "jina_bert": EncoderCase("JinaBertModel"),
    "jina_bert-classifier": EncoderCase("JinaBertForSequenceClassification", {"num_labels": 1}),
    "embedding_gemma": EncoderCase("Gemma3TextModel", GEMMA),
    "qwen3": EncoderCase("Qwen3Model", KV, "last"),
    "qwen3-causal": EncoderCase("Qwen3ForCausalLM", {**KV, "tie_word_embeddings": True}, "last"),
    "mistral": EncoderCase("MistralModel", {**KV, "sliding_window": None}, "last"),
    "llama-mean": EncoderCase("LlamaForCausalLM", KV, "mean"),
    "qwen2-classifier": EncoderCase("Qwen2ForSequenceClassification", {**KV, **LABELS}, "last"),
}
CLASSIFIERS = [name for name in CASES if CASES[name].kind.endswith("Classification")]


@dataclass(frozen=True)
class EncoderToy:
    """A model of transformers, and its folder."""

    case: EncoderCase
    model: Any
    folder: Path

    def draw(self) -> DrawnModel:
        return draw(open_checkpoint(self.folder), pooling=self.case.pooling)

    def expected(self, tokens: list[int], types: list[int] | None = None) -> np.ndarray:
        """The pooled vector, or the scores, of a text."""
        import torch

        given = {"input_ids": torch.tensor([tokens]), "attention_mask": torch.ones(1, len(tokens), dtype=torch.long)}
        if types is not None:
            given["token_type_ids"] = torch.tensor([types])
        with torch.no_grad():
            if self.case.kind.endswith("Classification"):
                return self.model(**given).logits[0].numpy()
            base = getattr(self.model, self.model.base_model_prefix, self.model)
            states = base(**given).last_hidden_state[0].numpy()
        weights = np.arange(1, len(tokens) + 1)[:, None]
        return {
            "mean": states.mean(0),
            "cls": states[0],
            "last": states[-1],
            "weighted": (states * weights).sum(0) / weights.sum(),
        }[self.case.pooling]


@cache
def make_encoder(name: str) -> EncoderToy:
    """Make a toy with random weights, norms and biases."""
    import torch
    import transformers

    case = CASES[name]
    kind = getattr(transformers, case.kind, None) or getattr(import_module("tests.models.jina_bert"), case.kind)
    config = kind.config_class(**{**case.sizes, **case.config})
    config._attn_implementation = "eager"
    torch.manual_seed(len(name))
    model = kind(config).eval()
    for each in model.parameters():
        each.data = torch.randn_like(each) * (0.3 if each.ndim == 1 else 0.12) + (1.0 if each.ndim == 1 else 0.0)
    folder = Path(mkdtemp(prefix=f"quire-{name}-"))
    model.save_pretrained(folder)
    return EncoderToy(case, model, folder)


def some_ids(length: int, seed: int = 0) -> list[int]:
    """Token ids other than those with a meaning."""
    return np.random.default_rng(seed + length).integers(5, VOCAB, length).tolist()


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
