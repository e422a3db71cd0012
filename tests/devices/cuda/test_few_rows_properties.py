"""The one-kernel step for few rows, emulated, for each property that a model may have."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from quire.devices import base
from quire.devices._triton.rope import HeadNorm
from quire.devices.cuda.instructions import AddProduct, Attend, Embed, Gate, Head, Instruction, Norm
from quire.ops.batch import Batch, RowPart
from tests.devices.cuda.emulated.reference import Reference
from tests.devices.cuda.emulated.rows import emulated
from tests.devices.cuda.models import lowered, rms_error
from tests.models.toys import BLOCK, VOCAB, toy_of

pytestmark = pytest.mark.device
LIMITS = base.Limits(
    max_tokens=64, max_rows=16, max_logits=16, max_blocks=20, num_blocks=320, block_tokens=BLOCK, kv_dtype="bf16"
)
SIZES = {
    "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2, "max_position_embeddings": 512,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip
LLAMA, QWEN3 = "LlamaForCausalLM", "Qwen3ForCausalLM"
WIDE_HEADS = {"head_dim": 256}
PARTIAL = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}
TWO_WINDOWS = {"use_sliding_window": True, "sliding_window": 33, "max_window_layers": 1}
ONE, FOUR = [200], [3, 40, 131, 280]  # computed tokens; some rows are split over several blocks
NO_FARTHER = 3  # times the error of a step whose values between instructions are rounded
CLEARLY = 5  # times that error: what a kernel that ignored the changes would be off by

Change = Callable[[Any, int], dict[str, Any]]  # new fields of an instruction of a layer


def _weights(size: int, seed: int) -> torch.Tensor:
    return 1 + 0.3 * torch.randn(size, generator=torch.Generator().manual_seed(seed))


def _post_norm(each: Any, layer: int) -> dict[str, Any]:
    return {"post_norm": Norm(_weights(each.linear.weight.shape[0], layer), 1e-3)}


def _other_rope(each: Any, layer: int) -> dict[str, Any]:
    if layer == 0:
        return {}
    positions, pairs = each.turns.cos.shape
    angles = torch.arange(positions)[:, None] * 500.0 ** -(torch.arange(pairs) / pairs)
    return {"turns": each.turns._replace(cos=angles.cos(), sin=angles.sin())}


def _norm_of_all_heads(each: Any, layer: int) -> dict[str, Any]:
    heads = each.heads
    weights = (_weights(count * heads.dim, 7 * layer + count) for count in (heads.num_heads, heads.kv_heads))
    return {"head_norm": HeadNorm(*weights, 1e-3), "norm": None}


def _constantly(**values: Any) -> Change:
    return lambda each, layer: values


POST_NORMS: dict[type, Change] = {AddProduct: _post_norm}
CAPS: dict[type, Change] = {Attend: _constantly(softcap=4.0), Head: _constantly(factor=0.5, cap=6.0)}
GEMMA: dict[type, Change] = {
    **POST_NORMS,
    Embed: _constantly(factor=16.0),
    Gate: _constantly(kind="gelu_tanh"),
    Attend: lambda each, layer: {**_other_rope(each, layer), "window": (33, None)[layer]},
}
OLMO2: dict[type, Change] = {**POST_NORMS, Attend: _norm_of_all_heads, Gate: _constantly(norm=None)}
# name: class in transformers, its differences, changes of instructions, format, computed tokens
PROPERTIES: dict[str, tuple[str, dict[str, Any], dict[type, Change], str | None, list[int]]] = {
    "heads of 256": (LLAMA, WIDE_HEADS, {}, None, FOUR),
    "norms of heads": (QWEN3, {"tie_word_embeddings": True}, {}, None, FOUR),
    "norms of heads of 128, FP8": (QWEN3, {"head_dim": 128, "num_attention_heads": 6}, {}, "fp8", ONE),
    "a window": ("MistralForCausalLM", {"sliding_window": 77}, {}, None, FOUR),
    "a window of one token": ("MistralForCausalLM", {"sliding_window": 1}, {}, None, FOUR),
    "layers with and without a window": ("Qwen2ForCausalLM", TWO_WINDOWS, {}, "fp8", FOUR),
    "rope of a part of each head": ("Phi3ForCausalLM", {"rope_parameters": PARTIAL, "pad_token_id": 0}, {}, None, FOUR),
    "two ropes": (LLAMA, {}, {Attend: _other_rope}, None, FOUR),
    "gelu_tanh": (LLAMA, {}, {Gate: _constantly(kind="gelu_tanh")}, None, ONE),
    "gelu": (LLAMA, {}, {Gate: _constantly(kind="gelu")}, None, ONE),
    "relu2": (LLAMA, {}, {Gate: _constantly(kind="relu2")}, None, ONE),
    "scaled embeddings, FP8": (LLAMA, {}, {Embed: _constantly(factor=16.0)}, "fp8", FOUR),
    "different scales of scores": (LLAMA, {}, {Attend: lambda each, layer: {"scale": (0.1, 0.3)[layer]}}, None, ONE),
    "softcaps": (LLAMA, {}, CAPS, None, FOUR),
    "norms after blocks": (LLAMA, {}, POST_NORMS, None, FOUR),
    "norms after blocks, FP8, one row": (LLAMA, {}, POST_NORMS, "fp8", ONE),
    "norms after blocks only, and of all heads": (LLAMA, {}, OLMO2, None, FOUR),
    "norms after blocks only, and of all heads, FP8": (LLAMA, {"num_key_value_heads": 4}, OLMO2, "fp8", ONE),
    "Gemma": (QWEN3, WIDE_HEADS, GEMMA, None, FOUR),
    "Gemma, one row": (QWEN3, WIDE_HEADS, GEMMA, None, ONE),
}  # fmt: skip


def changed(instructions: list[Instruction], changes: dict[type, Change]) -> list[Instruction]:
    """Return the instructions with the changes of their types; layers are counted by attention."""
    result: list[Instruction] = []
    layer = -1
    for each in instructions:
        layer += isinstance(each, Attend)
        change = changes.get(type(each))
        result.append(each if change is None else replace(each, **change(each, layer)))  # type: ignore[type-var]
    return result


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.parametrize("name", PROPERTIES)
def test_one_kernel_supports(name, place, tmp_path):
    """A step of one row is repeated: the second must not read state that the first one left."""
    if place != "cpu":
        pytest.skip("emulation is for the CPU")
    kind, different, changes, quantize, lengths = PROPERTIES[name]
    program = lowered(toy_of(kind, {**SIZES, **different}, seed=5).draw(), place, LIMITS, quantize=quantize)
    unchanged = program.instructions
    instructions, work = changed(unchanged, changes), next(iter(program.work.values()))
    windows = {each.window for each in instructions if isinstance(each, Attend)}
    works = {window: replace(work, window=window) for window in windows}
    program = replace(program, instructions=instructions, work=works)
    program.few_rows = emulated(program, tmp_path)
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    order = rng.permutation(LIMITS.num_blocks).reshape(-1, LIMITS.max_blocks).tolist()
    batch = Batch.of([RowPart([int(rng.integers(VOCAB))], n, order[i]) for i, n in enumerate(lengths)], BLOCK)
    for _ in range(2 if lengths == ONE else 1):
        cache = torch.randn(program.caches.whole.shape).bfloat16()
        program.caches.whole.copy_(cache)
        found = program.launch(batch).result().logits
        exact = Reference(cache.clone(), batch)
        logits = exact.run(instructions)
        error = rms_error(Reference(cache.clone(), batch, rounds=True).run(instructions), logits)
        assert found is not None and rms_error(found, logits) <= NO_FARTHER * error
        if changes:
            assert rms_error(Reference(cache.clone(), batch).run(unchanged), logits) > CLEARLY * NO_FARTHER * error
        written, expected = (each != cache for each in (program.caches.whole, exact.cache))
        assert torch.equal(written.any(-1), expected.any(-1)), "it writes only the newest keys and values"
