"""Our graph of a model, run by the references, against transformers on the same weights in float32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quire.graph.interpret import Interpreter
from quire.models.draw import draw
from quire.ops.batch import Batch, RowPart
from quire.ops.registry import relative_error
from quire.weights.checkpoint import open_checkpoint
from tests.models.toys import CASES, CONVERSIONS, FIRST_CASES, Session, as_tensors, make_toy, some_tokens, write_gguf

pytestmark = pytest.mark.device

LENGTHS = (1, 17, 300, 1000)
CHUNKED = ("llama-llama3", "mistral-window", "qwen2-window", "qwen3", "gemma2", "gemma4", "phi3", "gpt2", "gpt_oss")
WITH_STATES = ("kimi_linear", "lfm2", "lfm2_moe", "olmo_hybrid", "qwen3_5", "qwen3_next")
IN_GGUF = [name for name, case in CASES.items() if case.in_gguf and case.kind in CONVERSIONS]


@pytest.mark.parametrize("case", CASES)
def test_logits_of_prompts_of_several_lengths_are_those_of_transformers(case):
    model = make_toy(case).draw()
    for length in LENGTHS:
        if not CASES[case].min_tokens <= length <= CASES[case].max_tokens:
            continue
        tokens = some_tokens(length)
        actual = Session(model, seed=length).step({"a": tokens})["a"]
        assert relative_error(actual, make_toy(case).expected_logits(tokens)) < 1e-4, length


@pytest.mark.parametrize("case", FIRST_CASES)
def test_64_greedy_tokens_are_those_of_transformers(case):
    prompt = some_tokens(max(9, CASES[case].min_tokens))
    session = Session(make_toy(case).draw())
    tokens = [int(session.step({"a": prompt})["a"][-1].argmax())]
    while len(tokens) < 64:
        tokens.append(int(session.step({"a": tokens[-1:]})["a"][-1].argmax()))
    assert tokens == make_toy(case).expected_greedy(prompt, 64)


@pytest.mark.parametrize("case", CHUNKED)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_logits_do_not_depend_on_the_size_of_chunks(case, chunk):
    model, tokens = make_toy(case).draw(), some_tokens(70)
    whole = Session(model).step({"a": tokens})["a"]
    session = Session(model, seed=chunk)
    pieces = [session.step({"a": tokens[at : at + chunk]})["a"] for at in range(0, len(tokens), chunk)]
    assert np.array_equal(np.concatenate(pieces), whole)


@pytest.mark.parametrize("case", WITH_STATES)
@pytest.mark.parametrize("chunk, length", [(1, 40), (7, 40), (64, 150), (512, 600)])
def test_logits_of_a_model_with_states_do_not_depend_on_the_size_of_chunks(case, chunk, length):
    model, tokens = make_toy(case).draw(), some_tokens(length)
    whole = Session(model).step({"a": tokens})["a"]
    session = Session(model, seed=chunk)
    session.step({"b": tokens[:1]})
    pieces = [session.step({"a": tokens[at : at + chunk]})["a"] for at in range(0, len(tokens), chunk)]
    assert np.array_equal(np.concatenate(pieces), whole)


@pytest.mark.parametrize("case", ["llama", "mistral-window", "qwen2", "qwen3", "qwen2_moe", *WITH_STATES])
def test_logits_do_not_depend_on_other_rows(case):
    """Every step has rows at different positions, some with one token and some with many."""
    model = make_toy(case).draw()
    texts = {f"text {length}": some_tokens(length) for length in (3, 18, 31, 40, 47)}
    alone = {name: Session(model).step({name: tokens})[name] for name, tokens in texts.items()}
    session, seen = Session(model, seed=9), dict.fromkeys(texts, 0)
    rng = np.random.default_rng(1)
    while any(seen[name] < len(tokens) for name, tokens in texts.items()):
        takes = {name: int(rng.choice([0, 1, 1, 6, 13])) for name in texts}
        chunks = {n: texts[n][seen[n] : seen[n] + take] for n, take in takes.items()}
        chunks = {name: chunk for name, chunk in chunks.items() if chunk}
        for name, logits in (session.step(chunks) if chunks else {}).items():
            assert np.array_equal(logits, alone[name][seen[name] : seen[name] + len(logits)])
            seen[name] += len(logits)


@pytest.mark.parametrize("case", IN_GGUF)
def test_a_gguf_file_of_the_model_gives_the_same_logits(case, tmp_path):
    checkpoint = open_checkpoint(write_gguf(make_toy(case).as_gguf(), tmp_path / "toy.gguf"))
    tokens = some_tokens(max(40, CASES[case].min_tokens))
    actual = Session(draw(checkpoint)).step({"a": tokens})["a"]
    assert relative_error(actual, make_toy(case).expected_logits(tokens)) < 1e-4


@pytest.mark.parametrize("case", ["phi", "glm", "glm4-biased"])
def test_a_gguf_model_with_q_k_and_v_in_one_tensor_gives_the_same_logits(case):
    checkpoint, tokens = make_toy(case).as_gguf(), some_tokens(20)
    tensors = dict(checkpoint.tensors)
    for layer, kind in ((layer, kind) for layer in range(2) for kind in ("weight", "bias")):
        parts = [tensors.pop(f"blk.{layer}.attn_{word}.{kind}").array for word in "qkv"]
        tensors |= as_tensors({f"blk.{layer}.attn_qkv.{kind}": np.concatenate(parts)})
    actual = Session(draw(replace(checkpoint, tensors=tensors))).step({"a": tokens})["a"]
    assert relative_error(actual, make_toy(case).expected_logits(tokens)) < 1e-4


def test_a_partly_matching_block_can_be_copied_and_continued():
    """Partial reuse: two texts share their first 21 tokens; the second computes only the rest."""
    model, tokens, rest = make_toy("llama").draw(), some_tokens(30), some_tokens(6)
    text = tokens[:21] + rest
    alone = Session(model).step({"b": text})["b"]
    machine = Interpreter(model.graph, model.weights, num_blocks=8, block_tokens=16)
    machine.run(Batch.of([RowPart(tokens, 0, [5, 2])], 16))
    batch = Batch.of([RowPart(rest, 21, [5, 7], num_logits=len(rest))], 16)
    logits = machine.run(replace(batch, copies=np.array([[2, 7, 5]], np.int32)))
    assert np.array_equal(logits, alone[21:])


@pytest.mark.parametrize("case", ["cohere2", "afmoe", "exaone4", "gemma4"])
def test_a_window_that_no_text_exceeds_changes_nothing_else(case):
    """Layers with a window may differ from others in more than the window."""
    toy = make_toy(case)
    window = toy.torch_model.config.sliding_window
    model, tokens = draw(toy.checkpoint, lambda config: window), some_tokens(window)
    assert model.graph.caches[0].window is None
    assert relative_error(Session(model).step({"a": tokens})["a"], toy.expected_logits(tokens)) < 1e-4
