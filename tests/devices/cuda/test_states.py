"""Programs of recurrent models: chunks of prompts, checkpoints, padding, and what happens when memory runs out."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from quire.devices.base import Limits, LoweringOptions
from quire.devices.cuda.caches import Caches
from quire.devices.cuda.device import CudaDevice
from quire.devices.cuda.few_rows_model import ModelInstructions
from quire.devices.cuda.plan import state_bytes, state_slots
from quire.devices.cuda.program import CudaProgram
from quire.graph.graph import Graph
from quire.ops.batch import Batch, RowPart, StateSlots
from quire.ops.cache import PagedKV, State
from quire.ops.registry import relative_error
from quire.types.errors import OutOfDeviceMemory, StepFailed
from tests.devices.cpu.programs import session
from tests.devices.cuda.models import kv_tensor
from tests.models.toys import BLOCK, make_toy, some_tokens

pytestmark = pytest.mark.device

LIMITS = Limits(max_tokens=128, max_rows=4, max_logits=128, max_blocks=8, num_blocks=16, kv_dtype="f32", num_states=6)


@cache
def lowered(name: str, place: str, deterministic: bool = False) -> CudaProgram:
    model = make_toy(name).draw()
    options = LoweringOptions(dtype="f32", captures=False, deterministic=deterministic)
    return CudaDevice(place).lower(model.graph, model.weights, LIMITS, options)


def test_a_prompt_in_chunks_beside_a_decoding_row_gives_the_logits_of_transformers(place: str):
    """Rows of a hybrid: 18 tokens in two steps, and 20 tokens in one step beside the last token of the first row."""
    toy, first, second = make_toy("qwen3_5"), some_tokens(18), some_tokens(20)
    texts = session(lowered("qwen3_5", place), toy.draw(), num_blocks=LIMITS.num_blocks)
    pieces = [texts.step({"a": first[:17]})["a"]]
    both = texts.step({"a": first[17:], "b": second})
    assert relative_error(np.concatenate([*pieces, both["a"]]), toy.expected_logits(first)) < 1e-4
    assert relative_error(both["b"], toy.expected_logits(second)) < 1e-4


def logits_of(program: CudaProgram, tokens: list[int], start: int, source: int, target: int, *saves: tuple[int, int]):
    """Logits of a step of one row of a model without KV."""
    batch = Batch.of([RowPart(tokens, start, [0] * LIMITS.max_blocks, len(tokens))], BLOCK)
    slots = [np.array(each, np.int32) for each in ([source], [target])]
    states = StateSlots(*slots, np.array(saves, np.int32).reshape(-1, 2))
    return program.launch(replace(batch, states=states)).result().logits


def test_a_row_that_resumes_at_a_checkpoint_has_the_bits_of_a_cold_one(place: str):
    """In deterministic mode. The checkpoint is made inside a step; it is read by two rows, and stays as it was."""
    program, tokens = lowered("mamba2", place, deterministic=True), some_tokens(20)
    logits_of(program, tokens[:12], 0, -1, 2, (6, 4))
    cold = logits_of(program, tokens, 0, -1, 1)
    for target in (3, 5):
        assert np.array_equal(logits_of(program, tokens[7:], 7, 4, target), cold[7:])
    assert np.array_equal(logits_of(program, tokens[12:], 12, 2, 2), cold[12:])


def test_a_step_without_logits_updates_all_states(place: str):
    program, tokens = lowered("mamba2", place, deterministic=True), some_tokens(9)
    batch = Batch.of([RowPart(tokens[:5], 0, [0], 0)], BLOCK)
    program.launch(batch).result()
    assert np.array_equal(logits_of(program, tokens[5:], 5, 0, 0), logits_of(program, tokens, 0, -1, 1)[5:])


def test_a_step_that_changes_states_fails_if_memory_runs_out_inside_it(place: str, monkeypatch):
    """It must not be launched again: its tokens would be in the states twice. Before it began, it may."""
    program = lowered("mamba2", place)
    batch = Batch.of([RowPart([1], 0, [0])], BLOCK)

    def fail(*_, **__):
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patched:
        patched.setattr(CudaProgram, "_forward", fail)
        with pytest.raises(StepFailed) as caught:
            program.launch(batch)
    assert not isinstance(caught.value, OutOfDeviceMemory)
    monkeypatch.setattr("quire.devices.cuda.program.torch.empty", fail)
    with pytest.raises(OutOfDeviceMemory):
        program.launch(batch)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["lfm2", "mamba2"])
def test_captured_steps_with_padding_have_the_bits_of_steps_without(name: str, place: str):
    """Prompts of 15 to 25 tokens, then five rows that decode, padded to six. A sixth row stays as it was."""
    limits = replace(LIMITS, max_rows=6, num_blocks=48)
    model, results = make_toy(name).draw(), []
    for captures in (False, True):
        options = LoweringOptions(dtype="f32", captures=captures, deterministic=True)
        program = CudaDevice(place).lower(model.graph, model.weights, limits, options)
        texts = session(program, model, num_blocks=limits.num_blocks)
        found = [texts.step({str(row): some_tokens(15 + 2 * row) for row in range(6)})]
        found += [texts.step({str(row): [step] for row in range(5)}) for step in range(4)]
        found.append(texts.step({"5": [7]}))
        results.append([logits for step in found for logits in step.values()])
        assert captures == (program.num_padded > 0)
    assert all(np.array_equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["lfm2", "mamba2"])
def test_captured_steps_with_drafts_and_padding_have_the_bits_of_steps_without(name: str, place: str):
    """Rows of one to eight tokens: 13 tokens padded to 14, and 23 to 24. A row without tokens stays as it was."""
    limits = replace(LIMITS, max_rows=6, num_blocks=48)
    model, results = make_toy(name).draw(), []
    for captures in (False, True):
        options = LoweringOptions(dtype="f32", captures=captures, deterministic=True)
        program = CudaDevice(place).lower(model.graph, model.weights, limits, options)
        texts = session(program, model, num_blocks=limits.num_blocks)
        found = [texts.step({str(row): some_tokens(15 + 2 * row) for row in range(6)})]
        for counts in ((8, 1, 2, 1, 1), (1, 8, 8, 3, 3), (1, 1, 1, 2, 8), (2,)):
            found.append(texts.step({str(row): some_tokens(count) for row, count in enumerate(counts)}))
        found.append(texts.step({"5": [7]}))
        results.append([logits for step in found for logits in step.values()])
        assert captures == (program.num_padded > 0)
        assert captures == any(kind.drafts and graph is not None for (_, kind), graph in program._captured.items())
    assert all(np.array_equal(*pair) for pair in zip(*results, strict=True))


def test_the_kernel_for_few_rows_does_not_take_a_model_with_states(place: str):
    assert ModelInstructions.of(lowered("qwen3_5", place).instructions) is None


def test_layers_with_states_leave_the_kv_of_the_others_in_one_tensor():
    specs = [State((4, 2)), PagedKV(2, 16, 16), State((3,)), PagedKV(2, 16, 16)]
    caches = Caches(specs, BLOCK, torch.float32, torch.device("cpu"), num_blocks=3, num_states=5)
    assert kv_tensor(caches).shape[0] == 2
    assert [caches.index_of(layer) for layer in (1, 3)] == [0, 1]
    assert caches.of(3)[0].data_ptr() == kv_tensor(caches)[1, 0].data_ptr()
    assert caches.states_of(0).shape == (6, 4, 2) and caches.states_of(2).shape == (6, 3)
    assert caches.num_bytes == kv_tensor(caches).nbytes


def test_states_are_one_for_each_row_unless_the_limits_say_how_many():
    graph = Graph({})
    assert state_slots(graph, LIMITS) == state_bytes(graph, LIMITS) == 0
    graph.caches.append(State((4, 2)))
    assert state_slots(graph, LIMITS) == LIMITS.num_states
    assert state_slots(graph, replace(LIMITS, num_states=0)) == LIMITS.max_rows
    assert state_bytes(graph, LIMITS) == 7 * 8 * 4
