"""The plan: it reaches its target from any state, keeps serving during a rollout, and never exceeds the surge."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cluster.plan import (
    DRAINING,
    FAILING,
    READY,
    STARTING,
    STOPPED,
    DrainReplica,
    RemoveReplica,
    ReplicaView,
    StartReplica,
    Target,
    plan_actions,
)

pytestmark = pytest.mark.pure


def replica(id: str, version: str = "1", state: str = READY, num_requests: int = 0, group: str = "m") -> ReplicaView:
    return ReplicaView(id, "m", group, version, state, num_requests, answers=group != "m/prefill")


def roles(prefill: int, decode: int, surge: int = 1) -> dict[str, Target]:
    """The groups of a model with two roles, in their second version."""
    return {
        "m/prefill": Target("m", "2", prefill, surge, answers=False),
        "m/decode": Target("m", "2", decode, surge),
    }


def test_missing_replicas_are_started_and_surplus_ones_drained():
    assert plan_actions({"m": Target("m", "1", 2)}, []) == [StartReplica("m", "1")] * 2
    busy, idle, starting = replica("a", num_requests=5), replica("b"), replica("c", state=STARTING)
    assert plan_actions({"m": Target("m", "1", 1)}, [busy, idle, starting]) == [DrainReplica("c"), DrainReplica("b")]


def test_a_replica_that_ended_is_removed_and_one_that_drains_is_replaced():
    found = plan_actions({"m": Target("m", "1", 1)}, [replica("a", state=STOPPED), replica("b", state=DRAINING)])
    assert found == [RemoveReplica("a"), StartReplica("m", "1")]


def test_a_model_that_is_not_in_the_file_any_more_is_drained():
    assert plan_actions({}, [replica("a")]) == [DrainReplica("a")]


def test_a_rollout_starts_beside_the_old_ones_and_drains_one_for_each_that_is_ready():
    old = [replica("a"), replica("b")]
    target = {"m": Target("m", "2", 2, surge=1)}
    assert plan_actions(target, old) == [StartReplica("m", "2")]
    assert plan_actions(target, [*old, replica("c", "2", STARTING)]) == []
    assert plan_actions(target, [*old, replica("c", "2", FAILING)]) == []
    assert plan_actions(target, [*old, replica("c", "2")]) == [DrainReplica("a")]
    one_left = [replica("a", state=DRAINING), old[1], replica("c", "2")]
    assert plan_actions(target, one_left) == [StartReplica("m", "2")]
    assert plan_actions(target, [old[1], replica("c", "2"), replica("d", "2")]) == [DrainReplica("b")]


def test_old_replicas_that_serve_nothing_do_not_block_a_rollout():
    found = plan_actions(
        {"m": Target("m", "2", 1)}, [replica("a"), replica("b", state=STARTING), replica("c", "2", STARTING)]
    )
    assert found == [DrainReplica("b")]


def test_groups_of_a_model_are_scaled_and_rolled_out_apart():
    decode, prefill = replica("d", group="m/decode"), replica("p", "2", group="m/prefill")
    assert plan_actions(roles(1, 1), [decode, prefill]) == [StartReplica("m/decode", "2")]
    assert plan_actions(roles(2, 0), [prefill]) == [StartReplica("m/prefill", "2")]
    ready = [decode, prefill, replica("e", "2", group="m/decode")]
    assert plan_actions(roles(1, 1), ready) == [DrainReplica("d")]
    assert plan_actions(roles(0, 1), ready) == [DrainReplica("d"), DrainReplica("p")]


def test_a_model_that_gets_roles_keeps_its_old_replicas_until_others_answer():
    old = [replica("a"), replica("b")]
    assert plan_actions(roles(1, 2), old) == [StartReplica("m/decode", "2")]
    assert plan_actions(roles(1, 2), [*old, replica("d", "2", FAILING, group="m/decode")]) == []
    one = [*old, replica("d", "2", group="m/decode")]
    assert plan_actions(roles(1, 2), one) == [DrainReplica("a")]
    two = [replica("b"), replica("d", "2", group="m/decode"), replica("e", "2", group="m/decode")]
    assert plan_actions(roles(1, 2), two) == [DrainReplica("b")]
    assert plan_actions(roles(1, 2), two[1:]) == [StartReplica("m/prefill", "2")]


def test_a_prefill_group_that_is_not_in_the_file_any_more_ends_at_once():
    found = [replica("p", group="m/prefill"), replica("d", group="m/decode")]
    assert plan_actions({"m": Target("m", "1", 1)}, found) == [StartReplica("m", "1"), DrainReplica("p")]


STATES = st.sampled_from([STARTING, READY, FAILING, DRAINING, STOPPED])
FLEETS = st.lists(st.tuples(st.sampled_from("12"), STATES), max_size=8)


@given(FLEETS, st.integers(0, 4), st.integers(1, 2))
def test_every_fleet_comes_to_its_target_and_serves_on_the_way(fleet, count, surge):
    replicas = {f"r{n}": replica(f"r{n}", version, state) for n, (version, state) in enumerate(fleet)}
    target, number = {"m": Target("m", "2", count, surge)}, len(fleet)
    least = min(sum(each.state == READY for each in replicas.values()), count)
    limit = max(count + surge, sum(each.is_live for each in replicas.values()))
    for _ in range(40):
        for action in plan_actions(target, list(replicas.values())):
            match action:
                case StartReplica():
                    replicas[f"r{number}"] = replica(f"r{number}", "2", STARTING)
                    number += 1
                case DrainReplica(id):
                    replicas[id] = replica(id, replicas[id].version, DRAINING)
                case RemoveReplica(id):
                    del replicas[id]
        assert sum(each.state == READY for each in replicas.values()) >= least
        assert sum(each.is_live for each in replicas.values()) <= limit
        replicas = {id: replica(id, each.version, next_state(each)) for id, each in replicas.items()}
    assert [(each.version, each.state) for each in replicas.values()] == [("2", READY)] * count


GROUPS = st.sampled_from(["m", "m/prefill", "m/decode"])


@given(st.lists(st.tuples(GROUPS, st.sampled_from("12"), STATES), max_size=8), st.integers(0, 2), st.integers(1, 3))
def test_every_fleet_comes_to_its_roles_and_answers_on_the_way(fleet, prefill, decode):
    replicas = {
        f"r{n}": replica(f"r{n}", version, state, group=group) for n, (group, version, state) in enumerate(fleet)
    }
    targets, number = roles(prefill, decode), len(fleet)
    least = min(sum(each.answers and each.state == READY for each in replicas.values()), decode)
    for _ in range(60):
        for action in plan_actions(targets, list(replicas.values())):
            match action:
                case StartReplica(group):
                    replicas[f"r{number}"] = replica(f"r{number}", "2", STARTING, group=group)
                    number += 1
                case DrainReplica(id):
                    replicas[id] = replace(replicas[id], state=DRAINING)
                case RemoveReplica(id):
                    del replicas[id]
        assert sum(each.answers and each.state == READY for each in replicas.values()) >= least
        replicas = {id: replace(each, state=next_state(each)) for id, each in replicas.items()}
    found = sorted((each.group, each.version, each.state) for each in replicas.values())
    assert found == [("m/decode", "2", READY)] * decode + [("m/prefill", "2", READY)] * prefill


def next_state(each: ReplicaView) -> str:
    return {DRAINING: STOPPED, STARTING: READY, FAILING: READY}.get(each.state, each.state)
