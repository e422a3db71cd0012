"""Jina v2 by its formulas, in torch: the published model brings its own code, and transformers has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import BertConfig, PreTrainedModel


class JinaBertConfig(BertConfig):
    """BERT's, with two keys more."""

    def __init__(self, **keys: Any) -> None:
        super().__init__(**keys)
        self.position_embedding_type, self.feed_forward_type = "alibi", "geglu"


class Named(nn.Module):
    """Modules under names with dots, as in the published files."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            at: nn.Module = self
            *path, last = name.split("__")
            for word in path:
                at = at._modules.setdefault(word, nn.Module())  # type: ignore[assignment]
            at.add_module(last, part)


def slopes(num_heads: int) -> torch.Tensor:
    """Of the paper on ALiBi: for a power of two, a geometric series; else every second one of twice as many more."""
    if num_heads & (num_heads - 1) == 0:
        first = 2 ** (-(2 ** -(num_heads.bit_length() - 1 - 3)))
        return torch.tensor([first ** (n + 1) for n in range(num_heads)])
    nearest = 2 ** (num_heads.bit_length() - 1)
    return torch.cat([slopes(nearest), slopes(2 * nearest)[0::2][: num_heads - nearest]])


class JinaBertModel(PreTrainedModel):
    """The encoder."""

    config_class, base_model_prefix, all_tied_weights_keys = JinaBertConfig, "bert", {}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        size, inner = config.hidden_size, config.intermediate_size
        self.embeddings = Named(
            word_embeddings=nn.Embedding(config.vocab_size, size),
            token_type_embeddings=nn.Embedding(config.type_vocab_size, size),
            LayerNorm=nn.LayerNorm(size, config.layer_norm_eps),
        )
        layers = [
            Named(
                **{f"attention__self__{word}": nn.Linear(size, size) for word in ("query", "key", "value")},
                attention__output__dense=nn.Linear(size, size),
                attention__output__LayerNorm=nn.LayerNorm(size, config.layer_norm_eps),
                mlp__gated_layers=nn.Linear(size, 2 * inner, bias=False),
                mlp__wo=nn.Linear(inner, size),
                mlp__layernorm=nn.LayerNorm(size, config.layer_norm_eps),
            )
            for _ in range(config.num_hidden_layers)
        ]
        self.encoder = Named(layer=nn.ModuleList(layers))
        self.pooler = Named(dense=nn.Linear(size, size))

    def forward(self, input_ids: Any, token_type_ids: Any = None, **unused: Any) -> Any:
        parts, config = self.embeddings, self.config
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = parts.LayerNorm(parts.word_embeddings(input_ids) + parts.token_type_embeddings(types))
        places = torch.arange(input_ids.shape[1])
        bias = -slopes(config.num_attention_heads)[:, None, None] * (places[None, :] - places[:, None]).abs()
        for layer in self.encoder.layer:
            x = self._layer(layer, x, bias)
        return SimpleNamespace(last_hidden_state=x)

    def _layer(self, layer: Any, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        batch, length, size = x.shape
        own, heads = layer.attention.self, self.config.num_attention_heads
        q, k, v = (part(x).view(batch, length, heads, -1).transpose(1, 2) for part in (own.query, own.key, own.value))
        scores = q @ k.transpose(-1, -2) / (size // heads) ** 0.5 + bias
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, size)
        out = layer.attention.output
        x = out.LayerNorm(out.dense(mixed) + x)
        gate, rest = layer.mlp.gated_layers(x).chunk(2, dim=-1)
        return layer.mlp.layernorm(layer.mlp.wo(nn.functional.gelu(gate) * rest) + x)


class JinaBertForSequenceClassification(PreTrainedModel):
    """With BERT's head of classes."""

    config_class, base_model_prefix, all_tied_weights_keys = JinaBertConfig, "bert", {}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert, self.classifier = JinaBertModel(config), nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, **given: Any) -> Any:
        first = self.bert(**given).last_hidden_state[:, 0]
        return SimpleNamespace(logits=self.classifier(torch.tanh(self.bert.pooler.dense(first))))
