"""Write a model that exceeds the CPU caches: a Llama of a billion parameters with random weights in Q4_K.

It has the shapes of Llama-3.2-1B and the tokenizer of another model.
"""

from __future__ import annotations

from pathlib import Path

from quire.bench.engines.random_gguf import Q4_K, Shape, write_random_gguf
from quire.weights.checkpoint import open_checkpoint

NUM_LAYERS, DIM, FEED_FORWARD, NUM_HEADS, NUM_KV_HEADS = 16, 2048, 8192, 32, 8
SHAPE = {
    "llama.block_count": NUM_LAYERS,
    "llama.embedding_length": DIM,
    "llama.feed_forward_length": FEED_FORWARD,
    "llama.attention.head_count": NUM_HEADS,
    "llama.attention.head_count_kv": NUM_KV_HEADS,
    "llama.rope.dimension_count": DIM // NUM_HEADS,
    "general.size_label": "1B",
    "general.file_type": 14,  # Q4_K
}
KV_DIM = DIM * NUM_KV_HEADS // NUM_HEADS
MATRICES = {  # of a layer: rows, columns
    "attn_q": (DIM, DIM),
    "attn_k": (KV_DIM, DIM),
    "attn_v": (KV_DIM, DIM),
    "attn_output": (DIM, DIM),
    "ffn_gate": (FEED_FORWARD, DIM),
    "ffn_up": (FEED_FORWARD, DIM),
    "ffn_down": (DIM, FEED_FORWARD),
}


def write_large_model(tokenizer_model: Path, into: Path) -> Path:
    """Write the model with the tokenizer of another one, unless the file exists."""
    metadata = {**open_checkpoint(tokenizer_model).metadata, **SHAPE}
    return write_random_gguf(into, metadata, _shapes(int(metadata["llama.vocab_size"])), Q4_K)


def _shapes(vocab_size: int) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {"token_embd.weight": (vocab_size, DIM), "output_norm.weight": (DIM,)}
    for layer in range(NUM_LAYERS):
        shapes |= {f"blk.{layer}.attn_norm.weight": (DIM,), f"blk.{layer}.ffn_norm.weight": (DIM,)}
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in MATRICES.items()}
    return shapes
