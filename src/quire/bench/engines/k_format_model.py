"""Write models for the formats with blocks of 256 weights, which the rows of SmolLM2-135M cannot be divided into.

They are Llamas of about its size, 138 million parameters, with random weights and the tokenizer of another model.
"""

from __future__ import annotations

from pathlib import Path

from quire.bench.engines.large_model import LlamaShape
from quire.bench.engines.random_gguf import Q4_K, Q6_K, write_random_gguf
from quire.weights.checkpoint import open_checkpoint

SHAPE = LlamaShape(num_layers=16, dim=768, ffn=2048, num_heads=12, num_kv_heads=4)
FORMATS = {"q4_k": (Q4_K, 14), "q6_k": (Q6_K, 18)}  # with general.file_type


def write_k_model(format: str, tokenizer_model: Path, folder: Path, shape: LlamaShape = SHAPE) -> Path:
    """Write the model in a format of FORMATS, unless the file exists."""
    kind, file_type = FORMATS[format]
    sizes = {**shape.metadata, "general.size_label": "138M", "general.file_type": file_type}
    metadata = {**open_checkpoint(tokenizer_model).metadata, **sizes}
    shapes = shape.shapes(int(metadata["llama.vocab_size"]))
    return write_random_gguf(folder / f"llama-{shape.dim}.{format}.gguf", metadata, shapes, kind)
