"""Whatever a user gives from Python, only a QuireError comes out, and the model keeps answering."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.engine.async_llm import AsyncLLM
from quire.engine.llm import LLM
from quire.types.errors import InvalidRequest, QuireError
from quire.types.request import Constraint, ConstraintKind, SamplingParams
from tests.engine.conftest import ChildLLM
from tests.runner.stand_in import InterpreterDevice

pytestmark = pytest.mark.pure

SHORT = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
FIELDS = tuple(SamplingParams.__dataclass_fields__)

numbers = st.one_of(
    st.integers(-3, 3),
    st.integers(),
    st.sampled_from([2**31 - 1, 2**31, 2**32, 2**63, 2**64, 10**400, 200, 300]),
    st.floats(),
    st.floats(0, 2),
    st.booleans(),
)
texts = st.one_of(st.text(max_size=5), st.sampled_from(["", "\ud800", "5", "a\0b", "<|im_end|>"]))
plain = st.one_of(st.none(), numbers, texts, st.binary(max_size=3), st.just(object()))
values = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(texts, st.integers(0, 300)), inner, max_size=2)
    ),
    max_leaves=5,
)
ids = st.lists(st.integers(-2, 300), max_size=4)
prompts = st.one_of(
    values,
    texts,
    ids,
    st.lists(ids, max_size=3),
    st.fixed_dictionaries({}, optional={"prompt": values, "prompt_token_ids": st.one_of(ids, values)}),
)
messages = st.fixed_dictionaries(
    {}, optional={"role": st.one_of(st.just("user"), values), "content": st.one_of(texts, values), "extra": values}
)
sensible = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.one_of(st.floats(0, 2), st.sampled_from([1e-300, 1e300, 0, 5e-324])),
        "top_k": st.sampled_from([-1, 0, 1, 3, 10**6, 2**31, 2**70]),
        "top_p": st.sampled_from([5e-324, 0.1, 1.0]),
        "min_p": st.sampled_from([0.0, 5e-324, 0.5, 1.0]),
        "typical_p": st.sampled_from([5e-324, 0.5, 1.0]),
        "repetition_penalty": st.sampled_from([1e-6, 1.1, 1e6]),
        "presence_penalty": st.floats(-2, 2),
        "n": st.integers(1, 3),
        "seed": st.integers(),
        "logprobs": st.sampled_from([0, 5, 2**31, 2**70]),
        "prompt_logprobs": st.sampled_from([0, 5, 2**70]),
        "min_tokens": st.sampled_from([0, 1, 2]),
        "logit_bias": st.dictionaries(st.integers(-1, 300), st.sampled_from([1e6, -1e6, 0.5]), max_size=3),
        "allowed_token_ids": st.one_of(st.integers(0, 10), st.lists(st.integers(0, 300), max_size=3)),
        "bad_words": st.lists(st.lists(st.integers(0, 300), max_size=2), max_size=2),
        "stop": st.one_of(st.text(max_size=2), st.lists(st.text(max_size=2), max_size=2)),
        "stop_token_ids": st.one_of(st.integers(-1, 300), st.lists(st.integers(0, 300), max_size=2)),
        "ignore_eos": st.booleans(),
    },
)
fuzz = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.fixture(scope="module")
def model(toy_folder: Path) -> Iterator[LLM]:
    with LLM(toy_folder, device=InterpreterDevice(), num_blocks=120, max_rows=32, max_context=128) as opened:
        yield opened


def attempt(call: Any) -> Any:
    """What it returns, or the error that it is refused with."""
    try:
        return call()
    except QuireError as error:
        assert error.public
        return error


def still_answers(model: LLM) -> bool:
    return len(model.generate([[5, 6, 7]], SHORT)[0].tokens) == 2


@fuzz
@given(st.dictionaries(st.one_of(st.sampled_from(FIELDS), st.sampled_from(["best_of", "x"])), values, max_size=4))
def test_sampling_params_are_made_or_refused(given_values):
    attempt(lambda: SamplingParams(**given_values))


@fuzz
@given(sensible)
def test_parameters_at_their_limits_work_or_are_refused(model, chosen):
    made = attempt(lambda: SamplingParams(**{"max_tokens": 2, **chosen}))
    if isinstance(made, SamplingParams):
        attempt(lambda: model.generate([[5, 6, 7]], made))
    assert still_answers(model)


@fuzz
@given(prompts, st.one_of(st.none(), st.just(SHORT), values), st.one_of(st.none(), values))
def test_generate_takes_or_refuses_any_arguments(model, prompt, sampling, constraint):
    way = SHORT if sampling is None else sampling  # without a limit an answer would fill the context
    attempt(lambda: model.generate(prompt, way, constraint=constraint))
    attempt(lambda: [delta.text for delta in model.stream(prompt, way)])
    assert still_answers(model)


@fuzz
@given(st.one_of(values, st.lists(st.one_of(messages, values), max_size=3)), st.one_of(st.none(), values))
def test_chat_takes_or_refuses_any_arguments(model, talk, tools):
    attempt(lambda: model.chat(talk, SHORT, tools=tools))
    assert still_answers(model)


@pytest.mark.parametrize(
    "call",
    [
        lambda llm: llm.generate(None),
        lambda llm: llm.generate(5),
        lambda llm: llm.generate(b"bytes"),
        lambda llm: llm.generate([None]),
        lambda llm: llm.generate([[10**9]]),
        lambda llm: llm.generate("a", {"temperature": 0}),
        lambda llm: llm.generate("a", [SHORT, SHORT]),
        lambda llm: llm.generate("a", SamplingParams(n=5000)),
        lambda llm: llm.generate("a", constraint="[a-z]"),
        lambda llm: llm.generate("a", constraint=Constraint(ConstraintKind.REGEX, "[")),
        lambda llm: llm.chat([]),
        lambda llm: llm.chat(["hi", "ho"]),
        lambda llm: llm.chat([{"role": "user", "content": {"image": 1}}]),
        lambda llm: llm.chat("hi", tools=5),
        lambda llm: next(llm.stream(None)),
    ],
)
def test_a_mistake_raises_an_error_of_one_sentence(model, call):
    with pytest.raises(InvalidRequest) as caught:
        call(model)
    assert caught.value.field and len(caught.value.public) < 400
    assert still_answers(model)


def test_more_samples_than_the_queue_holds_are_submitted_later(toy_folder):
    settings = {"num_blocks": 120, "max_rows": 8, "max_waiting": 20}
    with LLM(toy_folder, device=InterpreterDevice(), **settings) as llm:
        answers = llm.generate([[5, 6, n] for n in range(7, 13)], SHORT.updated(n=9))
        assert [len(answer.samples) for answer in answers] == [9] * 6
        found: list[list[int]] = []

        def ask() -> None:
            found.append([len(each.samples) for each in llm.generate([[5, 6, 7]] * 3, SHORT.updated(n=15))])

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [[15] * 3] * 3
        with pytest.raises(InvalidRequest, match=r"n is 21.*20"):
            llm.generate([[5]], SamplingParams(n=21))


def test_coroutines_wait_while_the_queue_is_full_too(toy_folder):
    async def run(llm: AsyncLLM) -> list[int]:
        calls = [llm.generate([[5, 6, 7]] * 3, SHORT.updated(n=15)) for _ in range(3)]
        return [len(each.samples) for answers in await asyncio.gather(*calls) for each in answers]

    settings = {"num_blocks": 120, "max_rows": 8, "max_waiting": 20, "in_process": True}
    llm = AsyncLLM(toy_folder, device=InterpreterDevice(), **settings)
    assert asyncio.run(run(llm)) == asyncio.run(run(llm)) == [15] * 9  # in two event loops
    llm.client.close()


def test_the_same_numbers_reach_an_engine_in_a_child_process(toy_folder):
    huge = {"top_k": 2**70, "max_tokens": 2**70, "seed": 2**90, "logprobs": 2**70, "logit_bias": {"7": 1}}
    with ChildLLM(toy_folder, num_blocks=120, max_rows=8, max_context=32) as llm:
        answer = llm.generate([[5, 6, 7]], SamplingParams(**huge, stop=["zz"], bad_words=[[1]], ignore_eos=True))[0]
        assert len(answer.tokens) == 29
        form = Constraint(ConstraintKind.REGEX, "[ab]{3}")  # its choices are an empty list on the way
        assert llm.generate([[5, 6, 7]], SHORT, constraint=form)[0].text
