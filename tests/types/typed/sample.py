"""A user's program, which type checkers read and which is never run."""

from collections.abc import Generator
from typing import assert_type

import quire
from quire import LLM, AsyncLLM, Completion, Constraint, ConstraintKind, Delta, QuireError, SamplingParams


def offline(llm: LLM) -> str:
    way = SamplingParams(temperature=0.5, stop="END", stop_token_ids=[5], logit_bias={7: 1.0})
    assert_type(way.temperature, float)
    assert_type(llm.generate("Once"), list[Completion])
    answers = llm.generate(["Once", "Twice"], way, constraint=Constraint(ConstraintKind.REGEX, "[a-z]+"))
    llm.generate({"prompt_token_ids": [1, 2]}, sampling_params=way, use_tqdm=False)
    llm.chat([{"role": "user", "content": "Hi"}], way)
    llm.chat("Hi")
    assert_type(llm.stream([1, 2, 3]), Generator[Delta, None, None])
    assert_type(llm.get_default_sampling_params(), SamplingParams)
    assert_type(answers[0].outputs[0].token_ids, tuple[int, ...])
    assert_type(answers[0].prompt, str | None)
    return answers[0].text


async def online() -> str:
    async with await AsyncLLM.open("smollm2:135m") as llm:
        completions = await llm.generate("Once")
        async for delta in llm.stream("Once"):
            assert_type(delta.text, str)
        return completions[0].text


def guarded() -> str:
    try:
        with LLM("smollm2:135m", device="cpu", max_context=4096) as llm:
            return offline(llm)
    except QuireError as error:
        return error.public


version: str = quire.__version__
