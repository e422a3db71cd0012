"""Law 8 across engines: what one engine has begun, another ends with the same tokens, whatever decides them.

To the bit: a CPU promises that always, a GPU in its deterministic mode, of matrices with 16 columns or multiples of it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from quire.types.request import SamplingParams
from tests.engine.driver import Driver, SampleRecord
from tests.models.toys import VOCAB, MemoryCheckpoint, some_tokens, toy_of

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("each_device")]

PROMPT = some_tokens(41)
NUM_TOKENS = 30
WAYS = {
    "greedy": SamplingParams(temperature=0.0),
    "seeded": SamplingParams(seed=12, top_p=0.9),
    "penalties": SamplingParams(seed=7, repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.2),
    "logprobs": SamplingParams(temperature=0.0, logprobs=2),
    "least": SamplingParams(temperature=0.0, min_tokens=25, stop_token_ids=tuple(range(0, VOCAB, 3))),
    "bad words": SamplingParams(seed=3, bad_words=tuple((a, b) for a in range(0, VOCAB, 2) for b in range(0, 20))),
}


@cache
def checkpoint() -> MemoryCheckpoint:
    return toy_of("LlamaForCausalLM", {"intermediate_size": 96}, seed=5).checkpoint


def told(way: SamplingParams, resumed: tuple[tuple[int, ...] | None, ...] = ()) -> dict[int, SampleRecord]:
    driver = Driver(checkpoint=checkpoint(), deterministic=True)
    driver.submit("it", PROMPT, way, resumed=resumed)
    for sample in [s for s in range(way.n) if resumed and resumed[s] is None]:
        del driver.records["it", sample]
    driver.run()
    return {sample: each for (_, sample), each in driver.records.items()}


@pytest.mark.parametrize("num_known", [0, 1, 8, 23])
@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_answer_equals_an_uninterrupted_one(way: str, num_known: int) -> None:
    sampling = replace(WAYS[way], max_tokens=NUM_TOKENS, n=2)
    whole = told(sampling)
    known = tuple(tuple(whole[sample].tokens[:num_known]) for sample in range(2))
    rest = told(sampling, known)
    for sample in range(2):
        assert rest[sample].tokens == whole[sample].tokens[num_known:]
        assert rest[sample].logprobs == whole[sample].logprobs[num_known:]
        assert rest[sample].finish == whole[sample].finish


def test_ended_samples_get_no_more_messages() -> None:
    sampling = replace(WAYS["seeded"], max_tokens=NUM_TOKENS, n=3)
    whole = told(sampling)
    rest = told(sampling, (None, tuple(whole[1].tokens[:9]), None))
    assert list(rest) == [1] and rest[1].tokens == whole[1].tokens[9:]
