"""The work that a model needs for a token, counted from its file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from pathlib import Path

from quire.bench.load.sample_text import word_tokens
from quire.engine.model_files import read_model_text
from quire.graph.graph import Graph
from quire.models.draw import draw
from quire.weights.checkpoint import open_checkpoint


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of one model file. Attention is not counted: with short contexts it is a few per cent."""

    path: Path
    label: str  # in tables
    container: str
    format: str  # of most weights
    vocab_size: int
    words: tuple[int, ...]  # token ids for prompts
    decode_bytes: int  # weight bytes in the file's format that one decoded token reads
    prompt_multiply_adds: int  # for one prompt token, without the head, which only the last token needs

    @classmethod
    def of(cls, path: Path, size: str = "") -> ModelFacts:
        """Read the facts, but no weights. `size` comes before the format in the label."""
        checkpoint = open_checkpoint(path)
        model, tokenizer = draw(checkpoint), read_model_text(checkpoint).tokenizer
        matrices = {id(w): w for name, w in model.weights.items() if len(w.shape) > 1 and name != "embed"}
        head, used = model.weights["head"], _used_experts(model.graph)
        sizes: Counter[str] = Counter()
        for weight in matrices.values():
            sizes[weight.format] += int(weight.num_bytes * used.get(weight.name, 1))
        layers = [weight for weight in matrices.values() if weight is not head]
        format = sizes.most_common(1)[0][0]
        return cls(
            path=path,
            label=f"{size} {format}".strip(),
            container=checkpoint.container,
            format=format,
            vocab_size=model.config.vocab_size,
            words=word_tokens(tokenizer) if tokenizer is not None else tuple(range(model.config.vocab_size)),
            decode_bytes=sizes.total(),
            prompt_multiply_adds=sum(int(prod(weight.shape) * used.get(weight.name, 1)) for weight in layers),
        )


def _used_experts(graph: Graph) -> dict[str, Fraction]:
    """The share of each stack of experts, by its name, that one token uses."""
    nodes = [node for node in graph.nodes if node.op.name == "experts"]
    names = [(node, str(node.weights[word])) for node in nodes for word in ("gate", "up", "down") if node.weights[word]]
    return {name: Fraction(node.input("weights").dim, int(graph.shapes[name][0])) for node, name in names}
