"""A request's phases: legal transitions, illegal ones, and the cached predicate that follows them."""

from __future__ import annotations

import ast
from array import array
from collections.abc import Callable

import pytest

from quire.cache.kv_cache import KVCache, Lease
from quire.scheduler.request_state import NEXT_PHASES, NO_ROW, Phase, RequestState
from quire.types.request import Constraint, ConstraintKind, FinishReason, GenerateRequest
from quire.types.step import Part
from tests.architecture.sources import all_sources
from tests.scheduler.simulator import make, request

pytestmark = pytest.mark.pure

BLOCK_TOKENS = 4
PROMPT = array("I", range(6))


def lease() -> Lease:
    cache = KVCache(num_blocks=8, block_tokens=BLOCK_TOKENS)
    lease = cache.lease(cache.match(PROMPT, request("a", range(6)).cache), PROMPT, request("a", range(6)).cache, 0.0)
    assert cache.extend(lease, 16, 0.0)
    return lease


def waiting(**more: object) -> RequestState:
    return RequestState(request("a", range(6), **more), 0, arrival_index=1, max_total=20, arrival_time=1.0)


def prefilling(**more: object) -> RequestState:
    state = waiting(**more)
    state.admit(lease(), row=3, block_tokens=BLOCK_TOKENS, step_number=1, now=2.0)
    return state


def decoding(**more: object) -> RequestState:
    """A request whose prompt is computed, and whose first token is sampled."""
    state = prefilling(**more)
    state.take_unsent_blocks()
    state.schedule(6, step_number=1)
    state.num_in_flight -= 1
    state.advance(Part("a", 3, 0, tuple(range(6)), num_logits=1, new_blocks=()), num_accepted=1)
    state.accept((7,))
    return state


def finished() -> RequestState:
    state = waiting()
    state.finish()
    return state


IN_PHASE: dict[Phase, Callable[[], RequestState]] = {
    Phase.WAITING: waiting,
    Phase.PREFILLING: prefilling,
    Phase.DECODING: decoding,
    Phase.FINISHED: finished,
}
TRANSITIONS: dict[str, tuple[Phase, Callable[[RequestState], None]]] = {
    "admit": (Phase.PREFILLING, lambda state: state.admit(lease(), 3, BLOCK_TOKENS, 1, 2.0)),
    "preempt": (Phase.WAITING, RequestState.preempt),
    "finish": (Phase.FINISHED, RequestState.finish),
}


@pytest.mark.parametrize("name", TRANSITIONS)
@pytest.mark.parametrize("phase", Phase)
def test_a_transition_leads_to_its_phase_or_raises(phase: Phase, name: str):
    state, (after, apply) = IN_PHASE[phase](), TRANSITIONS[name]
    assert state.phase is phase
    state.check()
    if after in NEXT_PHASES[phase]:
        apply(state)
        assert state.phase is after
        state.check()
    else:
        with pytest.raises(AssertionError, match=f"from {phase.value} to {after.value}"):
            apply(state)
        assert state.phase is phase


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.FINISHED])
def test_only_a_running_request_can_be_scheduled(phase: Phase):
    with pytest.raises(AssertionError, match=phase.value):
        IN_PHASE[phase]().schedule(6, step_number=1)


def test_a_request_with_a_result_in_flight_cannot_be_admitted():
    state = prefilling()
    state.schedule(4, step_number=1)
    state.preempt()
    with pytest.raises(AssertionError, match="in flight"):
        TRANSITIONS["admit"][1](state)


def test_a_request_decodes_once_its_last_known_token_is_scheduled():
    state = prefilling()
    state.take_unsent_blocks()
    state.schedule(4, step_number=1)
    assert state.phase is Phase.PREFILLING and not state.is_plain_decode
    state.schedule(6, step_number=2)
    assert state.phase is Phase.DECODING and state.is_plain_decode
    state.check()


def test_preemption_and_finish_return_row_and_blocks_and_keep_the_tokens():
    for leave in (RequestState.preempt, RequestState.finish):
        state = decoding()
        leave(state)
        assert (state.lease, state.row, state.computed, state.scheduled, state.capacity) == (None, NO_ROW, 0, 0, 0)
        assert list(state.tokens) == [*range(6), 7] and not state.is_plain_decode


def test_a_plain_decode_is_interrupted_by_drafts_forced_tokens_and_stale_results():
    changes: dict[str, Callable[[RequestState], object]] = {
        "drafts": lambda state: state.suggest((1, 2)),
        "forced tokens": lambda state: state.force((1, 2)),
        "stale results": RequestState.discard_in_flight,
    }
    for change in changes.values():
        state = decoding()
        assert state.is_plain_decode
        change(state)
        assert not state.is_plain_decode
        state.check()


def test_a_plain_decode_is_resumed_when_drafts_do_not_fit():
    state = decoding()
    state.suggest((1, 2))
    state.limit_drafts(1)
    assert state.drafts == (1,) and not state.is_plain_decode
    state.limit_drafts(-1)
    assert state.drafts == () and state.is_plain_decode


def test_drafts_await_the_result_that_verifies_them():
    state = decoding()
    state.suggest((1, 2))
    state.schedule(7, step_number=2)
    assert state.awaits_result and not state.drafts and not state.is_plain_decode
    state.num_in_flight -= 1
    state.advance(Part("a", 3, 6, (7, 1, 2), num_logits=3, new_blocks=()), num_accepted=2)
    assert not state.awaits_result and state.computed == 8 and state.is_plain_decode


def test_a_constrained_request_never_decodes_plainly():
    state = decoding(constraint=Constraint(ConstraintKind.JSON))
    assert state.phase is Phase.DECODING and not state.is_plain_decode
    state.check()


def test_drafts_are_ignored_before_the_request_decodes():
    for phase in (Phase.WAITING, Phase.PREFILLING):
        state = IN_PHASE[phase]()
        state.suggest((1, 2))
        assert state.drafts == ()


def test_output_ends_at_a_stop_token_or_at_the_limit():
    state = RequestState(GenerateRequest("a", (1, 2), eos_token_ids=(9,)), 0, 1, max_total=6, arrival_time=0.0)
    assert state.accept((5, 9, 5)) == ((5, 9), FinishReason.STOP)
    assert state.accept((5, 6, 7)) == ((5, 6), FinishReason.LENGTH)
    assert state.num_output == 4


def test_the_scheduler_check_finds_a_state_whose_cached_predicate_or_phase_is_wrong():
    for name, value in (("is_plain_decode", False), ("phase", Phase.WAITING), ("drafts", (1,))):
        sim = make()
        sim.submit(request("a", range(10)))
        sim.step()
        (state,) = sim.scheduler._running
        sim.scheduler.check()
        setattr(state, name, value)
        with pytest.raises(AssertionError):
            sim.scheduler.check()


def test_only_the_state_itself_changes_its_phase_and_what_the_predicate_depends_on():
    own = {"phase", "is_plain_decode", "drafts", "_num_stale", "_awaits_result", "_is_next_on_device", "lease", "row"}
    found = []
    for source in all_sources():
        if source.name.startswith("scheduler.") and source.name != "scheduler.request_state":
            for node in ast.walk(source.tree):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in own:
                    found.append(f"{source}: {ast.unparse(node)}")
    assert found == []
