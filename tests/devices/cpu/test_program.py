"""A lowered model against the interpreter and transformers, and its independence of other rows in the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quire.devices import base
from quire.devices.cpu import bindings, device
from quire.devices.cpu.program import NativeProgram, ReferenceProgram
from quire.graph.interpret import Interpreter
from quire.ops.batch import Batch, RowPart
from quire.ops.registry import relative_error
from tests.devices.cpu.programs import HAS_NATIVE, LIMITS, VARIANTS, lower, quantized_model, session
from tests.models.toys import CASES, FIRST_CASES, Session, make_toy, some_tokens

pytestmark = [pytest.mark.device, pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")]

F32 = replace(LIMITS, kv_dtype="f32")
READ_FORMATS = [(fmt, 32) for fmt in ("q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs", "mxfp4")]


# --- against other implementations


# All cases on the widest variant; on the others, cases that have every kind of op together.
WIDEST = [(case, VARIANTS[0]) for case in CASES] if VARIANTS else []
OTHERS = [(case, variant) for case in ("gemma2", "gpt2", "cohere-normed-heads") for variant in VARIANTS[1:]]


@pytest.mark.parametrize("case, variant", [*WIDEST, *OTHERS])
def test_logits_of_prompts_of_several_lengths_are_those_of_transformers(case, variant):
    model = make_toy(case).draw()
    program = lower(model, F32, precision="float", variant=variant)
    for length in (1, 5, 16, 33, 70):
        if length < CASES[case].min_tokens:
            continue
        tokens = some_tokens(length)
        actual = session(program, model, seed=length).step({"a": tokens})["a"]
        assert relative_error(actual, make_toy(case).expected_logits(tokens)) < 1e-4, length


@pytest.mark.parametrize("case", FIRST_CASES)
def test_64_greedy_tokens_are_those_of_transformers(case):
    model, prompt = make_toy(case).draw(), some_tokens(max(9, CASES[case].min_tokens))
    texts = session(lower(model, F32, precision="float"), model)
    tokens = [int(texts.step({"a": prompt})["a"][-1].argmax())]
    while len(tokens) < 64:
        tokens.append(int(texts.step({"a": tokens[-1:]})["a"][-1].argmax()))
    assert tokens == make_toy(case).expected_greedy(prompt, 64)


@pytest.mark.parametrize("kv_dtype, tolerance", [("f32", 1e-4), ("f16", 5e-3), ("bf16", 4e-2)])
def test_the_error_of_a_smaller_cache_is_that_of_its_format(kv_dtype, tolerance):
    model, tokens = make_toy("qwen3").draw(), some_tokens(60)
    program = lower(model, replace(LIMITS, kv_dtype=kv_dtype))
    actual = session(program, model).step({"a": tokens})["a"]
    assert relative_error(actual, Session(model).step({"a": tokens})["a"]) < tolerance


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("fmt, head_dim", [("q4_1", 32), ("q4_0", 16), ("q8_0", 32), ("q4_1", 12), *READ_FORMATS])
def test_a_quantized_model_is_close_to_its_dequantized_weights(fmt, head_dim, variant):
    model, tokens = quantized_model(fmt, head_dim), some_tokens(50)
    expected = Session(model).step({"a": tokens})["a"]
    actual = session(lower(model, variant=variant), model).step({"a": tokens})["a"]
    assert 0 < relative_error(actual, expected) < 5e-2
    exact = session(lower(model, F32, precision="float", variant=variant), model).step({"a": tokens})["a"]
    assert relative_error(exact, expected) < 1e-4


@pytest.mark.parametrize("block_tokens", [1, 5, 16, 40, 64])
def test_blocks_may_have_any_size(block_tokens):
    model, tokens = make_toy("mistral-window").draw(), some_tokens(50)
    limits = replace(F32, block_tokens=block_tokens, max_blocks=60, num_blocks=70)
    blocks = np.random.default_rng(1).permutation(70)[: -(-50 // block_tokens)].tolist()
    batch = Batch.of([RowPart(tokens, 0, blocks, num_logits=50)], block_tokens)
    actual = lower(model, limits).launch(batch).result().logits
    assert relative_error(actual, Interpreter(model.graph, model.weights, 70, block_tokens).run(batch)) < 1e-4


# --- law 8

MODELS = {
    "float": lambda: make_toy("qwen3").draw(),
    "window": lambda: make_toy("mistral-window").draw(),
    "biased": lambda: make_toy("llama-tied-biased").draw(),
    "q4_1": lambda: quantized_model("q4_1"),
    "q8_0": lambda: quantized_model("q8_0", 16),
    "q5_0": lambda: quantized_model("q5_0"),
    "q4_k": lambda: quantized_model("q4_k"),
    "q6_k": lambda: quantized_model("q6_k"),
    "iq4_nl": lambda: quantized_model("iq4_nl"),
}
ALL_MODELS = pytest.mark.parametrize("name", MODELS)


@ALL_MODELS
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_do_not_depend_on_the_size_of_chunks(name, variant):
    model, tokens = MODELS[name](), some_tokens(110)
    program = lower(model, variant=variant)
    whole = session(program, model).step({"a": tokens})["a"]
    for chunk in (1, 7, 64):
        texts = session(program, model, seed=chunk)
        pieces = [texts.step({"a": tokens[at : at + chunk]})["a"] for at in range(0, len(tokens), chunk)]
        assert np.array_equal(np.concatenate(pieces), whole), chunk


@ALL_MODELS
def test_logits_do_not_depend_on_31_others(name):
    """Every step has rows at different positions, some with one token and some with many."""
    model = MODELS[name]()
    program = lower(model)
    texts = {f"text {i}": some_tokens(3 + (i * 7) % 45) for i in range(32)}
    alone = {text: session(program, model).step({text: tokens})[text] for text, tokens in texts.items()}
    together, seen, rng = session(program, model, seed=9), dict.fromkeys(texts, 0), np.random.default_rng(1)
    while any(seen[text] < len(tokens) for text, tokens in texts.items()):
        chunks = {text: texts[text][seen[text] : seen[text] + int(rng.choice([0, 1, 1, 6, 13]))] for text in texts}
        chunks = {text: chunk for text, chunk in chunks.items() if chunk}
        for text, logits in (together.step(chunks) if chunks else {}).items():
            assert np.array_equal(logits, alone[text][seen[text] : seen[text] + len(logits)])
            seen[text] += len(logits)


@ALL_MODELS
def test_logits_do_not_depend_on_the_number_of_threads(name):
    model, tokens = MODELS[name](), some_tokens(90)
    one, two = (
        session(lower(model, num_threads=threads), model).step({"a": tokens, "b": tokens[:9]}) for threads in (1, 2)
    )
    assert np.array_equal(one["a"], two["a"]) and np.array_equal(one["b"], two["b"])


def test_a_partly_matching_block_can_be_copied_and_continued():
    """Partial reuse: two texts share their first 21 tokens; the second computes only the rest."""
    model, tokens, rest = make_toy("llama").draw(), some_tokens(30), some_tokens(6)
    alone = session(lower(model), model).step({"b": tokens[:21] + rest})["b"]
    program = lower(model)
    program.launch(Batch.of([RowPart(tokens, 0, [5, 2])], 16))
    batch = Batch.of([RowPart(rest, 21, [5, 7], num_logits=len(rest))], 16)
    logits = program.launch(replace(batch, copies=np.array([[2, 9, 16], [9, 7, 5]], np.int32))).result().logits
    assert np.array_equal(logits, alone[21:])


# --- invalid and unusual steps


STEP = Batch.of([RowPart([5, 1, 4], 0, [3, 1], num_logits=2), RowPart([9], 20, [6, 2])], 16)


def changed(**arrays: list) -> Batch:
    made = {name: np.array(value, np.int32).reshape(getattr(STEP, name).shape) for name, value in arrays.items()}
    return replace(STEP, **made)


@pytest.mark.parametrize(
    "batch, message",
    [
        (changed(token_ids=[5, 1, 131, 9]), "token_ids"),
        (changed(token_ids=[5, -1, 4, 9]), "token_ids"),
        (changed(positions=[0, 1, 3, 20]), "positions"),
        (changed(slots=[48, 49, 50, 1 << 20]), "slots"),
        (changed(slots=[48, 49, -1, 36]), "slots"),
        (changed(row_of_token=[0, 0, 1, 1]), "row_of_token"),
        (changed(starts=[0, 5, 4]), "starts"),
        (changed(starts=[0, -1, 4]), "starts"),
        (changed(lengths=[3, 40]), "lengths"),
        (changed(lengths=[3, -40]), "lengths"),
        (changed(lengths=[3, 2147483647]), "lengths"),
        (changed(block_tables=[[3, 1], [6, 200]]), "block_tables"),
        (changed(block_tables=[[-3, 1], [6, 2]]), "block_tables"),
        (changed(logits_at=[1, 2, 4]), "logits_at"),
        (changed(logits_at=[2, 1, 3]), "logits_at"),
        (replace(STEP, copies=np.array([[0, 200, 3]], np.int32)), "copies"),
        (replace(STEP, copies=np.array([[0, 1, 17]], np.int32)), "copies"),
        (replace(STEP, copies=np.zeros((1, 2), np.int32)), "copies"),
        (replace(STEP, positions=STEP.positions[:2]), "differ in length"),
        (Batch.of([RowPart([1] * 100, 0, range(7)) for _ in range(3)], 16), "more tokens"),
        (Batch.of([RowPart([1], 0, [i]) for i in range(41)], 16), "more rows"),
        (Batch.of([RowPart([1], 0, range(9))], 16), "more blocks"),
    ],
)
def test_an_inconsistent_step_is_refused_and_changes_nothing(batch, message):
    program = lower(make_toy("llama").draw())
    before = program.launch(STEP).result().logits
    with pytest.raises(ValueError, match=message):
        program.launch(batch)
    assert np.array_equal(program.launch(STEP).result().logits, before)


def test_arrays_of_another_type_are_refused():
    program = lower(make_toy("llama").draw())
    for wrong in (STEP.token_ids.astype(np.int64), STEP.token_ids.astype(np.float32), STEP.token_ids[None]):
        with pytest.raises(TypeError):
            program.launch(replace(STEP, token_ids=wrong))


def test_no_tokens_give_no_logits():
    program = lower(make_toy("llama").draw())
    assert program.launch(Batch.of([], 16)).result().logits.shape == (0, 131)
    mid_prompt = Batch.of([RowPart([1, 2], 0, [0], num_logits=0)], 16)
    assert program.launch(mid_prompt).result().logits.shape == (0, 131)


@pytest.mark.parametrize("num_top", [(0, 0, 0), (1, 1, 1), (0, 5, 40), (131, 1, 97)])
def test_the_top_tokens_are_those_of_the_logits_in_order(num_top):
    output = lower(make_toy("llama").draw()).launch(replace(STEP, num_top=np.array(num_top, np.int32))).result()
    assert output.top_tokens.shape == output.top_logits.shape == (3, max(num_top))
    for row, count in enumerate(num_top):
        tokens = output.top_tokens[row, :count]
        assert np.array_equal(tokens, np.argsort(-output.logits[row], kind="stable")[:count])
        assert np.array_equal(output.top_logits[row, :count], output.logits[row, tokens])


def test_more_top_tokens_than_the_vocabulary_has_are_refused():
    program = lower(make_toy("llama").draw())
    for wrong in (132, -1):
        with pytest.raises(ValueError, match="num_top"):
            program.launch(replace(STEP, num_top=np.array([1, wrong, 1], np.int32)))


def test_without_the_extension_the_device_still_works(monkeypatch):
    monkeypatch.setattr(device, "native", lambda: None)
    model = make_toy("llama").draw()
    slow = lower(model)
    assert isinstance(slow, ReferenceProgram) and isinstance(slow, base.Program)
    output = slow.launch(STEP).result()
    assert output.logits.shape == (3, 131) and output.top_tokens is None
    with pytest.raises(ValueError, match="larger than the program"):
        slow.launch(Batch.of([RowPart([1] * 100, 0, range(7)) for _ in range(3)], 16))
    monkeypatch.undo()
    fast = lower(model)
    assert isinstance(fast, NativeProgram) and bindings.native() is not None
    assert relative_error(fast.launch(STEP).result().logits, output.logits) < 5e-3
