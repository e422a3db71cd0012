"""Write models that exceed the CPU caches: Llamas of one and three billion parameters with random weights.

They have the shapes of Llama-3.2-1B and 3B, the tokenizer of another model, and their heads are their tables of
embeddings. Q4_K_M has Q6_K where llama.cpp's converter has it: in the table, and in half of the values and
down-projections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quire.bench.engines.random_gguf import BF16, Q4_K, Q6_K, Q8_0, FormatOf, RandomFormat, Shape, write_random_gguf
from quire.weights.checkpoint import open_checkpoint

PREFIX = "large."  # of the names of files


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """A Llama without its vocabulary."""

    num_layers: int
    dim: int
    ffn: int
    num_heads: int
    num_kv_heads: int

    @property
    def matrices(self) -> dict[str, Shape]:
        """Rows and columns of a layer's matrices."""
        kv_dim = self.dim * self.num_kv_heads // self.num_heads
        return {
            "attn_q": (self.dim, self.dim),
            "attn_k": (kv_dim, self.dim),
            "attn_v": (kv_dim, self.dim),
            "attn_output": (self.dim, self.dim),
            "ffn_gate": (self.ffn, self.dim),
            "ffn_up": (self.ffn, self.dim),
            "ffn_down": (self.dim, self.ffn),
        }

    @property
    def metadata(self) -> dict[str, int]:
        """The sizes, by the keys of GGUF."""
        return {
            "llama.block_count": self.num_layers,
            "llama.embedding_length": self.dim,
            "llama.feed_forward_length": self.ffn,
            "llama.attention.head_count": self.num_heads,
            "llama.attention.head_count_kv": self.num_kv_heads,
            "llama.rope.dimension_count": self.dim // self.num_heads,
        }

    def shapes(self, vocab_size: int) -> dict[str, Shape]:
        """Return the shapes of all tensors."""
        shapes: dict[str, Shape] = {"token_embd.weight": (vocab_size, self.dim), "output_norm.weight": (self.dim,)}
        for layer in range(self.num_layers):
            shapes |= {f"blk.{layer}.attn_norm.weight": (self.dim,), f"blk.{layer}.ffn_norm.weight": (self.dim,)}
            shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in self.matrices.items()}
        return shapes


def q4_k_m(shape: LlamaShape) -> FormatOf:
    """Return the format of each tensor of a model in Q4_K_M."""
    eighth = shape.num_layers // 8

    def has_more_bits(layer: int) -> bool:
        return layer < eighth or layer >= 7 * shape.num_layers // 8 or (layer - eighth) % 3 == 2

    def format_of(name: str) -> RandomFormat:
        if name == "token_embd.weight":
            return Q6_K
        _, layer, matrix, _ = name.split(".")
        return Q6_K if matrix in ("attn_v", "ffn_down") and has_more_bits(int(layer)) else Q4_K

    return format_of


SHAPES: Mapping[str, LlamaShape] = {
    "1B": LlamaShape(num_layers=16, dim=2048, ffn=8192, num_heads=32, num_kv_heads=8),
    "3B": LlamaShape(num_layers=28, dim=3072, ffn=8192, num_heads=24, num_kv_heads=8),
}
FORMATS: Mapping[str, tuple[Callable[[LlamaShape], RandomFormat | FormatOf], int]] = {  # with general.file_type
    "Q4_K_M": (q4_k_m, 15),
    "Q8_0": (lambda _: Q8_0, 7),
    "BF16": (lambda _: BF16, 32),
}

WriteModel = Callable[[Path, Path], Path]  # from the file of a tokenizer and a folder to the model's file


def large_models() -> Iterator[tuple[str, WriteModel]]:
    """Yield the label of each model, and the function that writes its file unless it exists: 0.7 GB to 6 GB."""
    for size, shape in SHAPES.items():
        for format in FORMATS:
            yield f"{size} {format}", partial(write_large_model, shape, f"{size} {format}")


def write_large_model(shape: LlamaShape, label: str, tokenizer_model: Path, folder: Path) -> Path:
    """Write a model of that shape, with a size and a format of FORMATS as its label."""
    size, format = label.split()
    kind, file_type = FORMATS[format]
    sizes = {**shape.metadata, "general.size_label": size, "general.file_type": file_type}
    metadata = {**open_checkpoint(tokenizer_model).metadata, **sizes}
    shapes = shape.shapes(int(metadata["llama.vocab_size"]))
    return write_random_gguf(folder / f"{PREFIX}{size}.{format}.gguf".lower(), metadata, shapes, kind(shape))


def delete_large_models(folder: Path) -> int:
    """Delete the files of large models from a folder; return how many bytes they had."""
    files = list(folder.glob(f"{PREFIX}*.gguf"))
    num_bytes = sum(file.stat().st_size for file in files)
    for file in files:
        file.unlink()
    return num_bytes
