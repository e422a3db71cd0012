"""How live requests come to life again when their engine has died: who is sent when, who waits, who is refused."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.engine.live import Delivery
from quire.engine.messages import (
    Accepted,
    EngineDied,
    Failed,
    News,
    PoisonRequest,
)
from quire.engine.recovery import CALM_SECONDS, CONTROL_MAX, LONG_PAUSE, MAX_ON_TRIAL, PAUSES, Recovery
from quire.types.errors import DeadlineExceeded, DuplicateRequest, Overloaded
from quire.types.output import Finished, Tokens
from quire.types.request import FinishReason, GenerateRequest, SamplingParams
from quire.types.step import TokenLogprobs

pytestmark = pytest.mark.pure

TURN_SECONDS = 0.05
START_SECONDS = 1.0
Kills = Callable[[str, int], bool]  # would this request, with so many output tokens, end an engine at its next one?


class Engine:
    """An engine without a model: the n-th token of every answer is n. It reports a token a turn, and dies if killed."""

    def __init__(self, kills: Kills = lambda name, num_output: False, dies_by_kill: bool = False) -> None:
        self.now = 100.0
        self.recovery = Recovery(self.send, max_held=100, clock=lambda: self.now)
        self.recovery.on_engine_ready()
        self.dies_by_kill = dies_by_kill
        self.kills = kills
        self.inside: dict[str, list[int | None]] = {}  # output tokens of each sample
        self.news: list[Outward] = []
        self.sent: list[GenerateRequest] = []
        self.received: dict[str, list[News]] = {}
        self.resumed_at: dict[str, int] = {}  # output tokens of the first sample
        self.num_deaths = 0

    def send(self, request: GenerateRequest) -> None:
        self.sent.append(request)
        outputs = request.resumed or ((),) * request.sampling.n
        self.resumed_at[request.id] = len(outputs[0] or ())
        self.inside[request.id] = [None if output is None else len(output) for output in outputs]
        self.news.append(Accepted(request.id))

    def submit(self, name: str, n: int = 1, max_tokens: int = 1000, **more: object) -> None:
        self.received[name] = []
        sampling = SamplingParams(n=n, max_tokens=max_tokens)
        self.recovery.add(GenerateRequest(name, (1, 2), sampling, **more), self.received[name].append)  # type: ignore[arg-type]

    def report(self, *news: News) -> None:
        for each in news:
            self.deliver(self.recovery.record([each]))

    def deliver(self, deliveries: list[Delivery]) -> None:
        for sink, news in deliveries:
            sink(news)

    def turn(self) -> bool:
        """Report one token of every request inside; False: that killed the engine."""
        self.now += TURN_SECONDS
        self.deliver(self.recovery.tick())
        self.flush()
        if any(self.kills(name, num) for name, outputs in self.inside.items() for num in outputs if num is not None):
            self.die()
            return False
        for name, outputs in list(self.inside.items()):
            for sample, num in enumerate(outputs):
                if num is not None:
                    self.news.append(Tokens(name, sample, (num,)))
                    outputs[sample] = num + 1
        self.flush()
        return True

    def flush(self) -> None:
        while self.news:
            self.report(self.news.pop(0))

    def die(self, was_killed: bool | None = None) -> None:
        self.inside.clear()
        self.news.clear()
        self.num_deaths += 1
        self.deliver(self.recovery.on_engine_death(self.dies_by_kill if was_killed is None else was_killed))

    def restart(self) -> None:
        """A start takes a while."""
        self.now += START_SECONDS
        self.recovery.on_engine_ready()

    def finish(self, name: str, sample: int = 0) -> None:
        num, self.inside[name][sample] = self.inside[name][sample], None
        assert num is not None
        if all(output is None for output in self.inside[name]):
            del self.inside[name]
        self.report(Finished(name, sample, FinishReason.LENGTH, (num,)))

    def run(self, num_turns: int) -> None:
        """Take turns; restart the engine whenever it is dead."""
        for _ in range(num_turns):
            if not self.recovery.is_up:
                self.restart()
            self.turn()

    def settle(self, is_so: Callable[[], bool] = lambda: True) -> None:
        """Run until all trials are over."""
        for _ in range(10_000):
            self.run(1)
            if is_so() and not self.recovery.needs_ticks:
                return
        raise AssertionError("it does not end")

    def tokens(self, name: str, sample: int = 0) -> list[int]:
        told = [each for each in self.received[name] if isinstance(each, Tokens | Finished) and each.sample == sample]
        return [token for each in told for token in each.tokens]

    def errors(self, name: str) -> list[str]:
        return [each.error.code for each in self.received[name] if isinstance(each, Failed)]


Outward = Accepted | Tokens


def killer(name: str, at: int = 0) -> Kills:
    return lambda who, num_output: who == name and num_output >= at


def test_requests_resume_from_their_output_and_no_message_is_delivered_twice() -> None:
    engine = Engine()
    for name in "abc":
        engine.submit(name)
    engine.run(5)
    engine.die()
    engine.run(20)
    for name in "abc":
        assert engine.tokens(name) == list(range(len(engine.tokens(name)))) and len(engine.tokens(name)) > 20
        assert sum(isinstance(each, Accepted) for each in engine.received[name]) == 1
    assert [request.resumed for request in engine.sent[3:]] == [((0, 1, 2, 3, 4),)] * 3
    assert not engine.recovery.needs_ticks


def test_suspects_are_tried_alone_first_and_then_several_at_a_time() -> None:
    engine = Engine()
    for number in range(30):
        engine.submit(f"{number:02}")
    engine.run(1)
    engine.die()
    engine.sent.clear()
    engine.recovery.on_engine_ready()
    together = []
    while engine.recovery.needs_ticks:
        together.append(len(engine.recovery._trials))
        engine.turn()
    assert together[:4] == [1, 2, 4, 8] and max(together) == MAX_ON_TRIAL
    assert [request.id for request in engine.sent] == sorted(request.id for request in engine.sent), "the oldest first"


def test_requests_without_a_token_are_tried_first_newest_first() -> None:
    engine = Engine()
    for name in "ab":
        engine.submit(name)
    engine.run(1)
    for name in "cd":
        engine.submit(name)
    engine.die()
    engine.sent.clear()
    engine.run(10)
    assert [request.id for request in engine.sent] == ["d", "c", "a", "b"]


@pytest.mark.parametrize("dies_by_kill", [False, True])
def test_a_request_that_kills_at_once_is_refused_after_it_killed_alone_twice(dies_by_kill: bool) -> None:
    """In company, alone, and after the engine has run without it; once more if a kill looks as one from outside."""
    engine = Engine(killer("poison"), dies_by_kill)
    for name in "abcdefgh":
        engine.submit(name)
    engine.run(3)
    engine.submit("poison")
    engine.settle(lambda: "poison" not in engine.recovery)
    assert engine.num_deaths == 3 + dies_by_kill and engine.errors("poison") == ["poison_request"]
    assert all(len(engine.tokens(name)) > 20 and not engine.errors(name) for name in "abcdefgh")


def test_a_lone_request_is_refused_after_three_deaths() -> None:
    engine = Engine(killer("poison", at=3))
    engine.submit("poison")
    engine.settle(lambda: "poison" not in engine.recovery)
    assert engine.num_deaths == 3 and engine.tokens("poison") == [0, 1, 2]
    (last,) = [each for each in engine.received["poison"] if isinstance(each, Failed)]
    assert isinstance(last.error, PoisonRequest) and last.error.status == 500
    assert "2 times, also when it ran alone" in last.error.public
    assert "poison" not in engine.recovery and not engine.recovery.needs_ticks


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 20),  # requests
    st.integers(0, 19),  # which of them kills
    st.integers(0, 40),  # at which token
    st.booleans(),  # counted from where it was resumed, or from its beginning
    st.integers(1, 3),  # samples
)
def test_a_request_that_kills_is_found_whenever_it_kills(num: int, which: int, at: int, is_late: bool, n: int) -> None:
    poison = f"r{which % num}"

    def kills(name: str, num_output: int) -> bool:
        return name == poison and num_output - (engine.resumed_at.get(name, 0) if is_late else 0) >= at

    engine = Engine(kills)
    for number in range(num):
        engine.submit(f"r{number}", n=n)
    engine.settle(lambda: poison not in engine.recovery)
    assert engine.errors(poison) == ["poison_request"] and engine.num_deaths <= (10 if is_late else 7)
    for number in range(num):
        name = f"r{number}"
        assert name == poison or name in engine.recovery
        for sample in range(n):
            tokens = engine.tokens(name, sample)
            assert tokens == list(range(len(tokens)))


def test_two_requests_that_kill_are_both_found() -> None:
    engine = Engine(lambda name, num_output: name in ("p", "q") and num_output >= 2)
    for name in ("a", "p", "b", "q", "c"):
        engine.submit(name)
    engine.settle(lambda: "p" not in engine.recovery and "q" not in engine.recovery)
    assert engine.errors("p") == engine.errors("q") == ["poison_request"] and engine.num_deaths <= 12
    assert all(len(engine.tokens(name)) > 20 for name in "abc")


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 16),  # requests
    st.floats(0.1, 4.0),  # seconds from one kill to the next
    st.integers(1, 40),  # kills
    st.booleans(),  # by a signal that an engine sends itself too
)
def test_regular_kills_from_outside_refuse_no_request_and_all_resume(
    num: int, every: float, num_kills: int, is_disguised: bool
) -> None:
    """An engine that dies whatever runs in it cannot be the fault of a request."""
    engine = Engine()
    for number in range(num):
        engine.submit(str(number), max_tokens=100_000)
    engine.run(3)
    for _ in range(num_kills):
        until = engine.now + every
        while engine.now < until:
            if engine.recovery.is_up:
                engine.turn()
            elif engine.now + START_SECONDS <= until:
                engine.restart()
            else:
                engine.now = until
        if engine.recovery.is_up:
            engine.die(was_killed=not is_disguised)
        if engine.recovery.is_hopeless:
            return  # no request gets tokens any more: all of them fail, and none is blamed
    engine.settle()
    before = {number: len(engine.tokens(str(number))) for number in range(num)}
    engine.run(5)
    for number in range(num):
        tokens = engine.tokens(str(number))
        assert not engine.errors(str(number)) and len(tokens) == before[number] + 5
        assert tokens == list(range(len(tokens)))


def test_kills_from_outside_at_random_moments_refuse_no_request() -> None:
    """16 streams, 40 histories of 20 kills each, 2 s apart on average."""
    chance = random.Random(1)
    num_convicted = 0
    for _ in range(40):
        engine = Engine()
        for number in range(16):
            engine.submit(str(number), max_tokens=100_000)
        for _ in range(20):
            moment = engine.now + chance.expovariate(0.5)
            while engine.now < moment:
                engine.run(1)
            if engine.recovery.is_up:
                engine.die(was_killed=True)
        engine.settle()
        num_convicted += sum(bool(engine.errors(str(number))) for number in range(16))
    assert num_convicted == 0


def test_recovery_ends_soon_after_the_last_kill_from_outside() -> None:
    engine = Engine()
    for number in range(16):
        engine.submit(str(number), max_tokens=100_000)
    for _ in range(10):
        engine.run(20)
        engine.die(was_killed=True)
    engine.restart()
    last = engine.now
    engine.settle()
    assert engine.now - last <= CONTROL_MAX + 5


def test_blame_is_withdrawn_if_the_engine_dies_without_the_request_too() -> None:
    engine = Engine()
    engine.submit("a")
    engine.run(3)
    for _ in range(2):
        engine.die()
        engine.restart()
    assert "a" in engine.recovery and not engine.inside, "it is set aside, and the engine has to run without it"
    engine.die()
    engine.run(1)
    assert len(engine.tokens("a")) == 4, "it is not set aside any more"
    engine.die()
    engine.restart()
    engine.die()
    engine.settle()
    assert engine.errors("a") == []


def test_new_requests_run_while_a_request_is_set_aside() -> None:
    engine = Engine(killer("poison"))
    engine.submit("poison")
    engine.run(3)
    engine.restart()
    assert engine.num_deaths == 2 and not engine.inside
    engine.submit("new")
    engine.run(5)
    assert len(engine.tokens("new")) == 5
    engine.settle(lambda: "poison" not in engine.recovery)
    assert engine.errors("poison") == ["poison_request"] and not engine.errors("new")


def test_an_engine_that_ran_long_resets_the_count_of_deaths() -> None:
    engine = Engine()
    engine.submit("a")
    for _ in range(5):
        engine.run(int(CALM_SECONDS / TURN_SECONDS) + 1)
        engine.die()
    engine.run(2)
    assert not engine.recovery.needs_ticks and engine.errors("a") == []


def test_a_trial_without_a_token_times_out_and_new_requests_are_sent() -> None:
    engine = Engine()
    engine.submit("long prompt")
    engine.submit("a")
    engine.run(1)
    engine.die()
    engine.restart()
    engine.submit("new")
    engine.news.clear()  # the first on trial says nothing
    for _ in range(120):
        engine.now += 0.1
        engine.deliver(engine.recovery.tick())
        engine.flush()
    assert {request.id for request in engine.sent[2:]} == {"long prompt", "a", "new"}


def test_new_requests_wait_until_all_trials_are_over() -> None:
    engine = Engine()
    engine.submit("a")
    engine.submit("b")
    engine.run(1)
    engine.die()
    engine.submit("new")
    assert engine.received["new"] == []
    engine.recovery.on_engine_ready()
    engine.submit("newer")
    assert [request.id for request in engine.sent[2:]] == ["a"]
    engine.run(4)
    assert [request.id for request in engine.sent[2:]] == ["a", "b", "new", "newer"]
    assert [request.resumed for request in engine.sent[4:]] == [(), ()]


def test_a_request_not_yet_accepted_by_the_dead_engine_is_sent_as_new() -> None:
    engine = Engine()
    engine.submit("a")
    engine.die()
    engine.recovery.on_engine_ready()
    assert engine.sent[-1].resumed == ()
    engine.flush()
    engine.die()
    engine.recovery.on_engine_ready()
    assert engine.errors("a") == []


def test_ended_samples_are_not_resumed() -> None:
    engine = Engine()
    engine.submit("a", n=3)
    engine.run(4)
    engine.finish("a", 1)
    engine.die()
    engine.run(3)
    assert engine.sent[-1].resumed == ((0, 1, 2, 3), None, (0, 1, 2, 3))
    assert engine.tokens("a", 1) == [0, 1, 2, 3, 4] and engine.tokens("a", 2) == list(range(7))
    engine.finish("a", 0)
    engine.finish("a", 2)
    assert "a" not in engine.recovery


def test_the_next_suspect_is_sent_when_a_request_ends_during_its_trial() -> None:
    engine = Engine()
    for name in "ab":
        engine.submit(name)
    engine.run(1)
    engine.die()
    engine.recovery.on_engine_ready()
    engine.report(Failed("a", None, EngineDied("whatever")))
    assert [request.id for request in engine.sent[2:]] == ["a", "b"]


def test_prompt_log_probabilities_are_delivered_once() -> None:
    engine = Engine()
    scores = [TokenLogprobs(token, -1.0) for token in range(6)]
    engine.submit("a")
    engine.flush()
    engine.report(Tokens("a", 0, prompt_logprobs=(scores[0], scores[1])), Tokens("a", 0, prompt_logprobs=(scores[2],)))
    engine.die()
    engine.recovery.on_engine_ready()
    engine.flush()
    engine.report(Tokens("a", 0, prompt_logprobs=tuple(scores[:2])), Tokens("a", 0, prompt_logprobs=tuple(scores[2:5])))
    engine.die()
    told = [score for each in engine.received["a"] if isinstance(each, Tokens) for score in each.prompt_logprobs]
    assert told == scores[:5]


def test_a_cancel_ends_a_held_request_or_one_of_its_samples() -> None:
    engine = Engine()
    for name, n in (("a", 1), ("b", 3)):
        engine.submit(name, n)
    engine.run(2)
    assert engine.recovery.cancel("a", FinishReason.CANCELLED, None) is None, "an engine has it"
    engine.die()
    engine.deliver(engine.recovery.cancel("b", FinishReason.STOP, 1) or [])
    assert [(each.sample, each.reason) for each in engine.received["b"] if isinstance(each, Finished)] == [(1, "stop")]
    assert engine.recovery.cancel("b", FinishReason.STOP, 1) == []
    engine.deliver(engine.recovery.cancel("a", FinishReason.CANCELLED, None) or [])
    assert isinstance(engine.received["a"][-1], Finished) and "a" not in engine.recovery
    engine.recovery.on_engine_ready()
    assert [request.id for request in engine.sent[2:]] == ["b"] and engine.sent[-1].resumed[1] is None
    assert engine.recovery.cancel("nobody", FinishReason.STOP, None) is None


def test_when_the_first_held_request_is_cancelled_the_next_is_sent() -> None:
    engine = Engine()
    for name in "abc":
        engine.submit(name)
    engine.run(1)
    engine.die()
    engine.recovery.on_engine_ready()
    engine.recovery.cancel("b", FinishReason.CANCELLED, None)
    engine.turn()
    assert [request.id for request in engine.sent[3:]] == ["a", "c"]


def test_deadlines_apply_to_held_requests() -> None:
    engine = Engine()
    engine.submit("a", deadline=200.0)
    engine.run(2)
    engine.die()
    engine.submit("b", deadline=300.0)
    engine.submit("c")
    engine.now = 199.9
    assert engine.recovery.tick() == []
    engine.now = 205.0
    engine.deliver(engine.recovery.tick())
    (last,) = [each for each in engine.received["a"] if isinstance(each, Failed)]
    assert isinstance(last.error, DeadlineExceeded) and last.error.num_output == 2
    engine.recovery.on_engine_ready()
    assert [request.id for request in engine.sent[1:]] == ["b", "c"]


def test_more_held_samples_than_allowed_are_refused() -> None:
    engine = Engine()
    engine.die()
    for number in range(9):
        engine.submit(str(number), n=11)
    with pytest.raises(Overloaded, match="99 requests wait"):
        engine.submit("more", n=2)
    engine.submit("one")
    with pytest.raises(DuplicateRequest):
        engine.submit("one")
    engine.recovery.on_engine_ready()
    assert len(engine.sent) == 10


def test_pauses_grow_until_recovery_is_hopeless_and_a_token_resets_them() -> None:
    engine = Engine()
    engine.submit("a")
    engine.run(1)
    engine.die()
    pauses = [engine.recovery.pause]
    while not engine.recovery.is_hopeless:
        engine.recovery.on_start_failure()
        pauses.append(engine.recovery.pause)
    assert pauses == [*PAUSES, LONG_PAUSE] and pauses[0] == 0.0
    engine.deliver(engine.recovery.give_up(EngineDied("no hope")))
    assert engine.errors("a") == ["engine_died"]
    with pytest.raises(EngineDied, match="could not be restarted"):
        engine.submit("b")
    engine.recovery.on_engine_ready()
    engine.submit("b")
    engine.run(1)
    assert not engine.recovery.is_hopeless
    engine.die()
    assert engine.recovery.pause == 0.0


def test_a_request_that_cannot_be_sent_is_not_kept() -> None:
    def refuse(request: GenerateRequest) -> None:
        raise TypeError("not to be said")

    recovery = Recovery(refuse, 10, lambda: 0.0)
    recovery.on_engine_ready()
    with pytest.raises(TypeError):
        recovery.add(GenerateRequest("a", (1,)), lambda news: None)
    assert "a" not in recovery
