"""The loop and its answers: refusals, failures of one request and of a whole step, drafts, counters, the end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from quire.config import load
from quire.engine.load import build_engine
from quire.engine.messages import (
    Changed,
    Counters,
    Dead,
    Explain,
    Explained,
    Failed,
    Flush,
    Inward,
    Outward,
    PinPrefix,
    Shutdown,
    Snapshot,
    Submit,
    UnpinPrefix,
)
from quire.ops.batch import Batch
from quire.types.errors import ContextTooLong, DuplicateRequest, InvalidRequest, StepFailed
from quire.types.output import Finished, Tokens
from quire.types.request import CacheKey, FinishReason, GenerateRequest, Pin, SamplingParams
from tests.engine.driver import GREEDY_64, Driver, expected
from tests.models.toys import VOCAB, make_toy, some_tokens
from tests.runner.stand_in import Done, InterpreterDevice, InterpreterProgram
from tests.scheduler.simulator import suggest

pytestmark = pytest.mark.device


def test_a_prompt_that_is_too_long_is_refused_with_both_numbers() -> None:
    driver = Driver(max_context=100)
    driver.submit("long", some_tokens(150))
    driver.submit("fits", some_tokens(90))
    driver.run()
    error = driver.records["long", 0].error
    assert isinstance(error, ContextTooLong) and "150" in error.public and "100" in error.public
    assert driver.records["fits", 0].finish is FinishReason.LENGTH and len(driver.tokens("fits")) == 10


def test_the_context_is_the_models_unless_set_lower() -> None:
    driver = Driver(max_context=8192)
    driver.submit("long", some_tokens(1088))
    error = driver.run().records["long", 0].error
    assert error is not None and "1088" in error.public  # the toy's own limit


@pytest.mark.parametrize(
    "prompt, sampling, field",
    [
        ([1, VOCAB], {}, "prompt"),
        ([1], {"logit_bias": {VOCAB + 3: 1.0}}, "logit_bias"),
        ([1], {"allowed_token_ids": (1, VOCAB)}, "allowed_token_ids"),
        ([1], {"bad_words": ((1, 2), (3, 5000))}, "bad_words"),
        ([1], {"stop_token_ids": (VOCAB,)}, "stop_token_ids"),
    ],
)
def test_tokens_that_the_model_does_not_have_are_refused(prompt: list[int], sampling: Any, field: str) -> None:
    driver = Driver()
    driver.submit("a", prompt, SamplingParams(**sampling))
    error = driver.run().records["a", 0].error
    assert isinstance(error, InvalidRequest) and error.field == field and str(VOCAB - 1) in error.public


@pytest.mark.parametrize("fuse", [True, False])
def test_the_setting_fuse_is_passed_to_the_lowering(fuse: bool) -> None:
    found: list[bool] = []

    class Recording(InterpreterDevice):
        def lower(self, *arguments: Any) -> InterpreterProgram:
            found.append(arguments[3].fuse)
            return super().lower(*arguments)

    build_engine(make_toy("llama").checkpoint, Recording(), load({"num_blocks": 20, "fuse": fuse}, environ={}))
    assert found == [fuse]


def test_an_id_is_refused_while_its_first_request_runs() -> None:
    driver = Driver()
    driver.submit("a", some_tokens(5))
    driver.core.handle(Submit(GenerateRequest("a", (1, 2))))
    assert any(isinstance(m, Failed) and isinstance(m.error, DuplicateRequest) for m in driver.core.take())


def test_stop_tokens_end_a_request_but_not_before_min_tokens() -> None:
    prompt = some_tokens(20)
    text = expected("llama", prompt)
    stop = text[6]
    first = text.index(stop)
    driver = Driver()
    driver.submit("stops", prompt, replace(GREEDY_64, stop_token_ids=(stop,)))
    driver.submit("eos", prompt, GREEDY_64, eos_token_ids=(stop,))
    driver.submit("ignores", prompt, replace(GREEDY_64, ignore_eos=True), eos_token_ids=(stop,))
    driver.submit("later", prompt, replace(GREEDY_64, min_tokens=12), eos_token_ids=(stop,))
    driver.run()
    assert driver.tokens("stops") == driver.tokens("eos") == text[: first + 1]
    assert driver.records["stops", 0].finish is FinishReason.STOP
    assert driver.tokens("ignores") == text
    assert stop not in driver.tokens("later")[:12] and len(driver.tokens("later")) >= 12


def test_a_row_without_a_valid_distribution_fails_alone() -> None:
    driver = Driver()
    prompts = {name: some_tokens(10 + len(name)) for name in ("a", "bb", "ccc")}
    for name, prompt in prompts.items():
        driver.submit(name, prompt)
    for _ in range(5):
        driver.step()
    launch = driver.program.launch
    driver.program.launch = lambda batch: spoil(launch(batch))  # type: ignore[method-assign]
    driver.step()
    del driver.program.launch
    driver.run()
    assert isinstance(driver.records["bb", 0].error, StepFailed)
    assert driver.tokens("a") == expected("llama", prompts["a"])
    assert driver.tokens("ccc") == expected("llama", prompts["ccc"])


def spoil(done: Done) -> Done:
    done.logits[1] = float("nan")
    return done


def test_a_failed_launch_fails_its_parts_and_the_engine_continues(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver()
    driver.submit("a", some_tokens(10))
    driver.submit("b", some_tokens(11))

    def fails(batch: Any) -> Done:
        raise MemoryError("the device is full of bees")

    driver.program.launch = fails  # type: ignore[method-assign]
    driver.step()
    del driver.program.launch
    for name in "ab":
        error = driver.records[name, 0].error
        assert isinstance(error, StepFailed) and "bees" not in error.public and "MemoryError" in error.public
    assert "bees" in caplog.text
    driver.submit("c", some_tokens(12))
    assert driver.run().tokens("c") == expected("llama", some_tokens(12))


@pytest.mark.parametrize("sampling", [GREEDY_64, SamplingParams(seed=5, max_tokens=64)])
def test_drafts_change_the_number_of_steps_and_not_the_text(sampling: SamplingParams) -> None:
    prompt = some_tokens(19)
    plain = Driver()
    plain.submit("a", prompt, sampling)
    text = plain.run().tokens("a")
    driver = Driver()
    driver.submit("a", prompt, sampling)
    driver.step()
    scheduler = driver.core._scheduler
    while not driver.records["a", 0].has_ended:
        said = len(driver.tokens("a"))
        right = text[said : said + 3]
        if said % 2:
            right = [*right[:1], *((token + 1) % VOCAB for token in right[1:])]
        suggest(scheduler, "a", 0, tuple(right))
        driver.step()
    assert driver.run().tokens("a") == text
    assert driver.core.counters().num_steps < 40 < plain.core.counters().num_steps


def test_forced_tokens_are_part_of_the_text_and_of_its_penalties() -> None:
    prompt, sampling = some_tokens(19), SamplingParams(seed=5, max_tokens=20, frequency_penalty=1.0)
    plain = Driver()
    plain.submit("a", prompt, sampling)
    text = plain.run().tokens("a")
    driver = Driver()
    driver.submit("a", prompt, sampling)
    driver.step()
    driver.core._scheduler.force("a", 0, tuple(text[1:7]), now=1e9)
    assert driver.run().tokens("a") == text


class Script:
    """Messages for the loop, one list for each `receive`; then a Shutdown."""

    def __init__(self, *messages: list[Inward]) -> None:
        self.messages = list(messages)
        self.timeouts: list[float | None] = []
        self.sent: list[Outward] = []

    def receive(self, timeout: float | None) -> list[Inward]:
        self.timeouts.append(timeout)
        if self.messages:
            return self.messages.pop(0)
        return [Shutdown()] if timeout is None else []

    def send(self, messages: list[Outward]) -> None:
        self.sent += messages


def test_the_loop_serves_waits_when_idle_and_ends_in_order() -> None:
    driver = Driver()
    request = GenerateRequest("a", tuple(some_tokens(9)), replace(GREEDY_64, max_tokens=5))
    script = Script([Submit(request)], [Snapshot()])
    driver.core.run(script.receive, script.send)
    assert [type(m) for m in script.sent if isinstance(m, Tokens | Finished)] == [Tokens] * 4 + [Finished]
    assert script.timeouts[0] is None and script.timeouts[1:6] == [0.0] * 5 and script.timeouts[-1] is None
    counters = next(m for m in script.sent if isinstance(m, Counters))
    assert counters.num_accepted == 1 and counters.num_running == 1 and counters.computed_tokens == 9


def test_a_shutdown_ends_every_request_first() -> None:
    driver = Driver()
    script = Script([Submit(GenerateRequest(name, (1, 2, 3), GREEDY_64)) for name in "abc"], [], [Shutdown()])
    driver.core.run(script.receive, script.send)
    ends = {m.request_id: m.reason for m in script.sent if isinstance(m, Finished)}
    assert ends == dict.fromkeys("abc", FinishReason.CANCELLED)


def test_a_failure_of_the_loop_itself_sends_dead() -> None:
    driver = Driver()

    def plan(now: float) -> Any:
        raise KeyError("lost")

    driver.core._scheduler.plan = plan  # type: ignore[method-assign]
    script = Script([Submit(GenerateRequest("a", (1, 2), GREEDY_64))])
    with pytest.raises(KeyError):
        driver.core.run(script.receive, script.send)
    assert isinstance(script.sent[-1], Dead) and "KeyError" in script.sent[-1].error.public


def test_questions_about_the_cache_are_answered_between_steps() -> None:
    driver = Driver()
    prompt, key = tuple(some_tokens(40)), CacheKey()
    driver.submit("a", list(prompt))
    driver.run()
    driver.messages.clear()
    for question in (
        Explain(prompt, key),
        Explain((*prompt[:20], *prompt), key),
        PinPrefix(prompt, key, Pin(0, 40)),
        UnpinPrefix(prompt, key),
        Flush(),
        Explain(prompt, key),
    ):
        driver.handle(question)
    whole, diverged, pinned, unpinned, flushed, unseen = driver.messages
    assert isinstance(whole, Explained) and (whole.num_hit, whole.cause) == (40, "whole")
    assert isinstance(diverged, Explained) and (diverged.num_hit, diverged.cause) == (20, "diverged")
    assert diverged.cached == prompt[20] and diverged.given == prompt[0]
    assert (pinned, unpinned) == (Changed(40), Changed(3))
    assert isinstance(flushed, Changed) and flushed.count >= 3
    assert isinstance(unseen, Explained) and unseen.num_hit == 0
    driver.core.check()


def test_step_times_are_counted_by_part_and_waits_are_reported() -> None:
    driver = Driver(max_rows=1)
    driver.submit("a", some_tokens(10))
    driver.submit("b", some_tokens(10))
    driver.run()
    counters = driver.core.counters()
    for spread in (counters.plan, counters.run, counters.commit):
        assert sum(spread.counts) == counters.num_steps and spread.total > 0
    assert counters.run.total == pytest.approx(counters.busy_seconds)
    waited = {each.request_id: each.waited for each in driver.messages if isinstance(each, Finished)}
    assert 0 <= waited["a"] < waited["b"]


def test_idle_time_is_used_until_nothing_is_left_and_never_delays_a_message(monkeypatch) -> None:
    driver = Driver()
    bits, patience = iter([True, True, False]), []
    monkeypatch.setattr(driver.core._runner, "use_idle_time", lambda: next(bits, False))

    def receive(seconds: float | None) -> list[Inward]:
        patience.append(seconds)
        return [Shutdown()] if seconds is None and len(patience) > 1 else []

    driver.core.run(receive, lambda said: None)
    assert patience == [None, 0.0, 0.0, None], "it looks for messages after every bit, and then waits for them"


@dataclass
class PreparingProgram(InterpreterProgram):
    """Has so many things to prepare, and pads each step with two tokens."""

    left: int = 5
    num_padded: int = 0
    begun_after: list[int] = field(default_factory=list)  # steps that had been launched, at each use of idle time
    num_steps: int = 0

    def launch(self, batch: Batch) -> Done:
        self.num_steps += 1
        self.num_padded += 2
        return super().launch(batch)

    def use_idle_time(self) -> bool:
        self.begun_after.append(self.num_steps)
        self.left -= 1
        return self.left > 0


class PreparingDevice(InterpreterDevice):
    def lower(self, *arguments: Any) -> PreparingProgram:
        program = super().lower(*arguments)
        self.program = PreparingProgram(program.interpreter, program.num_blocks)
        return self.program


def test_a_program_prepares_in_idle_time_between_messages_and_its_padding_is_counted() -> None:
    device = PreparingDevice()
    core = build_engine(make_toy("llama").checkpoint, device, load({"num_blocks": 60, "kv_dtype": "f32"}, {})).core
    sampling = SamplingParams(temperature=0.0, max_tokens=3, speculate="off")
    asked = [Submit(GenerateRequest(name, tuple(some_tokens(9)), sampling)) for name in "ab"]
    said: list[Outward] = []

    def receive(seconds: float | None) -> list[Inward]:
        """The second request comes when two bits are done, and the end when nothing is left to do."""
        if seconds is None:
            return [asked[0]] if device.program.num_steps == 0 else [Shutdown()]
        return [asked[1]] if len(device.program.begun_after) == 2 and device.program.num_steps == 3 else []

    core.run(receive, said.extend)
    assert device.program.begun_after == [3, 3, 6, 6, 6], "two bits, three steps for whoever came, and the others"
    assert [each.request_id for each in said if isinstance(each, Finished)] == ["a", "b"]
    assert core.counters().padded_tokens == 12 == 2 * core.counters().num_steps
