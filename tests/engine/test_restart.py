"""A child process that dies is replaced, and what was running goes on with exactly the tokens it would have had."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("zmq")
pytest.importorskip("msgspec")

from quire.engine import recovery
from quire.engine.llm import LLM, EnginePlace, LoadedModel
from quire.engine.messages import EngineDied, Failed, News, Snapshot
from quire.engine.recovery import Recovery
from quire.types.answer import Completion
from quire.types.errors import DeadlineExceeded
from quire.types.output import Finished, Tokens
from quire.types.request import GenerateRequest, SamplingParams
from tests.engine.child import POISON, SLOW_POISON, SLOW_TOKENS, STUCK
from tests.engine.test_process import is_gone, link_of, wait_until
from tests.models.toys import some_tokens

pytestmark = pytest.mark.device

SETTINGS = {"num_blocks": 400, "max_rows": 32, "log_level": "debug"}  # an idle engine proves its invariants
GREEDY = SamplingParams(temperature=0.0, max_tokens=120, ignore_eos=True, speculate="off")  # a token a step
WAYS = [
    GREEDY,
    replace(GREEDY, n=3, temperature=1.0, seed=5, top_p=0.9),
    replace(GREEDY, n=2, temperature=0.8, seed=6, frequency_penalty=0.4, logprobs=1),
    replace(GREEDY, prompt_logprobs=1, logprobs=2),
]


class MortalLLM(LLM):
    def __init__(self, model: Path, entry: str = "mortal", **settings: Any) -> None:
        place = EnginePlace("cpu", False, f"tests.engine.child:{entry}")
        self._model = LoadedModel(model, place, None, {**SETTINGS, **settings})


@contextmanager
def mortal(toy_folder: Path, entry: str = "mortal") -> Iterator[LLM]:
    with MortalLLM(toy_folder, entry) as made:
        yield made


class Crowd:
    """Requests that run beside each other, and what is said about each."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.news: dict[str, list[News]] = {}

    def add(self, name: str, prompt: list[int], way: SamplingParams = GREEDY, **more: Any) -> None:
        self.news[name] = []
        self.llm.client.submit(GenerateRequest(name, tuple(prompt), way, **more), self.news[name].append)

    def num_reported(self, name: str) -> int:
        return len(self.tokens(name))

    def tokens(self, name: str, sample: int = 0) -> list[int]:
        told = [each for each in self.news[name] if isinstance(each, Tokens | Finished) and each.sample == sample]
        return [token for each in told for token in each.tokens]

    def ends(self, name: str) -> list[News]:
        return [each for each in self.news[name] if isinstance(each, Finished | Failed)]

    def wait(self, is_so: Callable[[], bool] | None = None) -> None:
        """Until all have ended."""
        wait_until(is_so or (lambda: all(map(self.ends, self.news))), 60)

    def kill(self) -> int:
        pid = link_of(self.llm.client).pid
        os.kill(pid, signal.SIGKILL)
        return pid


def harmless(length: int) -> list[int]:
    return [token % STUCK for token in some_tokens(length)]


def answer(completion: Completion) -> Any:
    return completion.samples, completion.prompt_logprobs


def test_16_answers_of_all_kinds_go_on_exactly_when_the_engine_is_killed_twice(
    toy_folder: Path, llm: LLM, short_tmp: Path
) -> None:
    prompts = [harmless(5 + 3 * n) for n in range(16)]
    ways = [WAYS[n % len(WAYS)] for n in range(16)]
    whole = [answer(each) for each in llm.generate(prompts, ways)]
    with mortal(toy_folder) as child:
        pids: list[int] = []
        answers: list[Any] = []
        asking = threading.Thread(target=lambda: answers.extend(map(answer, child.generate(prompts, ways))))
        asking.start()
        for num_kills in (1, 2):  # each when an answer has begun in that engine
            wait_until(lambda: child.client.is_alive and child.client.counters().output_tokens > 0)
            pids.append(link_of(child.client).pid)
            os.kill(pids[-1], signal.SIGKILL)
            wait_until(lambda: child.client.num_restarts == num_kills)  # noqa: B023
        asking.join()
        assert all(map(is_gone, pids)) and answers == whole
    assert list(short_tmp.iterdir()) == []


@pytest.mark.slow
def test_kills_from_outside_that_always_hit_one_request_do_not_refuse_it(toy_folder: Path, llm: LLM) -> None:
    """Each engine is killed as soon as it is there: while the first request is tried alone, or none is."""
    prompts = [harmless(5 + 3 * n) for n in range(4)]
    with mortal(toy_folder) as child:
        crowd = Crowd(child)
        for n, prompt in enumerate(prompts):
            crowd.add(f"r{n}", prompt)
        crowd.wait(lambda: all(crowd.num_reported(name) > 3 for name in crowd.news))
        for num_kills in range(1, 5):
            crowd.kill()
            wait_until(lambda: child.client.num_restarts == num_kills)  # noqa: B023
        crowd.wait()
        for n, whole in enumerate(llm.generate(prompts, GREEDY)):
            assert crowd.tokens(f"r{n}") == list(whole.tokens)


def test_a_stopped_engine_is_detected_killed_and_replaced(toy_folder: Path, llm: LLM) -> None:
    with mortal(toy_folder) as child:
        crowd = Crowd(child)
        crowd.add("a", harmless(9))
        crowd.wait(lambda: crowd.num_reported("a") > 1)
        pid = link_of(child.client).pid
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: child.client.trouble is not None)
        assert "has not responded for" in (child.client.trouble or "") and not child.client.is_alive
        wait_until(lambda: is_gone(pid))
        crowd.wait()
        assert child.client.is_alive and child.client.num_restarts == 1
        assert crowd.tokens("a") == list(llm.generate(harmless(9), GREEDY)[0].tokens)


@pytest.mark.slow
def test_a_step_that_never_returns_is_detected_and_its_request_refused(toy_folder: Path, llm: LLM) -> None:
    with mortal(toy_folder) as child:
        crowd = Crowd(child)
        crowd.add("a", harmless(9))
        crowd.wait(lambda: crowd.num_reported("a") > 1)
        crowd.add("stuck", [1, STUCK, 2])
        wait_until(lambda: "in one step for" in (child.client.trouble or ""))
        wait_until(lambda: bool(crowd.ends("a")) and bool(crowd.ends("stuck")), 240)
        (refused,) = crowd.ends("stuck")
        assert isinstance(refused, Failed) and refused.error.code == "poison_request"
        assert crowd.tokens("a") == list(llm.generate(harmless(9), GREEDY)[0].tokens)


def test_the_request_that_kills_is_refused_and_the_others_resume(toy_folder: Path, llm: LLM) -> None:
    prompts = {f"r{n}": harmless(4 + n) for n in range(8)}
    with mortal(toy_folder) as child:
        crowd = Crowd(child)
        for name, prompt in prompts.items():
            crowd.add(name, prompt)
        crowd.wait(lambda: all(crowd.num_reported(name) > 3 for name in prompts))
        crowd.add("poison", [1, POISON, 2])
        crowd.wait()
        (refused,) = crowd.ends("poison")
        assert isinstance(refused, Failed) and (refused.error.code, refused.error.status) == ("poison_request", 500)
        assert "ended the engine 2 times" in refused.error.public
        wait_until(lambda: child.client.num_restarts == 3)
        for name, whole in zip(prompts, llm.generate(list(prompts.values()), GREEDY), strict=True):
            assert crowd.tokens(name) == list(whole.tokens)
        assert child.generate([1, 2, 3], GREEDY)[0].tokens == llm.generate([1, 2, 3], GREEDY)[0].tokens


@pytest.mark.slow
def test_a_request_that_kills_after_some_tokens_is_found_too(toy_folder: Path, llm: LLM) -> None:
    prompts = {f"r{n}": harmless(4 + n) for n in range(6)}
    prompts["poison"] = [1, 2, SLOW_POISON]
    with mortal(toy_folder) as child:
        crowd = Crowd(child)
        for name, prompt in prompts.items():
            crowd.add(name, prompt)
        crowd.wait()
        assert [type(each) for each in crowd.ends("poison")] == [Failed] and child.client.num_restarts <= 9
        for name, whole in zip(prompts, llm.generate(list(prompts.values()), GREEDY), strict=True):
            if name == "poison":
                assert crowd.tokens(name) == list(whole.tokens[: crowd.num_reported(name)])
                assert crowd.num_reported(name) <= SLOW_TOKENS
            else:
                assert crowd.tokens(name) == list(whole.tokens)


def test_questions_without_an_engine_raise(toy_folder: Path, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    may_start = threading.Event()
    monkeypatch.setattr(Recovery, "pause", property(lambda self: may_start.wait(60) - 1))
    with mortal(toy_folder) as child:
        crowd = Crowd(child)
        for name in ("goes on", "cancelled", "half"):
            crowd.add(name, harmless(9), replace(GREEDY, n=2, seed=1, temperature=1.0) if name == "half" else GREEDY)
        crowd.wait(lambda: all(crowd.num_reported(name) > 1 for name in crowd.news))
        crowd.kill()
        wait_until(lambda: not child.client.is_alive)
        assert child.client.cancel("cancelled").result(0) and not child.client.cancel("nobody").result(0)
        assert child.client.cancel("half", sample=1).result(0)
        with pytest.raises(EngineDied, match="restarted"):
            child.client.counters()
        crowd.add("new", harmless(7))
        crowd.add("late", harmless(7), deadline=time.monotonic() + 0.2)
        (late,) = wait_for(crowd, "late")
        assert not child.client.is_alive, "it was told while there was no engine"
        assert isinstance(late, Failed) and isinstance(late.error, DeadlineExceeded)
        may_start.set()
        crowd.wait()
        assert [each.reason for each in crowd.ends("cancelled") if isinstance(each, Finished)] == ["cancelled"]
        assert sorted((each.sample, each.reason) for each in crowd.ends("half") if isinstance(each, Finished)) == [
            (0, "length"),
            (1, "cancelled"),
        ]
        for name, prompt in (("goes on", harmless(9)), ("new", harmless(7))):
            assert crowd.tokens(name) == list(llm.generate(prompt, GREEDY)[0].tokens)
        wait_until(lambda: child.client.counters().num_held_blocks == 0)


def wait_for(crowd: Crowd, name: str) -> list[News]:
    wait_until(lambda: bool(crowd.ends(name)))
    return crowd.ends(name)


def test_a_cancel_that_the_dying_engine_missed_still_ends_the_request(toy_folder: Path) -> None:
    with mortal(toy_folder) as child:
        crowd = Crowd(child)
        crowd.add("a", harmless(9), replace(GREEDY, max_tokens=900))
        crowd.wait(lambda: crowd.num_reported("a") > 1)
        pid = link_of(child.client).pid
        os.kill(pid, signal.SIGSTOP)
        cancelled = child.client.cancel("a")
        asked = child.client.ask(Snapshot())
        os.kill(pid, signal.SIGKILL)
        assert cancelled.result(60) is True
        with pytest.raises(EngineDied):
            asked.result(60)
        (end,) = wait_for(crowd, "a")
        assert isinstance(end, Finished) and end.reason == "cancelled"


def test_an_engine_that_dies_while_it_loads_is_started_again(
    toy_folder: Path, llm: LLM, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "PAUSES", (0.0, 0.1, 0.1, 0.1))
    with mortal(toy_folder, "once") as child:
        crowd = Crowd(child)
        crowd.add("a", harmless(9))
        crowd.wait(lambda: crowd.num_reported("a") > 1)
        crowd.kill()
        wait_until(lambda: (short_tmp / "lives").read_text() == "-2")  # two starts in vain
        (short_tmp / "lives").write_text("1")
        crowd.wait()
        assert crowd.tokens("a") == list(llm.generate(harmless(9), GREEDY)[0].tokens)


def test_when_no_engine_starts_live_requests_fail_and_later_ones_are_refused(
    toy_folder: Path, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "PAUSES", (0.0, 0.05))
    monkeypatch.setattr(recovery, "LONG_PAUSE", 0.3)
    with mortal(toy_folder, "once") as child:
        crowd = Crowd(child)
        crowd.add("a", harmless(9))
        crowd.wait(lambda: crowd.num_reported("a") > 1)
        crowd.kill()
        crowd.add("b", harmless(9))
        crowd.wait()
        assert all(isinstance(end, Failed) and end.error.code == "engine_died" for n in "ab" for end in crowd.ends(n))
        with pytest.raises(EngineDied, match="could not be restarted"):
            crowd.add("c", harmless(9))
        (short_tmp / "lives").write_text("1")  # it is tried again and again, and now it works
        wait_until(lambda: child.client.is_alive)
        crowd.add("d", harmless(9))
        wait_until(lambda: bool(crowd.ends("d")))
        assert isinstance(crowd.ends("d")[0], Finished)


def test_a_client_can_be_closed_while_its_engine_is_being_restarted(toy_folder: Path, short_tmp: Path) -> None:
    child = MortalLLM(toy_folder)
    crowd = Crowd(child)
    crowd.add("a", harmless(9))
    crowd.wait(lambda: crowd.num_reported("a") > 1)
    crowd.kill()
    wait_until(lambda: not child.client.is_alive)
    child.close()
    (end,) = crowd.ends("a")
    assert isinstance(end, Failed) and "closed" in end.error.public
    assert list(short_tmp.iterdir()) == []
