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
from quire.devices._triton.norm import Norm
from quire.devices._triton.rope import HeadNorm
from quire.devices.cuda.instructions import AddProduct, Attend, Embed, Gate, Instruction
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
NO_FARTHER = 2  # times the error of a step whose values between instructions are rounded

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


def _mixed_rope(each: Any, layer: int) -> dict[str, Any]:
    """Adjacent pairs in the first layer, no rope and another scale in the second."""
    if layer == 0:
        return {"turns": each.turns._replace(interleaved=True)}
    return {"turns": each.turns._replace(cos=each.turns.cos[:, :0], sin=each.turns.sin[:, :0]), "scale": 0.2}


def _norm_of_all_heads(each: Any, layer: int) -> dict[str, Any]:
    heads = each.heads
    weights = (_weights(count * heads.dim, 7 * layer + count) for count in (heads.num_heads, heads.kv_heads))
    return {"head_norm": HeadNorm(*weights, 1e-3, is_wide=True), "norm": None}


def _constantly(**values: Any) -> Change:
    return lambda each, layer: values


def _activation(kind: str) -> dict[type, Change]:
    return {Gate: lambda each, layer: {"kind": kind, "linear": replace(each.linear, kind=kind)}}


POST_NORMS: dict[type, Change] = {AddProduct: _post_norm}
GEMMA3: dict[type, Change] = {
    **POST_NORMS,
    **_activation("gelu_tanh"),
    Embed: _constantly(factor=16.0),
    Attend: lambda each, layer: {**_other_rope(each, layer), "window": (33, None)[layer]},
}
OLMO2: dict[type, Change] = {**POST_NORMS, Attend: _norm_of_all_heads, Gate: _constantly(norm=None)}
MIXED: dict[type, Change] = {Attend: _mixed_rope}
GEMMA2 = {"head_dim": 256, "sliding_window": 33, "query_pre_attn_scalar": 100, "attn_logit_softcapping": 8.0}
FACTORS = {
    "embedding_multiplier": 12.0, "attention_multiplier": 0.2, "residual_multiplier": 0.4, "logits_scaling": 3.0,
}  # fmt: skip
PHI3 = {"rope_parameters": PARTIAL, "pad_token_id": 0, "eos_token_id": 1}
# name: class in transformers, its differences, changes of instructions, format, computed tokens
PROPERTIES: dict[str, tuple[str, dict[str, Any], dict[type, Change], str | None, list[int]]] = {
    "norms of heads": (QWEN3, {"tie_word_embeddings": True}, {}, None, FOUR),
    "norms of heads of 128, FP8": (QWEN3, {"head_dim": 128, "num_attention_heads": 6}, {}, "fp8", ONE),
    "a window": ("MistralForCausalLM", {"sliding_window": 77}, {}, None, FOUR),
    "a window of one token": ("MistralForCausalLM", {"sliding_window": 1}, {}, None, ONE),
    "layers with and without a window, FP8": ("Qwen2ForCausalLM", TWO_WINDOWS, {}, "fp8", FOUR),
    "rope of a part of each head": ("Phi3ForCausalLM", PHI3, {}, None, ONE),
    "adjacent pairs, no rope, another scale": (LLAMA, {}, MIXED, None, ONE),
    "gelu": (LLAMA, {}, _activation("gelu"), None, ONE),
    "relu2": (LLAMA, {}, _activation("relu2"), None, ONE),
    "factors, FP8": ("GraniteForCausalLM", FACTORS, {}, "fp8", FOUR),
    "softcaps, norms after blocks, heads of 256": ("Gemma2ForCausalLM", GEMMA2, {}, None, FOUR),
    "norms after blocks, FP8": (LLAMA, {}, POST_NORMS, "fp8", ONE),
    "Gemma 3": (QWEN3, {"head_dim": 256}, GEMMA3, None, FOUR),
    "norms after blocks only, and of all heads": (LLAMA, {}, OLMO2, None, FOUR),
    "norms after blocks only, and of all heads, FP8": (LLAMA, {"num_key_value_heads": 4}, OLMO2, "fp8", ONE),
}


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
    unchanged, work = program.instructions, next(iter(program.work.values()))
    instructions = changed(unchanged, changes)
    kinds = {each.kind for each in instructions if isinstance(each, Attend)}
    works = {kind: replace(work, window=kind.window) for kind in kinds}
    program = replace(program, instructions=instructions, work=works)
    program.variants = (emulated(program, tmp_path),)
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
            assert rms_error(Reference(cache.clone(), batch).run(unchanged), logits) > NO_FARTHER * error
        written, expected = (each != cache for each in (program.caches.whole, exact.cache))
        assert torch.equal(written.any(-1), expected.any(-1)), "it writes only the newest keys and values"
