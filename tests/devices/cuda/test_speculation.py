"""Drafts on the device: the same text with and without them, in every way of sampling."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quire.devices.base import Limits
from quire.devices.cuda.drafted import ROW_TOKENS, SINGLY, TOGETHER, are_separate, continues_all
from quire.devices.cuda.inputs import Inputs, StepSizes
from quire.ops.batch import Batch, RowPart
from quire.scheduler.plain_step import PlainStep
from quire.scheduler.speculation import DraftCandidate, Speculation
from quire.types.request import SamplingParams
from tests.devices.cuda.models import CudaDriver, lowered, random_llama, small
from tests.devices.interpreted import in_interpreter, on_gpu
from tests.engine.known_drafts import KnownDrafts
from tests.models.toys import BLOCK, make_toy, some_tokens

pytestmark = pytest.mark.device
NUM_TOKENS = 8
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
WAYS = {
    "greedy": GREEDY,
    "seeded": SamplingParams(seed=3, top_k=30, top_p=0.9, min_p=0.01, max_tokens=NUM_TOKENS),
    "penalized": replace(GREEDY, frequency_penalty=0.4, repetition_penalty=1.2),
    "scored": replace(GREEDY, logprobs=2),
}


@pytest.fixture(autouse=True)
def all_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draft is tried, whatever steps with drafts take here."""

    def choose_all(self: Speculation, candidates: list[DraftCandidate], step: PlainStep) -> list[int]:
        return [len(each.gains) for each in candidates]

    monkeypatch.setattr(Speculation, "_best_counts", choose_all)


def run(driver: CudaDriver, ways: dict[str, SamplingParams]) -> dict[str, list[int]]:
    for index, (name, sampling) in enumerate(ways.items()):
        driver.submit(name, some_tokens(4 + 5 * index), sampling)
    driver.run()
    return {name: driver.tokens(name) for name in ways}


def drafting(place: str, checkpoint: Any, texts: dict[str, list[int]], **settings: Any) -> CudaDriver:
    prompts = {name: some_tokens(4 + 5 * index) for index, name in enumerate(texts)}
    drafter = KnownDrafts({name: (prompts[name], texts[name]) for name in texts})
    return CudaDriver(place, checkpoint, drafters=[drafter], **settings)


def num_accepted(driver: CudaDriver) -> int:
    return sum(driver.core.counters().accepted_drafts.values())


@pytest.mark.parametrize("name", ["llama", *on_gpu("mistral-window", "qwen3", "qwen2-windows")])
def test_drafts_change_no_token_in_deterministic_mode(name, place):
    checkpoint = small(name).checkpoint
    without = run(CudaDriver(place, checkpoint, speculate="off"), WAYS)
    for max_in_flight in (2, *([] if place == "cpu" else [1])):
        driver = drafting(place, checkpoint, without, max_in_flight=max_in_flight)
        assert run(driver, WAYS) == without
        assert num_accepted(driver) > 0


@pytest.mark.parametrize("captures", [*in_interpreter(False), *on_gpu(False, True)])
@pytest.mark.parametrize("name", ["lfm2", *on_gpu("mamba2", "qwen3_5", "qwen3_next", "nemotron_h-experts")])
def test_drafts_change_no_token_of_a_model_with_states(name, captures, place):
    """States go back to the start of a draft with a wrong token; what was accepted is computed again.

    On a GPU, deterministic mode does not support the odd widths of three toys: they run in float32.
    """
    checkpoint, ways = make_toy(name).checkpoint, dict(list(WAYS.items())[: 2 if place == "cpu" else 4])
    settings = {"captures": captures, "num_states": 24}
    if name not in ("lfm2", "mamba2"):
        settings |= {"dtype": "f32", "deterministic": False}
    without = run(CudaDriver(place, checkpoint, speculate="off", **settings), ways)
    driver = drafting(place, checkpoint, without, **settings)
    assert run(driver, ways) == without
    assert num_accepted(driver) > 0
    program = driver.program.inner  # type: ignore[attr-defined]
    assert not captures or any(kind.drafts for _, kind in program._captured)


@pytest.mark.gpu
@pytest.mark.parametrize("name, captures", [("llama", False), ("llama", True), ("lfm2", True)])
def test_drafts_change_no_token_of_200_greedy_requests_and_100_others_in_deterministic_mode(name, captures, place):
    """Captured steps of many sizes; of the others, some have no drafts."""
    checkpoint, ways = random_llama(vocab=1024) if name == "llama" else make_toy(name).checkpoint, {}
    for index in range(300):
        way, speculate = GREEDY, "auto"
        if index >= 200:
            way, speculate = list(WAYS.values())[index % 4], "off" if index % 7 == 0 else "auto"
        ways[str(index)] = replace(way, max_tokens=20 + index % 13, speculate=speculate)
    prompts = {each: [int(each) % 100, 100 + int(each) // 100, *some_tokens(3 + int(each) % 40)] for each in ways}
    settings = {"num_blocks": 2000, "num_states": 100, "max_rows": 24, "max_context": 2048}

    def answers(driver: CudaDriver) -> dict[str, list[int]]:
        for each, sampling in ways.items():
            driver.submit(each, prompts[each], sampling)
        driver.run()
        return {each: driver.tokens(each) for each in ways}

    without = answers(CudaDriver(place, checkpoint, speculate="off", **settings))
    known = KnownDrafts({each: (prompts[each], text) for each, text in without.items()})
    driver = CudaDriver(place, checkpoint, drafters=[known], captures=captures, **settings)
    assert answers(driver) == without
    assert num_accepted(driver) > 500


@pytest.mark.parametrize("way", [*in_interpreter("greedy"), *on_gpu("greedy", "seeded")])
def test_drafts_are_accepted_in_float32_by_the_fast_kernels(way, place):
    checkpoint, ways = small("llama").checkpoint, {str(n): WAYS[way] for n in range(2)}
    settings = {"dtype": "f32", "deterministic": False}
    without = run(CudaDriver(place, checkpoint, speculate="off", **settings), ways)
    driver = drafting(place, checkpoint, without, **settings)
    assert run(driver, ways) == without
    assert num_accepted(driver) > 0


def step_of(*rows: tuple[int, int, list[int]], num_logits: int = ROW_TOKENS) -> Batch:
    """Return a step of rows with (computed, new) tokens and blocks."""
    return Batch.of([RowPart([0] * new, at, table, min(num_logits, new)) for at, new, table in rows], BLOCK)


def test_steps_that_go_on_have_rows_of_a_few_tokens_and_no_text_that_begins():
    assert continues_all(step_of((20, 3, [0, 1]), (4, 1, [2])), 4)
    assert not continues_all(step_of((20, 3, [0, 1]), (4, 1, [2])), 3), "the buffers have room for 3"
    assert continues_all(step_of((20, 3, [0, 1]), (4, 1, [2]), num_logits=1), 4), "forced tokens"
    assert not continues_all(step_of((20, 1, [0, 1]), (4, 1, [2])), 4), "every row has one token"
    assert not continues_all(step_of((20, 3, [0, 1]), (0, 2, [2]), num_logits=1), 99), "a prompt"
    assert not continues_all(step_of((4, ROW_TOKENS + 1, [0])), 99)


def test_rows_are_separate_unless_one_reads_what_another_writes():
    assert are_separate(step_of((20, 3, [0, 1])), BLOCK)
    assert are_separate(step_of((20, 3, [0, 1]), (18, 2, [0, 2])), BLOCK), "the first block is not written"
    assert not are_separate(step_of((14, 2, [0]), (16, 2, [0, 1])), BLOCK)
    assert are_separate(step_of((14, 2, [0]), (16, 2, [3, 1, 0])), BLOCK), "beyond its length a table is undefined"
    shared = replace(step_of((20, 3, [0, 1]), (18, 2, [0, 2])), groups=np.array([(0, 0, 200), (0, 1, 200)], np.int32))
    assert not are_separate(shared, BLOCK), "reading what they share once is faster"


def test_only_the_kernel_for_few_rows_plans_tokens_singly(place, monkeypatch):
    program: Any = CudaDriver(place, small("llama").checkpoint).program.inner
    assert program._drafts_of(4) == TOGETHER, "there is no such kernel"
    monkeypatch.setattr(program, "variants", [SimpleNamespace(max_rows=8, max_tokens=16, row_tokens=ROW_TOKENS)])
    assert [program._drafts_of(size) for size in (4, 16, 17)] == [SINGLY, SINGLY, TOGETHER]
    assert program._drafts_of(4, lambda: False) == TOGETHER, "a row reads what another one writes"


@pytest.mark.parametrize("most, rows", [(64, 64), (256, 16), (256, 64)])
def test_inputs_have_room_for_the_largest_step_with_drafts_of_a_model_with_states(most, rows):
    limits = Limits(most, rows, max_logits=most, max_blocks=2, num_blocks=140, block_tokens=BLOCK, num_states=70)
    program = lowered(make_toy("lfm2").draw(), "cpu", limits, dtype="f32")
    sizes = StepSizes(most, rows, most, chunks=most, scans=rows, drafts=TOGETHER)
    numbers = program._staging[0].numbers.numpy()
    inputs = Inputs.of(numbers, numbers.view(np.float32), sizes, program._work_of(sizes))
    assert len(inputs.tables) >= rows * limits.max_blocks
