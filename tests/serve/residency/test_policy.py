"""The residency policy: by examples, and by a state machine that does everything in any order."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.serve.residency.policy import (
    Action,
    AdmitRequest,
    Demand,
    EngineStage,
    LoadEngine,
    ResidencyPolicy,
    ResizeEngine,
    UnloadEngine,
)

pytestmark = pytest.mark.pure

TURN = 5.0


class World:
    """Does at once what is planned, and remembers it."""

    def __init__(self, budget: int, *models: tuple[str, int] | tuple[str, int, int], keep: float = 300.0) -> None:
        self.policy = ResidencyPolicy(budget, TURN)
        for name, least, *most in models:
            self.policy.add(name, Demand(least, most[0] if most else least), keep)
        self.now = 0.0
        self.num_tickets = 0
        self.done: list[Action] = []
        self.admitted: set[int] = set()

    def loaded(self) -> set[str]:
        return {each.key for each in self.policy if each.stage is EngineStage.LOADED}

    def ask(self, name: str) -> int:
        self.num_tickets += 1
        self.policy.enter(self.num_tickets, name, self.now)
        self.settle()
        return self.num_tickets

    def end(self, ticket: int, keep: float | None = None) -> None:
        self.policy.finish(ticket, self.now, keep)
        self.settle()

    def serve(self, name: str, keep: float | None = None) -> None:
        ticket = self.ask(name)
        assert ticket in self.admitted
        self.end(ticket, keep)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.settle()

    def settle(self) -> None:
        while actions := self.policy.plan(self.now):
            self.policy.check()
            for action in actions:
                self.do(action)
            self.policy.check()

    def do(self, action: Action) -> None:
        self.done.append(action)
        match action:
            case AdmitRequest(ticket):
                self.admitted.add(ticket)
            case LoadEngine(name):
                self.policy.on_loaded(name, self.now)
            case UnloadEngine(name):
                self.policy.on_unloaded(name)
            case ResizeEngine(name, num_bytes):
                self.policy.on_resized(name, num_bytes)

    def names(self, kind: type) -> list[str]:
        return [action.key for action in self.done if isinstance(action, kind)]  # type: ignore[union-attr]


def test_the_first_request_loads_a_model_and_later_ones_share_it():
    world = World(100, ("a", 40), ("b", 40))
    tickets = [world.ask("a") for _ in range(5)]
    assert world.names(LoadEngine) == ["a"] and world.admitted == set(tickets)
    world.ask("b")
    assert world.names(LoadEngine) == ["a", "b"] and world.loaded() == {"a", "b"}


def test_many_waiting_requests_cause_one_load_and_are_admitted_together():
    policy = ResidencyPolicy(100, TURN)
    policy.add("a", Demand(40, 40), 300)
    for ticket in range(3):
        policy.enter(ticket, "a", 0.0)
    assert policy.plan(0.0) == [LoadEngine("a", 40)]
    policy.enter(3, "a", 0.1)
    assert policy.plan(0.1) == []
    policy.on_loaded("a", 1.0)
    assert policy.plan(1.0) == [AdmitRequest(ticket) for ticket in range(4)]


def test_an_idle_engine_is_unloaded_after_its_keep_alive():
    world = World(100, ("a", 40), keep=300)
    world.serve("a")
    world.wait(299)
    assert world.loaded() == {"a"} and world.policy.next_wakeup(world.now) == 300
    world.wait(1)
    assert world.loaded() == set()


def test_a_request_may_say_how_long_its_model_stays_until_another_one_says_otherwise():
    world = World(100, ("a", 40))
    world.serve("a", keep=10)
    world.serve("a")
    world.wait(9)
    assert world.loaded() == {"a"}
    world.wait(1)
    assert world.loaded() == set()
    world.serve("a")  # what was said before it went is forgotten
    world.wait(299)
    assert world.loaded() == {"a"}
    world.serve("a", keep=-1)
    world.wait(1e9)
    assert world.loaded() == {"a"} and world.policy.next_wakeup(world.now) == math.inf
    world.serve("a", keep=0)
    assert world.loaded() == set()


def test_a_model_that_is_released_goes_when_its_last_request_has_ended():
    world = World(100, ("a", 40))
    ticket = world.ask("a")
    world.policy.unload_when_idle("a", world.now)
    world.wait(100)
    assert world.loaded() == {"a"}
    world.end(ticket)
    assert world.loaded() == set()


def test_idle_models_make_room_the_least_recently_used_first_and_those_that_stay_last():
    world = World(100, ("a", 30), ("b", 30), ("c", 30), ("d", 40))
    world.serve("a", keep=-1)
    for name in ("b", "c"):
        world.now += 1
        world.serve(name)
    world.serve("d")
    assert world.names(UnloadEngine) == ["b"] and world.loaded() == {"a", "c", "d"}
    world.serve("b")
    world.serve("d")
    assert world.names(UnloadEngine) == ["b", "c"] and "a" in world.loaded()


def test_no_more_engines_are_unloaded_than_needed():
    world = World(100, ("a", 20), ("b", 50), ("c", 30), ("d", 40))
    for name in ("a", "b", "c", "d"):
        world.now += 1
        world.serve(name)
    assert world.loaded() == {"c", "d"} and world.names(UnloadEngine) == ["a", "b"]


def test_a_busy_model_is_waited_for_and_goes_as_soon_as_it_is_idle():
    world = World(100, ("a", 60), ("b", 60))
    first, second = world.ask("a"), world.ask("b")
    assert second not in world.admitted
    world.wait(1)
    world.end(first)
    assert second in world.admitted and world.loaded() == {"b"}


def test_a_model_that_is_never_idle_is_drained_when_another_has_waited_for_a_turn():
    world = World(100, ("a", 60), ("b", 60))
    running, waiting = [world.ask("a")], world.ask("b")
    for _ in range(10):  # always two requests of it
        world.wait(0.4)
        running.append(world.ask("a"))
        assert running[-1] in world.admitted
        world.end(running.pop(0))
    world.wait(TURN)
    late = world.ask("a")
    assert late not in world.admitted and waiting not in world.admitted
    world.end(running.pop())
    assert waiting in world.admitted and late not in world.admitted
    world.end(waiting)
    assert late in world.admitted


def test_a_request_that_gives_up_drains_no_engine():
    world = World(100, ("a", 60), ("b", 60))
    world.ask("a")
    waiting = world.ask("b")
    world.wait(TURN)
    late = world.ask("a")
    assert late not in world.admitted
    world.end(waiting)
    assert late in world.admitted and not world.names(UnloadEngine)


def test_a_large_model_is_not_overtaken_by_small_ones():
    world = World(100, ("small", 30), ("other", 30), ("large", 90))
    first = world.ask("small")
    large = world.ask("large")
    other = world.ask("other")  # there would be room for it
    assert not {large, other} & world.admitted
    world.end(first)
    assert large in world.admitted and other not in world.admitted
    world.end(large)
    assert other in world.admitted


def test_a_failed_load_voids_its_tickets_and_may_be_tried_again():
    policy = ResidencyPolicy(100, TURN)
    policy.add("a", Demand(40, 40), 300)
    policy.enter(1, "a", 0.0)
    policy.enter(2, "a", 0.0)
    assert policy.plan(0.0) == [LoadEngine("a", 40)]
    assert policy.on_load_failed("a") == [1, 2] and policy.free_bytes == 100
    policy.enter(3, "a", 1.0)
    assert policy.plan(1.0) == [LoadEngine("a", 40)]


def test_idle_engines_give_up_spare_memory_before_any_is_unloaded():
    world = World(100, ("a", 30, 200), ("b", 30, 200), ("c", 40))
    world.serve("a")
    assert world.done[0] == LoadEngine("a", 100)
    world.serve("b")
    assert world.loaded() == {"a", "b"} and ResizeEngine("a", 70) in world.done
    world.serve("c")
    assert world.loaded() == {"a", "b", "c"} and not world.names(UnloadEngine)


def test_memory_held_by_requests_is_given_up_only_when_one_has_ended():
    policy = ResidencyPolicy(100, TURN)
    policy.add("a", Demand(30, 200), 300)
    policy.add("b", Demand(50, 50), 300)
    policy.enter(1, "a", 0.0)
    policy.enter(2, "a", 0.0)
    policy.plan(0.0)
    policy.on_loaded("a", 0.0)
    policy.plan(0.0)
    policy.enter(3, "b", 0.0)
    assert policy.plan(0.0) == [ResizeEngine("a", 50)]
    policy.on_resized("a", 90)
    assert policy.plan(0.0) == []
    policy.finish(1, 0.0)
    assert policy.plan(0.0) == [ResizeEngine("a", 50)]
    policy.on_resized("a", 50)
    assert policy.plan(0.0) == [LoadEngine("b", 50)]


def test_memory_that_an_unloaded_engine_was_giving_up_counts_once():
    policy = ResidencyPolicy(100, TURN)
    for name, least, most in (("a", 20, 60), ("b", 1, 100), ("large", 100, 100)):
        policy.add(name, Demand(least, most), 300)
    for ticket, name in enumerate(("a", "b", "a")):
        policy.enter(ticket, name, 0.0)
        policy.plan(0.0)
    policy.enter(3, "large", 0.0)
    for name in ("a", "b"):
        policy.on_loaded(name, 0.0)
        policy.plan(0.0)
    policy.on_resized("a", 21)  # asked for 20
    policy.finish(0, 0.0)
    policy.finish(1, 0.0)  # b is idle, and still giving up 39
    assert set(policy.plan(0.0)) == {UnloadEngine("b"), ResizeEngine("a", 20)}
    assert policy.plan(0.0) == []


def test_memory_moves_from_an_idle_model_to_one_whose_requests_wait_for_it():
    world = World(100, ("a", 20, 80), ("b", 20, 80))
    world.serve("a")
    running = world.ask("b")
    sizes = {each.key: each.num_bytes for each in world.policy}
    assert sizes == {"a": 80, "b": 20}
    world.policy.set_pressed({"b"})
    world.settle()
    sizes = {each.key: each.num_bytes for each in world.policy}
    assert sizes == {"a": 20, "b": 80}
    world.policy.set_pressed(())
    world.end(running)
    running = world.ask("a")
    world.policy.set_pressed({"a"})
    world.settle()
    assert {each.key: each.num_bytes for each in world.policy} == {"a": 80, "b": 20}


class Machine(RuleBasedStateMachine):
    """Anything may happen at any time; what was planned is done late, and in any order."""

    BUDGET = 100
    MODELS = (("a", 20, 60), ("b", 30, 30), ("c", 45, 80), ("d", 100, 100), ("e", 1, 100))

    def __init__(self) -> None:
        super().__init__()
        self.policy = ResidencyPolicy(self.BUDGET, TURN)
        for name, least, most in self.MODELS:
            self.policy.add(name, Demand(least, most), 20.0)
        self.now = 0.0
        self.num_tickets = 0
        self.waiting: set[int] = set()
        self.running: set[int] = set()
        self.pending: list[Action] = []

    def plan(self) -> None:
        for action in self.policy.plan(self.now):
            if isinstance(action, AdmitRequest):
                assert action.ticket in self.waiting
                self.waiting.remove(action.ticket)
                self.running.add(action.ticket)
            else:
                self.pending.append(action)
        assert not self.policy.plan(self.now), "what was planned counts as begun"

    @rule(place=st.integers(0, 4))
    def ask(self, place: int) -> None:
        self.num_tickets += 1
        self.waiting.add(self.num_tickets)
        self.policy.enter(self.num_tickets, self.MODELS[place][0], self.now)
        self.plan()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), keep=st.sampled_from((None, 0.0, 3.0, -1.0)))
    def end(self, data: st.DataObject, keep: float | None) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.running)))
        self.running.remove(ticket)
        self.policy.finish(ticket, self.now, keep)
        self.plan()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting.remove(ticket)
        self.policy.finish(ticket, self.now)
        self.plan()

    @rule(place=st.integers(0, 4))
    def release(self, place: int) -> None:
        self.policy.unload_when_idle(self.MODELS[place][0], self.now)
        self.plan()

    @rule(seconds=st.floats(0, 10))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.plan()

    @rule(places=st.sets(st.integers(0, 4)))
    def press(self, places: set[int]) -> None:
        self.policy.set_pressed({self.MODELS[place][0] for place in places})
        self.plan()

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), fails=st.integers(0, 9), held=st.integers(0, 40))
    def finish(self, data: st.DataObject, fails: int, held: int) -> None:
        action = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        self.do(action, fails=not fails, held=held)
        self.plan()

    def do(self, action: Action, fails: bool = False, held: int = 0) -> None:
        match action:
            case LoadEngine(name) if fails:
                void = self.policy.on_load_failed(name)
                assert set(void) <= self.waiting
                self.waiting -= set(void)
            case LoadEngine(name):
                self.policy.on_loaded(name, self.now)
            case UnloadEngine(name):
                assert not self.policy[name].running
                self.policy.on_unloaded(name)
                self.pending = [each for each in self.pending if each.key != name]  # no engine, no answer
            case ResizeEngine(name, num_bytes):
                model = self.policy[name]
                is_held = bool(model.running) and num_bytes < model.num_bytes
                self.policy.on_resized(name, min(model.num_bytes, num_bytes + held) if is_held else num_bytes)

    @invariant()
    def keeps_its_laws(self) -> None:
        self.policy.check()

    def teardown(self) -> None:
        """If every request ends, everyone is admitted: also while others go on asking for models that are busy."""
        self.policy.set_pressed(())
        everyone = set(self.waiting)
        for _ in range(200):
            for ticket in sorted(self.running)[:-1]:  # one always runs on for another round
                self.running.remove(ticket)
                self.policy.finish(ticket, self.now)
            self.plan()
            while self.pending:
                self.do(self.pending.pop(0))
                self.plan()
            if not everyone & self.waiting:
                return
            for name in [each.key for each in self.policy if each.stage is EngineStage.LOADED]:
                self.num_tickets += 1
                self.waiting.add(self.num_tickets)
                self.policy.enter(self.num_tickets, name, self.now)
            self.now += 1.0
            self.plan()
            if len(self.running) == 1 and self.now % 7 < 1:  # in the end even that one
                self.policy.finish(self.running.pop(), self.now)
                self.plan()
        raise AssertionError(f"{everyone & self.waiting} are never served")


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
