"""Two CPU engines: one computes prompts, the other answers. The text is that of one engine, whatever happens."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from quire.engine.messages import Failed, ReadLoad, Submit
from quire.transfer.frames import Want
from quire.transfer.sender import Export
from quire.transfer.transports import nixl
from quire.types.errors import DuplicateRequest
from quire.types.output import Finished
from quire.types.request import CacheKey, FinishReason, SamplingParams
from quire.types.setting import BadSetting
from quire.types.transfer import PrefixSource
from tests.devices.cpu.programs import HAS_NATIVE
from tests.engine.replicas import GREEDY, Answer, Replica, answer_of, replicas, source_of
from tests.models.toys import some_tokens
from tests.transfer.ends import cut, flip, lose, proxy, stall
from tests.waiting import wait_until

pytestmark = [pytest.mark.device, pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")]

ALONE = CacheKey(salt="alone")  # finds nothing that came from elsewhere
# Windows; short convolutions; delta rule; Mamba-2 with attention; Mamba-2 alone; latent attention.
GROUPS = ["gemma3", "lfm2", "qwen3_5", "granitemoehybrid", "mamba2", "deepseek_v2"]


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Replica]]:
    with replicas() as opened:
        yield opened


def alone(replica: Replica, prompt: list[int], **more: Any) -> Answer:
    return replica.answer(prompt, cache=ALONE, **more)


def test_a_prompt_that_another_engine_computes_is_answered_with_the_same_bits(pair):
    prefill, decode = pair
    for length in (18, 33, 64, 65, 150):
        prompt, before = some_tokens(length), decode.counters()
        answer = decode.answer(prompt, source_of(prefill, prompt))
        after = decode.counters()
        assert answer.said() == alone(decode, prompt).said()
        num_sent = (length - 1) // 16 * 16
        assert after.fetched_tokens - before.fetched_tokens == num_sent
        assert after.computed_tokens - before.computed_tokens == length - num_sent + 11  # and the answer
        assert answer.num_hit == 0  # it was computed for this request, if elsewhere
    assert decode.counters().num_failed_fetches == 0 and prefill.counters().num_held_blocks == 0


def test_a_prefix_in_the_other_cache_is_fetched_and_counts_as_cached(pair):
    other, replica = pair
    prompt = some_tokens(200)
    other.answer(prompt[:120])
    before = replica.counters().fetched_tokens
    answer = replica.answer(prompt, source_of(other, prompt, computes=False))
    assert answer.said() == alone(replica, prompt).said()
    assert replica.counters().fetched_tokens - before == 112 and answer.num_hit == 112
    again = replica.answer(prompt, source_of(other, prompt, computes=False))
    assert again.said() == answer.said() and replica.counters().fetched_tokens - before == 112


def test_only_blocks_that_are_missing_are_sent(pair):
    prefill, decode = pair
    prompt = some_tokens(131)
    decode.answer(prompt[:70])
    before = decode.counters().fetched_tokens
    assert decode.answer(prompt, source_of(prefill, prompt)).said() == alone(decode, prompt).said()
    assert decode.counters().fetched_tokens - before == 64


def test_salts_are_not_mixed(pair):
    prefill, decode = pair
    prompt, salted = some_tokens(90), CacheKey(salt="tenant")
    answer = decode.answer(prompt, source_of(prefill, prompt), cache=salted)
    assert answer.said() == alone(decode, prompt).said()
    assert decode.answer(prompt, cache=CacheKey(salt="other")).num_hit == 0
    assert decode.answer(prompt, cache=salted).num_hit == 89


SPOILS = {
    "corrupted": flip(20_000),
    "corrupted at once": flip(300),
    "lost": lose(15_000, 15_100),
    "broken off": cut(15_000),
    "delayed": stall(15_000, 1.5),
}


@pytest.mark.parametrize("what", SPOILS)
def test_a_spoiled_transfer_falls_back_to_computing(what):
    with replicas(transport="tcp", transfer_patience=0.4) as (prefill, decode):
        prompt = some_tokens(400)
        with proxy(prefill.port, SPOILS[what]) as port:
            answer = decode.answer(prompt, source_of(prefill, prompt, port=port))
        assert answer.said() == alone(decode, prompt).said()
        counters = decode.counters()
        assert counters.num_fetches == counters.num_failed_fetches == 1 and counters.fetched_tokens < 384


def test_an_engine_that_ends_in_the_middle_of_a_transfer_falls_back_to_computing():
    with replicas(transport="tcp", max_step_tokens=16) as (prefill, decode):
        prompt = some_tokens(900)
        request = decode.request(prompt, source_of(prefill, prompt))
        answers: list[Answer] = []
        thread = threading.Thread(target=lambda: answers.append(answer_of(decode, request)))
        thread.start()
        wait_until(lambda: decode.counters().fetched_tokens > 0)
        prefill.client.close()
        thread.join()
        assert answers[0].said() == alone(decode, prompt).said()


def test_a_source_that_nobody_listens_at_falls_back_to_computing(pair):
    prompt = some_tokens(60)
    answer = pair[1].answer(prompt, PrefixSource("127.0.0.1", 1, True, 60))
    assert answer.said() == alone(pair[1], prompt).said()


def test_a_full_cache_computes_what_there_is_no_room_for():
    with (
        replicas(num_blocks=None, max_context=256, max_rows=8) as (prefill, _),
        replicas(1, num_blocks=34) as (decode,),
    ):
        held = [decode.request(some_tokens(length), sampling=replace(GREEDY, max_tokens=60)) for length in (200, 201)]
        threads = [threading.Thread(target=answer_of, args=(decode, each)) for each in held]
        for thread in threads:
            thread.start()
        prompt = some_tokens(199)
        answer = decode.answer(prompt, source_of(prefill, prompt))
        for thread in threads:
            thread.join()
        assert answer.said() == alone(prefill, prompt).said()
        assert decode.counters().num_failed == 0


def test_requests_with_the_same_prompt_fetch_it_once(pair):
    prefill, decode = pair
    prompt, before = some_tokens(700), decode.counters()
    requests = [decode.request(prompt, source_of(prefill, prompt)) for _ in range(4)]
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda each=each: answers.append(answer_of(decode, each))) for each in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = alone(decode, prompt).said()
    assert len(answers) == 4 and all(each.said() == expected for each in answers)
    assert decode.counters().fetched_tokens - before.fetched_tokens == 688


def silent(prompt: list[int], port: int) -> PrefixSource:
    """A source that is estimated to take long, so it is waited for."""
    return PrefixSource("127.0.0.1", port, True, len(prompt), 100.0)


def test_a_request_that_waits_for_blocks_can_be_cancelled_and_cannot_be_sent_twice(pair):
    decode, prompt = pair[1], some_tokens(80)
    with proxy(pair[0].port, stall(0, 3.0)) as port:
        request, news = decode.request(prompt, silent(prompt, port)), []
        decode.client.submit(request, news.append)
        wait_until(lambda: decode.core._links.fetches)
        decode.client._link.send(Submit(request))
        wait_until(lambda: decode.counters().num_refused)
        assert decode.client.cancel(request.id).result(10)
        wait_until(lambda: any(isinstance(each, Finished | Failed) for each in news))
        ended = next(each for each in news if isinstance(each, Finished | Failed))
        is_duplicate = isinstance(ended, Failed) and isinstance(ended.error, DuplicateRequest)
        assert is_duplicate or (isinstance(ended, Finished) and ended.reason is FinishReason.CANCELLED)
        wait_until(lambda: not decode.core._links.fetches)


def test_a_cancelled_request_cancels_its_prompt_elsewhere():
    with replicas(max_step_tokens=16) as (prefill, decode):
        prompt, launch, may_go_on = some_tokens(1000), prefill.core._runner.launch, threading.Event()
        prefill.core._runner.launch = lambda *parts: may_go_on.wait(60) and launch(*parts)  # its first step waits
        request = decode.request(prompt, source_of(prefill, prompt))
        decode.client.submit(request, lambda news: None)
        wait_until(lambda: prefill.core._links.prefills)
        assert decode.client.cancel(request.id).result(30)
        wait_until(lambda: prefill.core._links.prefills[0].export.is_gone)
        may_go_on.set()
        wait_until(lambda: not prefill.counters().num_running and not prefill.core._links.prefills)
        counters = prefill.counters()
        assert counters.num_held_blocks == 0 and counters.num_cancelled == 1 and counters.computed_tokens == 16


def test_a_deadline_ends_a_request_that_waits_for_blocks(pair):
    decode, prompt = pair[1], some_tokens(81)
    with proxy(pair[0].port, stall(0, 2.0)) as port:
        answer = decode.answer(prompt, silent(prompt, port), deadline=time.monotonic() + 0.3)
    assert isinstance(answer.end, Failed) and answer.end.error.code == "deadline_exceeded"


def test_an_engine_that_shuts_down_ends_requests_that_wait_for_blocks():
    with replicas() as (prefill, decode):
        prompt, news = some_tokens(82), []
        with proxy(prefill.port, stall(0, 2.0)) as port:
            decode.client.submit(decode.request(prompt, silent(prompt, port)), news.append)
            wait_until(lambda: decode.core._links.fetches)
            decode.client.close()
        assert any(isinstance(each, Finished | Failed) for each in news)


def test_what_must_be_computed_here_is_not_fetched(pair):
    decode, prompt = pair[1], some_tokens(83)
    before = decode.counters().num_fetches
    scored = SamplingParams(max_tokens=2, temperature=0, prompt_logprobs=1)
    decode.answer(prompt, source_of(pair[0], prompt), sampling=scored)
    decode.answer(some_tokens(12), source_of(pair[0], prompt))
    assert decode.counters().num_fetches == before


def test_a_load_report_counts_prompts_for_other_engines_that_have_just_come():
    with replicas(1) as (prefill,):
        tokens = array("I", some_tokens(97)).tobytes()
        export = Export(Want(b"", "", ("", "", ""), tokens, 0, computes=True, offers={}), 16)
        prefill.core._new_exports.append(export)  # the loop has not seen it when it is asked
        report = prefill.client.ask(ReadLoad()).result(10)
        assert report.num_waiting + report.num_running == 1 and report.backlog_tokens == 97
        wait_until(lambda: not prefill.core._links.prefills)


def test_an_engine_with_the_role_prefill_computes_prompts_one_after_the_other_in_short_steps():
    for role, is_prefill in (("prefill", True), ("decode", False), ("both", False)):
        with replicas(1, role=role) as (replica,):
            limits = replica.core._scheduler._config
            assert (limits.hands_over, limits.max_partial_prompts == 1) == (is_prefill, is_prefill)


def test_an_engine_without_a_secret_computes():
    with replicas() as (prefill, _), replicas(1, transfer_secret=None) as (plain,):
        prompt = some_tokens(60)
        assert plain.answer(prompt, source_of(prefill, prompt)).said() == alone(prefill, prompt).said()


def test_blocks_by_nixl_are_answered_with_the_same_bits():
    if why := nixl.unavailable():
        pytest.skip(why)
    with replicas(transport="nixl") as (prefill, decode):
        for length in (33, 150):
            prompt = some_tokens(length)
            assert decode.answer(prompt, source_of(prefill, prompt)).said() == alone(decode, prompt).said()
        counters = decode.counters()
        assert counters.num_failed_fetches == 0 and counters.fetched_tokens == 32 + 144


def test_an_engine_does_not_start_with_a_transport_that_it_does_not_have(monkeypatch):
    monkeypatch.setattr(nixl, "unavailable", lambda: "the package nixl is not installed")
    with pytest.raises(BadSetting, match="the package nixl is not installed"), replicas(1, transport="nixl"):
        pass


@pytest.mark.parametrize("case", GROUPS[:2] + [pytest.param(case, marks=pytest.mark.slow) for case in GROUPS[2:]])
def test_windows_and_states_come_with_the_blocks(case):
    with replicas(case=case) as (prefill, decode):
        for length in (40, 150):
            prompt, before = some_tokens(length), decode.counters()
            answer = decode.answer(prompt, source_of(prefill, prompt))
            after = decode.counters()
            assert answer.said() == alone(decode, prompt).said()
            num_sent = (length - 1) // 16 * 16
            assert after.fetched_tokens - before.fetched_tokens == num_sent
            assert after.computed_tokens - before.computed_tokens == length - num_sent + 11
        assert decode.counters().num_failed_fetches == 0


@pytest.mark.slow
def test_200_prompts_have_the_text_of_one_engine():
    with replicas(num_blocks=400) as (prefill, decode), replicas(1, num_blocks=400) as (one,):
        for number in range(200):
            prompt = some_tokens(20 + number * 3)
            seeded = SamplingParams(max_tokens=10, seed=number, ignore_eos=True) if number % 2 else GREEDY
            answer = decode.answer(prompt, source_of(prefill, prompt), sampling=seeded)
            assert answer.said() == one.answer(prompt, sampling=seeded).said(), number
        counters = decode.counters()
        assert counters.num_fetches == 200 and counters.num_failed_fetches == 0
