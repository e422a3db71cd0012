"""Write a model with experts: a Qwen3-MoE of a billion parameters, of which a token uses 154 million, in Q4_0.

Weights are random. It has the tokenizer of another model, and its head is its table of embeddings. The router is f32,
as converters write it.
"""

from __future__ import annotations

from pathlib import Path

from quire.bench.engines.random_gguf import Q4_0, Shape, write_random_gguf
from quire.weights.checkpoint import open_checkpoint

NUM_LAYERS, DIM, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 18, 1024, 16, 4, 64
NUM_EXPERTS, TOP, EXPERT_DIM = 64, 4, 256
ARCHITECTURE = "qwen3moe"
SHAPE = {
    "block_count": NUM_LAYERS,
    "context_length": 8192,
    "embedding_length": DIM,
    "feed_forward_length": EXPERT_DIM,
    "attention.head_count": NUM_HEADS,
    "attention.head_count_kv": NUM_KV_HEADS,
    "attention.key_length": HEAD_DIM,
    "attention.value_length": HEAD_DIM,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1000000.0,
    "rope.dimension_count": HEAD_DIM,
    "expert_count": NUM_EXPERTS,
    "expert_used_count": TOP,
    "expert_feed_forward_length": EXPERT_DIM,
}
TENSORS: dict[str, Shape] = {  # of a layer
    "attn_norm": (DIM,),
    "attn_q": (NUM_HEADS * HEAD_DIM, DIM),
    "attn_k": (NUM_KV_HEADS * HEAD_DIM, DIM),
    "attn_v": (NUM_KV_HEADS * HEAD_DIM, DIM),
    "attn_q_norm": (HEAD_DIM,),
    "attn_k_norm": (HEAD_DIM,),
    "attn_output": (DIM, NUM_HEADS * HEAD_DIM),
    "ffn_norm": (DIM,),
    "ffn_gate_inp": (NUM_EXPERTS, DIM),
    "ffn_gate_exps": (NUM_EXPERTS, EXPERT_DIM, DIM),
    "ffn_up_exps": (NUM_EXPERTS, EXPERT_DIM, DIM),
    "ffn_down_exps": (NUM_EXPERTS, DIM, EXPERT_DIM),
}


def write_expert_model(tokenizer_model: Path, into: Path) -> Path:
    """Write the model with the tokenizer of another one, unless the file exists."""
    source = open_checkpoint(tokenizer_model).metadata
    tokenizer = {key: value for key, value in source.items() if key.startswith("tokenizer.")}
    sizes = {f"{ARCHITECTURE}.{name}": value for name, value in SHAPE.items()}
    metadata = {"general.architecture": ARCHITECTURE, "general.file_type": 2, **sizes, **tokenizer}  # 2: Q4_0
    return write_random_gguf(into, metadata, _shapes(len(tokenizer["tokenizer.ggml.tokens"])), Q4_0)


def _shapes(vocab_size: int) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {"token_embd.weight": (vocab_size, DIM), "output_norm.weight": (DIM,)}
    for layer in range(NUM_LAYERS):
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in TENSORS.items()}
    return shapes
