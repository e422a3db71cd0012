"""Models with windows and with recurrent layers, on the native device: a prefix hit changes no bit of an answer."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.engine.async_llm import AsyncLLM
from quire.engine.llm import LLM
from quire.engine.messages import Cancel
from quire.types.request import CacheKey, Constraint, ConstraintKind, SamplingParams
from quire.weights.checkpoint import open_checkpoint
from tests.devices.cpu.programs import HAS_NATIVE
from tests.engine.driver import Driver, SampleRecord, expected
from tests.engine.spelled import SPELLED_KEYS, save_spelled
from tests.engine.test_process import link_of
from tests.models.toys import CASES, make_toy, some_tokens, toy_of, write_gguf

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")]

# Short convolutions; delta rule; Mamba-2 with attention; Mamba-2 alone; windows.
GROUPS = ["lfm2", "qwen3_5", "granitemoehybrid", "mamba2", "gemma3"]
# Without drafts, so that computed tokens can be counted.
SETTINGS = {"num_blocks": 400, "max_rows": 8, "max_step_tokens": 48, "max_context": 1024, "speculate": "off"}
SCORED = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True, logprobs=3)
GREEDY = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
LONG = SamplingParams(max_tokens=64, temperature=0, ignore_eos=True)


class HybridDriver(Driver):
    """A toy on the native device."""

    device_name = "cpu"

    def __init__(self, case: str, **settings: Any) -> None:
        super().__init__(case, **{**SETTINGS, **settings})
        self.case = case

    def answer(self, name: str, prompt: list[int], sampling: SamplingParams = SCORED, **request: Any) -> SampleRecord:
        """Serve one request alone."""
        self.submit(name, prompt, sampling, **request)
        self.run()
        return self.records[name, 0]

    def cold(self, name: str, prompt: list[int], sampling: SamplingParams = SCORED, **request: Any) -> SampleRecord:
        """Serve one request that finds nothing in the cache."""
        record = self.answer(f"cold {name}", prompt, sampling, cache=CacheKey(salt=name), **request)
        assert record.num_hit == 0
        return record


@pytest.fixture(scope="module", params=GROUPS)
def driver(request: pytest.FixtureRequest) -> HybridDriver:
    return HybridDriver(request.param)


def said(record: SampleRecord) -> tuple[list[int], list[Any]]:
    """The tokens of an answer, and their log probabilities, to the bit."""
    assert record.error is None and record.tokens
    return record.tokens, record.logprobs


def test_many_at_once_generate_what_transformers_does(driver: HybridDriver) -> None:
    texts = [some_tokens(length) for length in (5, 40, 70, 71)]
    for turn in range(2):  # the second time from the prefix cache
        for text in texts:
            driver.submit(f"{turn} {len(text)}", text, GREEDY)
        driver.run()
        for text in texts:
            assert driver.tokens(f"{turn} {len(text)}") == expected(driver.case, text, 24)
            assert driver.records[f"{turn} {len(text)}", 0].num_hit == (len(text) - 1 if turn else 0)


def assert_hits_of_a_shared_prefix(driver: HybridDriver, prefix: list[int], num_suffixes: int, every: int) -> None:
    """Serve prompts with this prefix, one after another. From the third on, only their suffixes are computed.

    In between, each `every`th prompt is served without a hit: other texts, as long, share the memory.
    """
    for n in range(num_suffixes):
        prompt = [*prefix, n, *some_tokens(7 + n)]
        warm = driver.answer(f"warm {n}", prompt)
        assert warm.num_hit >= len(prefix) if n > 1 else n or not warm.num_hit
        if n % every == 0:
            assert said(warm) == said(driver.cold(f"suffix {n}", prompt))


def test_a_shared_prefix_is_computed_twice_at_most_and_hits_change_no_bit(driver: HybridDriver) -> None:
    assert_hits_of_a_shared_prefix(driver, some_tokens(403), 5, every=1)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["lfm2", "qwen3_5", "granitemoehybrid", "gemma3"])
def test_40_prompts_share_5000_tokens(case: str) -> None:
    toy = toy_of(CASES[case].kind, {**CASES[case].changes, "max_position_embeddings": 8192}, seed=1)
    settings = {"max_context": 8192, "num_blocks": 4000, "max_step_tokens": 512}
    driver = HybridDriver(case, checkpoint=toy.checkpoint, **settings)
    assert_hits_of_a_shared_prefix(driver, some_tokens(5000), 40, every=8)


def test_a_conversation_computes_each_token_once(driver: HybridDriver) -> None:
    text, known = some_tokens(33), 1
    before = driver.core.counters().computed_tokens
    for turn in range(20):
        warm = driver.answer(f"turn {turn}", text)
        assert warm.num_hit == known - 1  # the last token of an answer was sampled, not computed
        text, known = [*text, *warm.tokens, turn, *some_tokens(9 + turn % 5)], len(text) + len(warm.tokens)
    assert driver.core.counters().computed_tokens - before == known - 1
    assert said(driver.answer("last turn", text)) == said(driver.cold("turn", text))


def test_samples_of_one_prompt_share_its_computation(driver: HybridDriver) -> None:
    prompt, sampling = some_tokens(90), SamplingParams(n=3, max_tokens=8, seed=5, ignore_eos=True)
    before = driver.core.counters().computed_tokens
    driver.answer("n", prompt, sampling)
    assert driver.core.counters().computed_tokens - before <= len(prompt) + 2 + 3 * 7  # its last token for each sample
    samples = [driver.tokens("n", sample) for sample in range(3)]
    assert len(set(map(tuple, samples))) > 1
    driver.cold("n", prompt, sampling)
    assert [driver.tokens("cold n", sample) for sample in range(3)] == samples


@pytest.mark.usefixtures("free_drafts")
def test_drafts_change_no_bit(driver: HybridDriver) -> None:
    drafting = HybridDriver(driver.case, speculate="auto")
    for number, prompt in enumerate((some_tokens(40), some_tokens(40), [*some_tokens(8), *some_tokens(6)] * 4)):
        for sampling in (LONG, SamplingParams(max_tokens=40, seed=3, temperature=0.5, ignore_eos=True)):
            name = f"{number} {sampling.temperature}"
            expected = driver.answer(f"plain {name}", prompt, sampling).tokens
            assert drafting.answer(name, prompt, sampling).tokens == expected
    assert sum(drafting.core.counters().accepted_drafts.values()) > 0


@pytest.mark.parametrize("length", [3, 89])
def test_a_prompt_beside_an_equal_one_computes_its_last_token(driver: HybridDriver, length: int) -> None:
    """Also if the prompt ends inside a block, which the running request is still filling."""
    prompt, salt = [length, *some_tokens(length - 1)], CacheKey(salt="beside")
    before = driver.core.counters().computed_tokens
    driver.submit("running", prompt, GREEDY, cache=salt)
    while not driver.records["running", 0].tokens:
        driver.step()
    driver.submit("beside", prompt, SCORED, cache=salt)
    driver.submit("longer", [*prompt, 5, 6], SCORED, cache=salt)
    driver.run()
    if driver.case == "gemma3":  # without states, a block is found once it is full
        assert driver.records["beside", 0].num_hit == length // 16 * 16
    else:
        assert driver.records["beside", 0].num_hit == driver.records["longer", 0].num_hit == length - 1
        assert driver.core.counters().computed_tokens - before <= length + 24 + (1 + 10) + (3 + 10)
    assert said(driver.records["beside", 0]) == said(driver.cold("beside alone", prompt))
    assert said(driver.records["longer", 0]) == said(driver.cold("longer alone", [*prompt, 5, 6]))


def test_samples_start_in_the_step_after_that_of_their_prompt() -> None:
    driver, most = HybridDriver("lfm2"), 0
    driver.submit("n", some_tokens(39), SamplingParams(n=3, max_tokens=8, seed=5, ignore_eos=True))
    while not all(driver.records["n", sample].tokens for sample in range(3)):
        driver.step()
        most = max(len(driver.records["n", sample].tokens) for sample in range(3))
    assert most <= 3, "the first sample is not far ahead"


def test_a_cancelled_request_leaves_a_prefix_that_can_be_used(driver: HybridDriver) -> None:
    prompt = some_tokens(150)
    driver.submit("cancelled", prompt, GREEDY)
    for _ in range(7):
        driver.step()
    driver.handle(Cancel("cancelled"))
    driver.run()
    known = driver.records["cancelled", 0].tokens
    warm = driver.answer("after", [*prompt, *known])
    assert warm.num_hit >= len(prompt) - 1 and said(warm) == said(driver.cold("cancel", [*prompt, *known]))


def test_preempted_requests_have_the_tokens_that_they_would_have_alone(driver: HybridDriver) -> None:
    small = HybridDriver(driver.case, num_blocks=18, max_context=256, num_states=6)
    texts = {f"r{n}": some_tokens(20 + n) for n in range(6)}
    for name, text in texts.items():
        small.submit(name, text, LONG)
    small.run()
    for name, text in texts.items():
        assert small.tokens(name) == driver.cold(name, text, LONG).tokens
    assert driver.case == "mamba2" or small.core.counters().num_preemptions > 0  # its blocks take no memory


@pytest.mark.parametrize("case", ["lfm2", "qwen3_5"])
def test_forced_tokens_and_hits_together_change_no_bit(case: str, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    driver = HybridDriver(case, checkpoint=open_checkpoint(save_spelled(make_toy(case).torch_model, tmp_path)))
    form = Constraint(ConstraintKind.REGEX, r"The answer is [ab]{4}, because of [cd]{5}\.")
    prompt, request = some_tokens(77), {"eos_token_ids": (129,), "constraint": form}
    sampling = SamplingParams(max_tokens=60, temperature=0)
    cold = driver.cold("form", prompt, sampling, **request)
    driver.answer("first", prompt, sampling, **request)
    warm = driver.answer("form", prompt, sampling, **request)
    assert warm.num_hit >= len(prompt) - 1 and warm.num_forced == cold.num_forced > 10 and warm.tokens == cold.tokens
    text = [*prompt, *warm.tokens, 5, 6, 7]
    after = driver.answer("after", text)
    assert after.num_hit >= len(prompt) + len(warm.tokens) - 2 and said(after) == said(driver.cold("after form", text))


def test_a_long_prompt_holds_the_blocks_of_a_window_and_a_chunk() -> None:
    """The layers of Gemma 3 with a window take at most 1.1 times (window + chunk) tokens, whatever the context is."""
    context, window, chunk = 32768, 1024, 2048
    different = {"sliding_window": window, "head_dim": 16, "max_position_embeddings": context, "num_attention_heads": 1,
                 "num_key_value_heads": 1, "layer_types": ["sliding_attention", "full_attention"]}  # fmt: skip
    toy = toy_of("Gemma3ForCausalLM", different, seed=1)
    settings = {"max_context": context, "max_step_tokens": chunk, "num_blocks": 2 * context // 16, "max_rows": 4}
    driver = HybridDriver("gemma3", checkpoint=toy.checkpoint, **settings)
    driver.submit("long", some_tokens(context - 9), SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
    most = 0
    while driver.step():
        most = max(most, driver.core.counters().num_held_window_blocks)
    assert len(driver.tokens("long")) == 4 and driver.core.counters().num_window_blocks < context // 16
    assert window + chunk - 16 < most * 16 <= 1.1 * (window + chunk)


@pytest.fixture(scope="module")
def hybrid_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LFM2 on disk, with a tokenizer."""
    return save_spelled(make_toy("lfm2").torch_model, tmp_path_factory.mktemp("lfm2"))


@pytest.mark.parametrize("container", ["safetensors", "gguf"])
def test_files_of_a_hybrid_are_run_and_usage_has_its_cached_tokens(
    container: str, hybrid_folder: Path, tmp_path: Path
) -> None:
    path = hybrid_folder
    if container == "gguf":
        checkpoint = make_toy("lfm2").as_gguf()
        path = write_gguf(replace(checkpoint, metadata={**checkpoint.metadata, **SPELLED_KEYS}), tmp_path / "a.gguf")
    prompts = [some_tokens(length) for length in (33, 90)]
    with LLM(path, device="cpu", kv_dtype="f32", **SETTINGS) as llm:
        for turn in range(2):
            for completion, prompt in zip(llm.generate(prompts, GREEDY), prompts, strict=True):
                assert list(completion.tokens) == expected("lfm2", prompt, 24)
                assert completion.usage.cached == (len(prompt) - 1 if turn else 0)
        ready = llm.client.ready
        assert ready.num_states >= 16 and ready.state_bytes == 768 and ready.windows == ()


def test_an_engine_that_is_killed_continues_with_the_same_tokens(hybrid_folder: Path) -> None:
    prompts = [some_tokens(length) for length in (33, 90, 91)]
    sampling = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True)

    async def run() -> list[list[int]]:
        async with AsyncLLM(hybrid_folder, device="cpu", kv_dtype="f32", **SETTINGS) as llm:
            asked = asyncio.gather(*(llm.generate(prompt, sampling) for prompt in prompts))
            while not (await asyncio.to_thread(llm.client.counters)).output_tokens:
                await asyncio.sleep(0.01)
            os.kill(link_of(llm.client).pid, signal.SIGKILL)
            found = await asked
            assert llm.client.num_restarts == 1
            return [list(completion.tokens) for (completion,) in found]

    alone = HybridDriver("lfm2")
    assert asyncio.run(run()) == [alone.answer(str(len(prompt)), prompt, sampling).tokens for prompt in prompts]
