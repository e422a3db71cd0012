"""Models small enough to lower in a test, and texts that grow in a program's cache."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from quire.devices import base
from quire.devices.cpu.bindings import native
from quire.models.config import read_config
from quire.models.draw import DrawnModel, draw
from quire.models.names import stored_shapes
from quire.models.registry import all_architectures
from quire.ops.batch import Batch
from quire.quant.registry import all_formats
from tests.models.toys import BLOCK, VOCAB, MemoryCheckpoint, Session
from tests.ops.encoded_tensor import EncodedTensor

HAS_NATIVE = native() is not None
VARIANTS = native().variants() if HAS_NATIVE else []
NUM_BLOCKS = 200
LIMITS = base.Limits(
    max_tokens=256, max_rows=40, max_logits=256, max_blocks=8, num_blocks=NUM_BLOCKS, block_tokens=BLOCK
)


class ProgramInterpreter:
    """A program with the interface of an interpreter, for a session."""

    def __init__(self, program: base.Program) -> None:
        self.program = program

    def run(self, batch: Batch) -> np.ndarray:
        output = self.program.launch(replace(batch, num_top=np.ones(len(batch.logits_at), np.int32))).result()
        assert output.logits is not None
        if output.top_tokens is not None:
            assert np.array_equal(output.top_tokens[:, :1].ravel(), output.logits.argmax(1))
        return output.logits


def lower(model: DrawnModel, limits: base.Limits = LIMITS, **options: Any) -> base.Program:
    return base.open("cpu").lower(model.graph, model.weights, limits, base.LoweringOptions(**options))


def session(program: base.Program, model: DrawnModel, seed: int = 0, num_blocks: int = NUM_BLOCKS) -> Session:
    """Return texts in scattered blocks of the program's cache, which may hold data of earlier sessions."""
    made = Session(model, num_blocks, seed)
    made.interpreter = ProgramInterpreter(program)  # type: ignore[assignment]
    return made


SIZES = {
    "vocab_size": VOCAB,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
# Every size is a whole number of blocks, so that all matrices can be quantized: blocks of 32, or superblocks.
WIDTHS = {32: {"hidden_size": 128, "intermediate_size": 160}, 256: {"hidden_size": 256, "intermediate_size": 512}}
FORMATS = {"embed_tokens": "q8_0", "v_proj": "q8_0", "down_proj": "q4_0"}  # the others have the format of the case


@cache
def quantized_model(fmt: str, head_dim: int = 32) -> DrawnModel:
    """Make a Llama with quantized weights of several formats, like real files; norms are float32."""
    (arch,) = (arch for arch in all_architectures() if arch.name == "LlamaForCausalLM")
    widths = WIDTHS[max(32, all_formats()[fmt].block_weights)]
    metadata = {"architectures": [arch.name], **SIZES, **widths, "head_dim": head_dim}
    config = read_config(MemoryCheckpoint("safetensors", metadata, {}), arch.keys)
    rng, tensors = np.random.default_rng(1), {}
    for name, shape in stored_shapes("safetensors", config, arch.names).items():
        numbers = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.1)
        numbers = numbers if len(shape) == 2 else 1 + numbers
        special = next((FORMATS[part] for part in FORMATS if f"{part}.weight" in name), fmt)
        tensors[name] = encode(name, numbers, special if len(shape) == 2 else "f32", len(tensors))
    return draw(MemoryCheckpoint("safetensors", metadata, tensors))  # type: ignore[arg-type]


def encode(name: str, numbers: np.ndarray, fmt: str, seed: int) -> EncodedTensor:
    """Encode these numbers; in a format that cannot be written, random ones of the same shape."""
    try:
        return EncodedTensor.of(name, numbers, fmt)
    except NotImplementedError:
        return EncodedTensor.random(name, numbers.shape, fmt, seed)
