"""Number formats and deterministic mode for kinds of layers; what a Llama is lowered to."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from quire.devices.base import Limits
from quire.models.draw import DrawnModel, draw
from quire.ops.batch import Batch, RowPart
from tests.devices.cuda.models import Texts, in_format, lowered, rms_error, small
from tests.devices.interpreted import in_interpreter
from tests.models.case import TOKENS
from tests.models.toys import BLOCK, Toy, as_tensors, make_toy, some_tokens, toy_of

pytestmark = pytest.mark.device

LIMITS = Limits(max_tokens=32, max_rows=4, max_logits=32, max_blocks=4, num_blocks=16, block_tokens=BLOCK)
# a prompt with logits of every token; the next tokens of it, beside another prompt; one token of each
STEPS = (
    ([RowPart(some_tokens(11), 0, [3], 11)]),
    ([RowPart([7, 8], 11, [3], 2), RowPart(some_tokens(6), 0, [1], 1)]),
    ([RowPart([9], 13, [3], 1), RowPart([2], 6, [1], 1)]),
)
BF16_MARGIN = 1.5  # times the error of torch in the same format
# kinds of layers whose matrices can be streamed
KINDS = {
    "post-norms": ("Gemma2ForCausalLM", {"head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 16}),
    "wide norms": ("Olmo2ForCausalLM", {"head_dim": 16}),
    "layer norms": ("NemotronForCausalLM", {"head_dim": 16}),
    "factors": ("GraniteForCausalLM", {"residual_multiplier": 0.4, "logits_scaling": 2.0, "embedding_multiplier": 3.0}),
}
WIDTHS = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
# instructions of a Llama of two layers; the tail of the last one is narrowed
LLAMA = [
    *("Embed", "Attend", "AddProduct", "Forget", "Gate", "AddProduct", "Forget"),
    *("Attend", "Select", "Forget", "Select", "Forget", "AddProduct", "Forget", "Gate", "AddProduct", "Forget"),
    *("Head", "Forget"),
]


@cache
def wide(kind: str) -> Toy:
    name, different = KINDS[kind]
    return toy_of(name, {**TOKENS, **WIDTHS, **different}, seed=len(kind))


def logits(model: DrawnModel, place: str, **options) -> list[np.ndarray]:
    program = lowered(model, place, LIMITS, **options)
    return [program.launch(Batch.of(rows, BLOCK)).result().logits for rows in STEPS]


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "plain"])
@pytest.mark.parametrize("kind", ["post-norms", *in_interpreter("layer norms")])
def test_bfloat16_is_as_near_to_float32_as_torch(kind, fuse, place):
    """Few tokens are streamed, many are multiplied by the library."""
    toy, tokens = wide(kind), some_tokens(20)
    exact = toy.expected_logits(tokens)
    rounded = replace(toy, torch_model=copy.deepcopy(toy.torch_model).bfloat16())
    torch_error = rms_error(rounded.expected_logits(tokens), exact)
    program = lowered(toy.draw(), place, LIMITS, fuse=fuse)
    many = Texts(program).step({0: tokens}, 20)
    texts = Texts(program)
    few = np.concatenate([texts.step({0: tokens[:12]}, 12), texts.step({0: tokens[12:]}, 8)])
    assert max(rms_error(each, exact) for each in (few, many)) <= BF16_MARGIN * torch_error


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "plain"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_token_does_not_depend_on_its_chunk_in_deterministic_mode(kind, fuse, place):
    program, tokens = lowered(wide(kind).draw(), place, LIMITS, fuse=fuse, deterministic=True), some_tokens(9)
    alone = Texts(program).step({0: tokens}, 9)
    texts = Texts(program)
    chunks = [texts.step({0: tokens[:4], 1: tokens[2:5]}, 4)[:4], texts.step({1: [5], 0: tokens[4:]}, 5)[-5:]]
    assert np.array_equal(np.concatenate(chunks), alone)


@pytest.mark.parametrize("kind", ["post-norms", pytest.param("factors", marks=pytest.mark.slow)])
@pytest.mark.parametrize("stored", ["fp8", "q4_0"])
def test_quantized_matrices_give_the_same_fused_and_plain(stored, kind, place):
    """Matrices are scaled down so that they do not amplify the errors of FP8."""
    whole = wide(kind).checkpoint
    arrays = {name: each.array * (0.35 if each.array.ndim == 2 else 1) for name, each in whole.tensors.items()}
    model = draw(replace(whole, tensors=as_tensors(arrays)))
    if stored == "q4_0":
        matrices = [name for name in model.weights if ".attn." in name or ".mlp." in name]
        matrices = [name for name in matrices if len(model.weights[name].shape) == 2]
        quantized = {name: in_format(model.weights[name], stored, i) for i, name in enumerate(matrices)}
        model = replace(model, weights={**model.weights, **quantized})
    how = {"quantize": "fp8"} if stored == "fp8" else {}
    fused, plain = (logits(model, place, fuse=fuse, **how) for fuse in (True, False))
    for ours, theirs in zip(fused, plain, strict=True):
        assert np.linalg.norm(ours - theirs) <= 0.15 * np.linalg.norm(theirs)


def kinds_of(model: DrawnModel, place: str, **options) -> list[str]:
    return [type(each).__name__ for each in lowered(model, place, LIMITS, **options).instructions]


def test_the_instructions_of_a_llama_are_fused(place):
    assert kinds_of(small("llama").draw(), place) == LLAMA


def test_plain_instructions_alone_run_without_fusion(place):
    fused = {"Attend", "AddProduct", "Gate", "Head"}
    assert not fused & set(kinds_of(small("llama").draw(), place, fuse=False))


@pytest.mark.parametrize(
    "name, layer",
    [
        ("gemma2", ["Attend", "AddProduct", "Gate", "AddProduct"]),
        ("granite", ["Attend", "AddProduct", "Gate", "AddProduct"]),
        ("phi3", ["Attend", "AddProduct", "Gate", "AddProduct"]),
        ("arcee", ["Attend", "AddProduct", "Multiply", "AddProduct"]),
        ("gpt2", ["Normalize", "Attend", "AddProduct", "Normalize", "Multiply", "AddProduct"]),
        ("cohere", ["Normalize", "Attend", "AddProduct", "Gate", "AddProduct"]),
    ],
)
def test_the_layers_of_other_architectures_are_fused(name, layer, place):
    kinds = kinds_of(make_toy(name).draw(), place)
    start = kinds.index("Attend") - layer.index("Attend")
    assert [each for each in kinds[start:] if each != "Forget"][: len(layer)] == layer
