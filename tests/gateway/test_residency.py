"""Which models are in memory: by sentences, and by a machine that does everything in any order."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.gateway.residency import Action, Admit, Demand, Load, Residency, Resize, Stage, Unload

pytestmark = pytest.mark.pure

TURN = 5.0


class World:
    """Does at once what is planned, and remembers it."""

    def __init__(self, budget: int, *models: tuple[str, int] | tuple[str, int, int], keep: float = 300.0) -> None:
        self.residency = Residency(budget, TURN)
        for name, least, *most in models:
            self.residency.add(name, Demand(least, most[0] if most else least), keep)
        self.now = 0.0
        self.num_tickets = 0
        self.done: list[Action] = []
        self.admitted: set[int] = set()

    def here(self) -> set[str]:
        return {each.name for each in self.residency if each.stage is Stage.HERE}

    def ask(self, name: str) -> int:
        self.num_tickets += 1
        self.residency.ask(self.num_tickets, name, self.now)
        self.settle()
        return self.num_tickets

    def end(self, ticket: int, keep: float | None = None) -> None:
        self.residency.end(ticket, self.now, keep)
        self.settle()

    def serve(self, name: str, keep: float | None = None) -> None:
        ticket = self.ask(name)
        assert ticket in self.admitted
        self.end(ticket, keep)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.settle()

    def settle(self) -> None:
        while actions := self.residency.plan(self.now):
            self.residency.check()
            for action in actions:
                self.do(action)
            self.residency.check()

    def do(self, action: Action) -> None:
        self.done.append(action)
        match action:
            case Admit(ticket):
                self.admitted.add(ticket)
            case Load(name):
                self.residency.loaded(name, self.now)
            case Unload(name):
                self.residency.gone(name)
            case Resize(name, num_bytes):
                self.residency.resized(name, num_bytes)

    def names(self, kind: type) -> list[str]:
        return [action.name for action in self.done if isinstance(action, kind)]  # type: ignore[union-attr]


def test_the_first_request_loads_a_model_and_later_ones_share_it():
    world = World(100, ("a", 40), ("b", 40))
    tickets = [world.ask("a") for _ in range(5)]
    assert world.names(Load) == ["a"] and world.admitted == set(tickets)
    world.ask("b")
    assert world.names(Load) == ["a", "b"] and world.here() == {"a", "b"}


def test_many_who_wait_cause_one_load_and_are_admitted_together():
    residency = Residency(100, TURN)
    residency.add("a", Demand(40, 40), 300)
    for ticket in range(3):
        residency.ask(ticket, "a", 0.0)
    assert residency.plan(0.0) == [Load("a", 40)]
    residency.ask(3, "a", 0.1)
    assert residency.plan(0.1) == []
    residency.loaded("a", 1.0)
    assert residency.plan(1.0) == [Admit(ticket) for ticket in range(4)]


def test_a_model_goes_when_nobody_has_used_it_for_as_long_as_it_is_kept():
    world = World(100, ("a", 40), keep=300)
    world.serve("a")
    world.wait(299)
    assert world.here() == {"a"} and world.residency.wakes(world.now) == 300
    world.wait(1)
    assert world.here() == set()


def test_a_request_may_say_how_long_its_model_stays_until_another_one_says_otherwise():
    world = World(100, ("a", 40))
    world.serve("a", keep=10)
    world.serve("a")
    world.wait(9)
    assert world.here() == {"a"}
    world.wait(1)
    assert world.here() == set()
    world.serve("a")  # what was said before it went is forgotten
    world.wait(299)
    assert world.here() == {"a"}
    world.serve("a", keep=-1)
    world.wait(1e9)
    assert world.here() == {"a"} and world.residency.wakes(world.now) == math.inf
    world.serve("a", keep=0)
    assert world.here() == set()


def test_a_model_that_is_released_goes_when_its_last_request_has_ended():
    world = World(100, ("a", 40))
    ticket = world.ask("a")
    world.residency.release("a", world.now)
    world.wait(100)
    assert world.here() == {"a"}
    world.end(ticket)
    assert world.here() == set()


def test_idle_models_make_room_the_least_recently_used_first_and_those_that_stay_last():
    world = World(100, ("a", 30), ("b", 30), ("c", 30), ("d", 40))
    world.serve("a", keep=-1)
    for name in ("b", "c"):
        world.now += 1
        world.serve(name)
    world.serve("d")
    assert world.names(Unload) == ["b"] and world.here() == {"a", "c", "d"}
    world.serve("b")
    world.serve("d")
    assert world.names(Unload) == ["b", "c"] and "a" in world.here()


def test_no_more_goes_than_is_needed():
    world = World(100, ("a", 20), ("b", 50), ("c", 30), ("d", 40))
    for name in ("a", "b", "c", "d"):
        world.now += 1
        world.serve(name)
    assert world.here() == {"c", "d"} and world.names(Unload) == ["a", "b"]


def test_a_busy_model_is_waited_for_and_goes_as_soon_as_it_is_idle():
    world = World(100, ("a", 60), ("b", 60))
    first, second = world.ask("a"), world.ask("b")
    assert second not in world.admitted
    world.wait(1)
    world.end(first)
    assert second in world.admitted and world.here() == {"b"}


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


def test_who_gives_up_drains_nobody():
    world = World(100, ("a", 60), ("b", 60))
    world.ask("a")
    waiting = world.ask("b")
    world.wait(TURN)
    late = world.ask("a")
    assert late not in world.admitted
    world.end(waiting)
    assert late in world.admitted and not world.names(Unload)


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


def test_what_cannot_be_loaded_voids_its_tickets_and_may_be_tried_again():
    residency = Residency(100, TURN)
    residency.add("a", Demand(40, 40), 300)
    residency.ask(1, "a", 0.0)
    residency.ask(2, "a", 0.0)
    assert residency.plan(0.0) == [Load("a", 40)]
    assert residency.failed("a") == [1, 2] and residency.free == 100
    residency.ask(3, "a", 1.0)
    assert residency.plan(1.0) == [Load("a", 40)]


def test_idle_models_give_up_spare_memory_before_anyone_goes():
    world = World(100, ("a", 30, 200), ("b", 30, 200), ("c", 40))
    world.serve("a")
    assert world.done[0] == Load("a", 100)
    world.serve("b")
    assert world.here() == {"a", "b"} and Resize("a", 70) in world.done
    world.serve("c")
    assert world.here() == {"a", "b", "c"} and not world.names(Unload)


def test_what_requests_hold_is_not_given_up_and_is_asked_for_again_when_one_has_ended():
    residency = Residency(100, TURN)
    residency.add("a", Demand(30, 200), 300)
    residency.add("b", Demand(50, 50), 300)
    residency.ask(1, "a", 0.0)
    residency.ask(2, "a", 0.0)
    residency.plan(0.0)
    residency.loaded("a", 0.0)
    residency.plan(0.0)
    residency.ask(3, "b", 0.0)
    assert residency.plan(0.0) == [Resize("a", 50)]
    residency.resized("a", 90)
    assert residency.plan(0.0) == []
    residency.end(1, 0.0)
    assert residency.plan(0.0) == [Resize("a", 50)]
    residency.resized("a", 50)
    assert residency.plan(0.0) == [Load("b", 50)]


def test_memory_moves_from_an_idle_model_to_one_whose_requests_wait_for_it():
    world = World(100, ("a", 20, 80), ("b", 20, 80))
    world.serve("a")
    running = world.ask("b")
    sizes = {each.name: each.num_bytes for each in world.residency}
    assert sizes == {"a": 80, "b": 20}
    world.residency.press({"b"})
    world.settle()
    sizes = {each.name: each.num_bytes for each in world.residency}
    assert sizes == {"a": 20, "b": 80}
    world.residency.press(())
    world.end(running)
    running = world.ask("a")
    world.residency.press({"a"})
    world.settle()
    assert {each.name: each.num_bytes for each in world.residency} == {"a": 80, "b": 20}


class Machine(RuleBasedStateMachine):
    """Anything may happen at any time; what was planned is done late, and in any order."""

    BUDGET = 100
    MODELS = (("a", 20, 60), ("b", 30, 30), ("c", 45, 80), ("d", 100, 100), ("e", 1, 100))

    def __init__(self) -> None:
        super().__init__()
        self.residency = Residency(self.BUDGET, TURN)
        for name, least, most in self.MODELS:
            self.residency.add(name, Demand(least, most), 20.0)
        self.now = 0.0
        self.num_tickets = 0
        self.waiting: set[int] = set()
        self.running: set[int] = set()
        self.pending: list[Action] = []

    def plan(self) -> None:
        for action in self.residency.plan(self.now):
            if isinstance(action, Admit):
                assert action.ticket in self.waiting
                self.waiting.remove(action.ticket)
                self.running.add(action.ticket)
            else:
                self.pending.append(action)
        assert not self.residency.plan(self.now), "what was planned counts as begun"

    @rule(place=st.integers(0, 4))
    def ask(self, place: int) -> None:
        self.num_tickets += 1
        self.waiting.add(self.num_tickets)
        self.residency.ask(self.num_tickets, self.MODELS[place][0], self.now)
        self.plan()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), keep=st.sampled_from((None, 0.0, 3.0, -1.0)))
    def end(self, data: st.DataObject, keep: float | None) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.running)))
        self.running.remove(ticket)
        self.residency.end(ticket, self.now, keep)
        self.plan()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting.remove(ticket)
        self.residency.end(ticket, self.now)
        self.plan()

    @rule(place=st.integers(0, 4))
    def release(self, place: int) -> None:
        self.residency.release(self.MODELS[place][0], self.now)
        self.plan()

    @rule(seconds=st.floats(0, 10))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.plan()

    @rule(places=st.sets(st.integers(0, 4)))
    def press(self, places: set[int]) -> None:
        self.residency.press({self.MODELS[place][0] for place in places})
        self.plan()

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), fails=st.integers(0, 9), held=st.integers(0, 40))
    def finish(self, data: st.DataObject, fails: int, held: int) -> None:
        action = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        self.do(action, fails=not fails, held=held)
        self.plan()

    def do(self, action: Action, fails: bool = False, held: int = 0) -> None:
        match action:
            case Load(name) if fails:
                void = self.residency.failed(name)
                assert set(void) <= self.waiting
                self.waiting -= set(void)
            case Load(name):
                self.residency.loaded(name, self.now)
            case Unload(name):
                assert not self.residency[name].running
                self.residency.gone(name)
                self.pending = [each for each in self.pending if each.name != name]  # no engine, no answer
            case Resize(name, num_bytes):
                model = self.residency[name]
                is_held = bool(model.running) and num_bytes < model.num_bytes
                self.residency.resized(name, min(model.num_bytes, num_bytes + held) if is_held else num_bytes)

    @invariant()
    def keeps_its_laws(self) -> None:
        self.residency.check()

    def teardown(self) -> None:
        """If every request ends, everyone is admitted: also while others go on asking for models that are busy."""
        self.residency.press(())
        everyone = set(self.waiting)
        for _ in range(200):
            for ticket in sorted(self.running)[:-1]:  # one always runs on for another round
                self.running.remove(ticket)
                self.residency.end(ticket, self.now)
            self.plan()
            while self.pending:
                self.do(self.pending.pop(0))
                self.plan()
            if not everyone & self.waiting:
                return
            for name in [each.name for each in self.residency if each.stage is Stage.HERE]:
                self.num_tickets += 1
                self.waiting.add(self.num_tickets)
                self.residency.ask(self.num_tickets, name, self.now)
            self.now += 1.0
            self.plan()
            if len(self.running) == 1 and self.now % 7 < 1:  # in the end even that one
                self.residency.end(self.running.pop(), self.now)
                self.plan()
        raise AssertionError(f"{everyone & self.waiting} are never served")


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
