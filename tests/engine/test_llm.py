"""The offline API in this process: text in, text out, and nothing left behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quire
from quire.engine.llm import LLM
from quire.types.answer import Completion
from quire.types.errors import ContextTooLong, InvalidRequest
from quire.types.request import FinishReason, SamplingParams
from tests.engine.driver import expected
from tests.models.toys import some_tokens
from tests.runner.stand_in import InterpreterDevice
from tests.store.folders import hub_model

pytestmark = pytest.mark.device

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a quire?"}]


def answer_of(llm: LLM, prompt: str, sampling: SamplingParams = GREEDY) -> Completion:
    (completion,) = llm.generate(prompt, sampling)
    return completion


def test_a_prompt_is_answered_with_text_tokens_and_usage(llm: LLM) -> None:
    (completion,) = llm.generate("Once upon a time", GREEDY)
    ids = [ord(char) for char in "Once upon a time"]
    assert completion.tokens == tuple(expected("llama", ids, 40)) and completion.prompt_tokens == tuple(ids)
    assert llm.tokenizer is not None and completion.text == llm.tokenizer.decode(completion.tokens)
    assert completion.finish_reason is FinishReason.LENGTH and completion.logprobs == ()
    usage = completion.usage
    assert (usage.prompt, usage.cached, usage.output) == (16, 0, 40)
    assert 0 < usage.first_token_seconds < usage.seconds and usage.tokens_per_second > 0
    (again,) = llm.generate([ids], GREEDY)
    assert again.text == completion.text and again.usage.cached == 15
    assert llm.generate(ids, GREEDY)[0].tokens == completion.tokens  # one prompt of token ids


def test_many_prompts_are_answered_in_their_order_each_with_its_own_parameters(llm: LLM) -> None:
    prompts = [f"Prompt {n} " * (n % 5 + 1) for n in range(20)]
    ways = [SamplingParams(temperature=0.0, max_tokens=n + 1, ignore_eos=True) for n in range(20)]
    together = llm.generate(prompts, ways)
    assert [len(completion.tokens) for completion in together] == list(range(1, 21))
    for prompt, way, completion in zip(prompts, ways, together, strict=True):
        assert answer_of(llm, prompt, way).text == completion.text
    with pytest.raises(InvalidRequest, match="20 prompts and 2"):
        llm.generate(prompts, ways[:2])
    assert llm.generate([]) == []


def test_more_prompts_than_the_queue_holds_are_all_answered(toy_folder: Path) -> None:
    with LLM(toy_folder, device=InterpreterDevice(), num_blocks=60, max_rows=3, max_waiting=4) as llm:
        answers = llm.generate([some_tokens(n % 7 + 1) for n in range(30)], SamplingParams(max_tokens=3, n=2))
        assert len(answers) == 30 and all(len(answer.samples) == 2 for answer in answers)


def test_a_stop_string_cuts_the_text_and_ends_the_request(llm: LLM) -> None:
    whole = answer_of(llm, "Tell me")
    stop = whole.text[12:15]
    first = whole.text.index(stop)
    cut = answer_of(
        llm, "Tell me", SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True, stop=(stop, "xyz"))
    )
    assert cut.text == whole.text[:first] and cut.finish_reason is FinishReason.STOP
    assert cut.tokens == whole.tokens[: len(cut.tokens)] and cut.usage.output == len(cut.tokens) < 40
    counters = llm.client.counters()
    assert counters.num_running == 0 and counters.num_cancelled == 0  # it stopped, it was not cancelled
    assert counters.num_finished == 2


def test_a_stop_token_ends_the_answer_and_its_text_is_not_shown(llm: LLM) -> None:
    whole = answer_of(llm, "Tell me")
    token = whole.tokens[12]
    place = whole.tokens.index(token)
    stopped = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, stop_token_ids=(token,))
    cut = answer_of(llm, "Tell me", stopped)
    assert llm.tokenizer is not None and cut.text == llm.tokenizer.decode(whole.tokens[:place])
    assert cut.tokens == whole.tokens[: place + 1] and cut.finish_reason is FinishReason.STOP
    assert cut.usage.output == place + 1


def test_a_stop_string_within_the_first_min_tokens_does_not_end_the_answer(llm: LLM, toy_folder: Path) -> None:
    whole = answer_of(llm, "Tell me")
    least = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, min_tokens=20, stop=tuple(whole.text))
    held = answer_of(llm, "Tell me", least)
    assert len(held.tokens) == 21 and held.finish_reason is FinishReason.STOP
    assert held.text == whole.text[: len(held.text)] and held.tokens == whole.tokens[:21]
    assert "".join(delta.text for delta in llm.stream("Tell me", least)) == held.text

    async def asked() -> Completion:
        async with await quire.AsyncLLM.open(
            toy_folder, device=InterpreterDevice(), in_process=True, num_blocks=60
        ) as model:
            (completion,) = await model.generate("Tell me", least)
            return completion

    assert asyncio.run(asked()).text == held.text


def test_a_stop_string_ends_only_the_sample_that_it_is_in(llm: LLM) -> None:
    way = SamplingParams(seed=3, n=3, max_tokens=60, ignore_eos=True)
    whole = answer_of(llm, "Tell me", way)
    stop = next(s.text[9:11] for s in whole.samples if sum(s.text[9:11] in each.text for each in whole.samples) == 1)
    cut = answer_of(llm, "Tell me", SamplingParams(seed=3, n=3, max_tokens=60, ignore_eos=True, stop=(stop,)))
    for before, after in zip(whole.samples, cut.samples, strict=True):
        assert after.text == before.text.split(stop)[0]
        assert after.finish_reason == ("stop" if stop in before.text else "length")


def test_an_end_of_text_token_ends_the_answer_and_is_not_shown(llm: LLM) -> None:
    assert llm.tokenizer is not None
    way = SamplingParams(temperature=0.0, max_tokens=9, logit_bias={129: 100.0})  # <|im_end|>
    completion = answer_of(llm, "Bye", way)
    assert (completion.text, completion.tokens, completion.finish_reason) == ("", (129,), FinishReason.STOP)


def test_a_stream_is_the_same_text_in_pieces(llm: LLM) -> None:
    deltas = list(llm.stream("Once upon", SamplingParams(temperature=0.0, max_tokens=30, logprobs=1, ignore_eos=True)))
    completion = answer_of(llm, "Once upon", SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True))
    assert "".join(delta.text for delta in deltas) == completion.text and len(deltas) == 30
    assert tuple(token for delta in deltas for token in delta.tokens) == completion.tokens
    assert [each.token for delta in deltas for each in delta.logprobs] == list(completion.tokens)
    assert deltas[-1].finish is FinishReason.LENGTH and all(delta.finish is None for delta in deltas[:-1])
    assert deltas[-1].usage is not None and deltas[-1].usage.output == 30


def test_closing_a_stream_cancels_its_request(llm: LLM) -> None:
    stream = llm.stream("Once upon", SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True))
    next(stream), next(stream)
    stream.close()
    counters = llm.client.counters()
    assert counters.num_cancelled == 1 and counters.num_running == 0 and counters.output_tokens < 100


def test_a_chat_is_the_rendered_template_with_its_special_tokens(llm: LLM) -> None:
    assert llm.tokenizer is not None
    (completion,) = llm.chat(CHAT, GREEDY)
    text = llm.template.render(CHAT)
    assert (
        completion.prompt_tokens == tuple(llm.tokenizer.encode(text, special=True)) and 128 in completion.prompt_tokens
    )
    two = llm.chat([CHAT, CHAT[1:]], GREEDY)
    assert two[0].text == completion.text and two[1].usage.prompt < two[0].usage.prompt
    assert "".join(delta.text for delta in llm.stream(CHAT, GREEDY)) == completion.text
    assert 128 not in answer_of(llm, "<|im_start|>").prompt_tokens  # in a plain prompt it is just text


def test_a_failure_is_raised_and_the_others_are_cancelled(llm: LLM) -> None:
    with pytest.raises(ContextTooLong, match=r"1100 tokens.*1088"):
        llm.generate([some_tokens(10), some_tokens(100) * 11, some_tokens(12)], SamplingParams(ignore_eos=True))
    counters = llm.client.counters()
    assert counters.num_cancelled == 2 and counters.num_refused == 1 and counters.num_running == 0
    with pytest.raises(InvalidRequest, match="empty"):
        llm.generate([[]])


def test_logprobs_of_prompt_and_answer_come_with_the_completion(llm: LLM) -> None:
    way = SamplingParams(temperature=0.0, max_tokens=5, logprobs=2, prompt_logprobs=0, ignore_eos=True)
    completion = answer_of(llm, "abcdef", way)
    assert [each.token for each in completion.prompt_logprobs] == [ord(char) for char in "bcdef"]
    assert [each.top[0][0] for each in completion.logprobs] == list(completion.tokens)  # greedy: the likeliest


def test_unseeded_requests_differ_and_seeded_ones_do_not(llm: LLM) -> None:
    free = [c.tokens for c in llm.generate(["Go"] * 4, SamplingParams(max_tokens=20, ignore_eos=True))]
    seeded = [c.tokens for c in llm.generate(["Go"] * 4, SamplingParams(seed=0, max_tokens=20, ignore_eos=True))]
    assert len(set(free)) == 4 and len(set(seeded)) == 1


def test_several_threads_may_use_one_model(llm: LLM) -> None:
    alone = [answer_of(llm, f"Thread {n}").text for n in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda n: answer_of(llm, f"Thread {n}").text, range(6))) == alone


def test_progress_is_shown_on_request(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    llm.generate(["a"] * 10, SamplingParams(max_tokens=1))
    assert capfd.readouterr().err == ""
    llm.generate(["a"] * 10, SamplingParams(max_tokens=1), progress=True)
    assert "10/10" in capfd.readouterr().err


def test_a_repository_of_the_hub_is_found_in_its_cache(toy_folder: Path, tmp_path: Path, monkeypatch) -> None:
    hub_model(tmp_path / "hub", "Org/Toy-0.5B", {file.name: file.read_bytes() for file in toy_folder.iterdir()})
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with quire.LLM("Org/Toy-0.5B", device=InterpreterDevice(), num_blocks=20, home=str(tmp_path / "home")) as llm:
        assert answer_of(llm, "Once").tokens == tuple(expected("llama", [ord(char) for char in "Once"], 40))
    assert not (tmp_path / "home" / "blobs").exists()


def test_a_model_name_is_resolved_by_the_given_function(toy_folder: Path) -> None:
    with quire.LLM("toy:small", device=InterpreterDevice(), num_blocks=20, resolve=lambda name: toy_folder) as llm:
        assert llm.generate("a", SamplingParams(max_tokens=1))[0].tokens


def test_a_model_without_a_tokenizer_takes_and_returns_tokens(toy_folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(toy_folder / name)
    with LLM(tmp_path, device=InterpreterDevice(), num_blocks=20) as llm:
        (completion,) = llm.generate([[5, 6, 7]], GREEDY)
        assert completion.tokens == tuple(expected("llama", [5, 6, 7], 40)) and completion.text == ""
        with pytest.raises(InvalidRequest, match="without a tokenizer"):
            llm.generate("text")
        with pytest.raises(InvalidRequest, match="without a tokenizer"):
            llm.generate([[5]], SamplingParams(stop=("x",)))


def test_asyncio_has_the_same_answers(toy_folder: Path, llm: LLM) -> None:
    prompts = [f"Prompt {n}" for n in range(9)]

    async def run() -> list[Any]:
        device = InterpreterDevice()
        async with await quire.AsyncLLM.open(toy_folder, device=device, in_process=True, num_blocks=120) as model:
            together = await model.generate(prompts, GREEDY)
            pieces = [delta.text async for delta in model.stream(prompts[0], GREEDY)]
            (chat,) = await model.chat(CHAT, GREEDY)
            with pytest.raises(ContextTooLong):
                await model.generate([some_tokens(9), some_tokens(1100)], GREEDY)
            endless = model.stream("a", SamplingParams(ignore_eos=True))
            await anext(endless)
            await endless.aclose()
            counters = await asyncio.to_thread(model.client.counters)
            return [[each.text for each in together], "".join(pieces), chat.text, counters.num_running]

    texts = [each.text for each in llm.generate(prompts, GREEDY)]
    assert asyncio.run(run()) == [texts, texts[0], llm.chat(CHAT, GREEDY)[0].text, 0]


def test_nothing_imports_torch_or_transformers(toy_folder: Path) -> None:
    script = (
        "import sys\n"
        f"sys.path[:] = {sys.path!r}\n"
        "from quire import LLM, SamplingParams\n"
        "from tests.runner.stand_in import InterpreterDevice\n"
        f"with LLM({str(toy_folder)!r}, device=InterpreterDevice(), num_blocks=30) as llm:\n"
        "    llm.chat([{'role': 'user', 'content': 'hi'}], SamplingParams(max_tokens=3, logprobs=1))\n"
        "print(*sys.modules)"
    )
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(child.stdout.split())
    assert "numpy" in loaded and not loaded & {"torch", "transformers", "triton", "zmq", "msgspec"}


def test_an_engine_that_is_not_closed_ends_with_its_process(toy_folder: Path) -> None:
    script = (
        f"import sys\nsys.path[:] = {sys.path!r}\n"
        "from quire import LLM, SamplingParams\n"
        "from tests.runner.stand_in import InterpreterDevice\n"
        f"llm = LLM({str(toy_folder)!r}, device=InterpreterDevice(), num_blocks=30)\n"
        "print(next(llm.stream('a', SamplingParams(ignore_eos=True))).tokens)"
    )
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert child.stdout.startswith("(") and child.stderr == ""


def test_prompts_and_seeds_may_be_any_integers(llm: LLM) -> None:
    way = SamplingParams(max_tokens=5, ignore_eos=True, seed=-3)
    same = SamplingParams(max_tokens=5, ignore_eos=True, seed=(1 << 64) - 3)
    assert llm.generate(np.array([5, 6, 7]), way)[0].tokens == llm.generate([[5, 6, 7]], same)[0].tokens
    greedy = [SamplingParams(max_tokens=5, temperature=0.0, seed=seed) for seed in (None, -3, 1 << 70)]
    assert len({llm.generate([[5, 6, 7]], way)[0].tokens for way in greedy}) == 1
