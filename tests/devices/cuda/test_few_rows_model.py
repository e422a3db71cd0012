"""What the one-kernel step for few rows does not support: every such model runs as several kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from quire.devices import base
from quire.devices._triton.norm import Norm
from quire.devices._triton.rope import HeadNorm
from quire.devices.cuda.few_rows_model import KNOWN_FIELDS, ModelInstructions, _other_fields
from quire.devices.cuda.instructions import AddProduct, Attend, Embed, Gate, Head, Instruction
from quire.devices.cuda.program import CudaProgram
from tests.devices.cuda.models import lowered
from tests.models.toys import BLOCK, toy_of

pytestmark = pytest.mark.device
LIMITS = base.Limits(
    max_tokens=64, max_rows=4, max_logits=4, max_blocks=4, num_blocks=16, block_tokens=BLOCK, kv_dtype="bf16"
)
SIZES = {
    "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 64,
}  # fmt: skip
Change = Callable[[Any], dict[str, Any]]  # new fields of an instruction


@pytest.fixture(scope="module")
def llama(place) -> CudaProgram:
    return lowered(toy_of("LlamaForCausalLM", SIZES, seed=5).draw(), place, LIMITS)


def model_of(program: CudaProgram, kind: type | None = None, change: Change | None = None, which: int = -1) -> Any:
    """Return the model; if given, with a change of the last instruction of a type, or of another one."""
    instructions: list[Instruction] = list(program.instructions)
    if kind is not None and change is not None:
        place = [i for i, each in enumerate(instructions) if type(each) is kind][which]
        instructions[place] = replace(instructions[place], **change(instructions[place]))  # type: ignore[type-var]
    return ModelInstructions.of(instructions)


def test_a_llama_is_supported(llama):
    model = model_of(llama)
    assert model is not None and len(model.layers) == 3
    assert model.unsupported(llama.caches) is None


def linear(**fields: Any) -> Change:
    return lambda each: {"linear": replace(each.linear, **fields)}


def halved(each: Any) -> dict[str, Any]:
    return {"linear": replace(each.linear, weight=each.linear.weight.half())}


def with_bias(each: Any) -> dict[str, Any]:
    return {"linear": replace(each.linear, bias=torch.zeros(len(each.linear.weight), dtype=torch.bfloat16))}


def narrower(each: Any) -> dict[str, Any]:
    return {"linear": replace(each.linear, weight=each.linear.weight[:, :96])}


def norm(**fields: Any) -> Change:
    return lambda each: {"norm": each.norm._replace(**fields)}


def constant(**fields: Any) -> Change:
    return lambda each: fields


def head_norm(*sizes: int, eps: float = 1e-6) -> Change:
    return constant(head_norm=HeadNorm(*(torch.ones(size) for size in sizes), eps))


def rope(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda each: {"turns": type(each.turns)(*(change(table) for table in each.turns[:2]))}


def heads(**fields: int) -> Change:
    return lambda each: {"heads": each.heads._replace(**fields)}


POST = Norm(torch.ones(128), 1e-6)
# what is changed in one layer only, unless the model has it once: instruction, change, part of the reason
CHANGES: dict[str, tuple[type, Change, str]] = {
    "float16 weights": (AddProduct, halved, "the format of a matrix"),
    "a float16 head": (Head, halved, "the format of the head"),
    "another format in one layer": (
        Gate, lambda each: linear(weight=each.linear.weight.to(torch.float8_e4m3fn), scale=torch.ones(256))(each),
        "matrices in different formats",
    ),
    "FP8 without scales": (
        Gate, lambda each: linear(weight=each.linear.weight.to(torch.float8_e4m3fn))(each), "the format of a matrix",
    ),
    "other sizes in one layer": (AddProduct, narrower, "layers with different sizes"),
    "a head of other rows": (Head, narrower, "whole boxes"),
    "a bias of the output": (AddProduct, with_bias, "a bias"),
    "a bias of the gate": (Gate, with_bias, "a bias"),
    "a bias of the head": (Head, with_bias, "a bias"),
    "a bias of q, k and v in one layer": (Attend, with_bias, "with and without biases"),
    "float32 embeddings": (Embed, lambda each: {"table": each.table.float()}, "the embeddings"),
    "gate and up as two matrices": (Gate, linear(is_gate=False), "halves"),
    "another activation": (Gate, constant(kind="tanh"), "the activation silu, tanh"),
    "another activation of its matrix": (Gate, linear(kind="tanh"), "the activation silu, tanh"),
    "different activations": (Gate, constant(kind="gelu"), "the activation gelu, silu"),
    "a head without a norm": (Head, constant(norm=None), "a head without a norm"),
    "attention without a norm": (Attend, constant(norm=None), "a norm of some blocks"),
    "a gate without a norm": (Gate, constant(norm=None), "a norm of some blocks"),
    "another epsilon before attention": (Attend, norm(eps=1e-3), "different epsilons"),
    "another epsilon before the gate": (Gate, norm(eps=1e-3), "different epsilons"),
    "another epsilon before the head": (Head, norm(eps=1e-3), "different epsilons"),
    "a norm after one block": (AddProduct, constant(post_norm=POST), "a norm of some blocks"),
    "a bf16 norm": (Head, lambda each: norm(weight=each.norm.weight.bfloat16())(each), "the format of a norm"),
    "a norm of heads in one layer": (Attend, head_norm(64, 64), "different norms of heads"),
    "other heads in one layer": (Attend, heads(num_heads=4), "different heads"),
    "a rope of other size": (Attend, rope(lambda table: table[:, :16]), "different ropes"),
    "another order of rope": (
        Attend, lambda each: {"turns": each.turns._replace(interleaved=True)}, "different ropes",
    ),
    "a rope in bf16": (Attend, rope(lambda table: table.bfloat16()), "the format of a rope"),
    "a softcap in one layer": (Attend, constant(softcap=3.0), "different softcaps"),
    "deterministic attention": (Attend, constant(fixed_chunk=512), "deterministic"),
    "a matrix of another kind": (Gate, constant(linear=object()), "object"),
    "sinks": (Attend, constant(sinks=torch.zeros(2)), "Attend.sinks"),
    "slopes": (Attend, constant(slopes=torch.zeros(2)), "Attend.slopes"),
    "chunks": (Attend, constant(chunk=8), "Attend.chunk"),
    "another factor of a block": (AddProduct, constant(factor=0.5), "different factors"),
    "a residual that is read again": (AddProduct, constant(copies=True), "AddProduct.copies"),
    "a layer norm": (Gate, norm(kind="layer"), "Norm.kind"),
    "a norm with a bias": (Head, norm(bias=torch.zeros(128)), "Norm.bias"),
    "an activation of the output": (AddProduct, linear(kind="silu"), "an activation of another matrix"),
    "two layers with one cache": (Attend, constant(layer=0), "one cache each"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_model_runs_as_several_kernels_with(name, llama):
    kind, change, reason = CHANGES[name]
    model = model_of(llama, kind, change)
    assert model is not None
    assert reason in (model.unsupported(llama.caches) or "")


EVERYWHERE: dict[str, tuple[type, Change, str]] = {
    "another activation": (
        Gate, lambda each: {"kind": "tanh", **linear(kind="tanh")(each)}, "the activation tanh",
    ),
    "norms of some heads": (Attend, head_norm(64, 32), "the shape of the norms of heads"),
    "heads of another size": (Attend, heads(dim=96), "heads of 96"),
    "many heads over one key head": (Attend, heads(num_heads=16), "16 heads"),
    "heads that do not divide": (Attend, heads(num_heads=3, kv_heads=2), "3 heads"),
    "biases in float32": (
        Attend, lambda each: linear(bias=torch.zeros(len(each.linear.weight)))(each), "the format of a bias",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_model_runs_as_several_kernels_if_all_layers_have(name, llama):
    kind, change, reason = EVERYWHERE[name]
    changed = [replace(each, **change(each)) if type(each) is kind else each for each in llama.instructions]  # type: ignore[type-var]
    model = ModelInstructions.of(changed)
    assert model is not None
    assert reason in (model.unsupported(llama.caches) or "")


@pytest.mark.parametrize("eps", [1e-6, 1e-5])
def test_norms_after_blocks_have_one_epsilon(eps, llama):
    norms = iter([POST] * 5 + [POST._replace(eps=eps)])
    changed = [
        replace(each, post_norm=next(norms)) if isinstance(each, AddProduct) else each for each in llama.instructions
    ]
    model = ModelInstructions.of(changed)
    assert model is not None
    assert (model.unsupported(llama.caches) is None) == (eps == POST.eps)


def test_three_windows_or_ropes_are_too_many(llama):
    attends = [each for each in llama.instructions if isinstance(each, Attend)]
    copies = [each.turns._replace(cos=each.turns.cos + 0) for each in attends]
    for name, values in (("window", [None, 8, 16]), ("turns", copies)):
        for count in (2, 3):
            some = iter([*values[: count - 1], *values[count - 1 : count] * 3])
            changed = [
                replace(each, **{name: next(some)}) if isinstance(each, Attend) else each for each in llama.instructions
            ]
            model = ModelInstructions.of(changed)
            assert model is not None
            assert (model.unsupported(llama.caches) is None) == (count == 2)


def test_the_cache_must_have_bf16_and_blocks_of_whole_loads(llama):
    model, caches = model_of(llama), llama.caches
    assert "the format of the cache" in (model.unsupported(replace(caches, dtype=torch.float16)) or "")
    assert "blocks of 8" in (model.unsupported(replace(caches, block_tokens=8)) or "")
    other = replace(caches.specs[0], num_heads=2)
    assert "caches differ" in (model.unsupported(replace(caches, specs=[*caches.specs[1:], other])) or "")


def test_instructions_in_another_order_are_not_a_model(llama):
    assert ModelInstructions.of(llama.instructions[1:]) is None
    assert ModelInstructions.of([each for each in llama.instructions if not isinstance(each, Embed)]) is None


OPERANDS = [(Attend, "value"), (Gate, "value"), (Head, "value"), (AddProduct, "value"), (AddProduct, "residual")]


@pytest.mark.parametrize(("kind", "operand"), OPERANDS)
def test_instructions_that_read_other_values_are_not_a_model(kind, operand, llama):
    """A block beside attention reads the residual from before it."""
    embedded = next(each.out for each in llama.instructions if isinstance(each, Embed))
    assert model_of(llama, kind, lambda each: {operand: embedded}) is None


def test_known_fields_exist():
    for kind, known in KNOWN_FIELDS.items():
        assert set(known) <= set(getattr(kind, "_fields", None) or getattr(kind, "__dataclass_fields__", ()))


def test_unknown_fields_must_have_their_default(monkeypatch):
    @dataclass
    class Part:
        known: int
        flag: bool = False
        table: Any = None

    monkeypatch.setitem(KNOWN_FIELDS, Part, ("known",))
    assert _other_fields(Part(3)) == []
    assert _other_fields(Part(3, flag=True)) == ["flag"]
    assert _other_fields(Part(3, table=torch.zeros(3))) == ["table"]
