"""An engine that drafts dies: the answers go on with exactly the tokens they would have had."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("zmq")
pytest.importorskip("msgspec")

from quire.engine.llm import LLM, EnginePlace, LoadedModel
from quire.runner.flight import Flight
from quire.runner.runner import Runner
from quire.scheduler.step_costs import StepCosts
from quire.types.request import SamplingParams
from quire.types.step import StepPlan
from tests.engine import child
from tests.engine.head_toys import save_with_head, with_head
from tests.engine.model_drafts import perturbed
from tests.engine.spelled import save_spelled
from tests.models.toys import make_toy, some_tokens
from tests.runner.stand_in import InterpreterDevice

pytestmark = pytest.mark.device

SETTINGS = {"num_blocks": 200, "max_rows": 16, "log_level": "debug"}  # an idle engine proves its invariants
GREEDY = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
WAYS = [GREEDY, GREEDY.updated(n=2, temperature=0.8, seed=6), GREEDY.updated(logprobs=1)]
PROMPTS = [some_tokens(5 + 7 * n) for n in range(3)]
# With four tokens, texts repeat themselves: the suffix drafter drafts, and often it is wrong.
OF_FOUR_TOKENS = [way.updated(allowed_token_ids=(14, 27, 60, 90)) for way in WAYS]
SAMPLING = [WAYS[n % len(WAYS)] for n in range(len(PROMPTS))]


def drafting_from_texts(inward: str, outward: str) -> None:
    """An engine without a draft model. The first one is killed in a step with drafts, in the middle of its answers."""
    StepCosts.seconds = lambda costs, size: 1.0  # type: ignore[assignment, method-assign]
    was_killed = Path(inward.removeprefix("ipc://")).parent.parent / "was_killed"
    launch = Runner.launch

    def launch_or_die(runner: Runner, plan: StepPlan, *more: Any) -> Flight:
        flight = launch(runner, plan, *more)
        rows = zip(plan.parts, flight.rows, strict=True)
        if any(part.drafts and part.start - row.join.num_prompt > child.SLOW_TOKENS for part, row in rows):
            was_killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return flight

    if not was_killed.exists():
        Runner.launch = launch_or_die  # type: ignore[method-assign]
    child.main(inward, outward)


class DraftingLLM(LLM):
    """An LLM that drafts, in a child process that is killed once. By default its model drafts in every step."""

    def __init__(self, model: Path, entry: str = "tests.engine.child:drafting", **settings: Any) -> None:
        place = EnginePlace("cpu", False, entry)
        self._model = LoadedModel(model, place, None, {**SETTINGS, **settings})


@pytest.fixture
def with_draft_model(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    toy, noisy = make_toy("llama"), perturbed(make_toy("llama"), 0.05)
    folders = [save_spelled(each.torch_model, tmp_path / name) for each, name in ((toy, "model"), (noisy, "draft"))]
    return folders[0], {"draft": str(folders[1])}


@pytest.fixture
def with_own_head(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    return save_with_head(with_head("glm4_moe").toy, tmp_path), {}


@pytest.mark.parametrize(
    "files, name", [("with_draft_model", "model"), pytest.param("with_own_head", "mtp", marks=pytest.mark.slow)]
)
def test_answers_go_on_exactly_when_an_engine_that_drafts_is_killed(
    files: str, name: str, request: pytest.FixtureRequest, short_tmp: Path
) -> None:
    folder, settings = request.getfixturevalue(files)
    with LLM(folder, device=InterpreterDevice(), speculate="off", **SETTINGS) as plain:
        whole = [each.samples for each in plain.generate(PROMPTS, SAMPLING)]
    with DraftingLLM(folder, **settings) as drafting:
        answers = [each.samples for each in drafting.generate(PROMPTS, SAMPLING)]
        assert drafting.client.num_restarts == 1 and answers == whole
        counters = drafting.client.counters()
        assert 0 < counters.accepted_drafts[name] < counters.drafted_tokens[name], "of the second engine"


def test_answers_go_on_exactly_when_an_engine_that_drafts_from_texts_is_killed(
    toy_folder: Path, short_tmp: Path
) -> None:
    with LLM(toy_folder, device=InterpreterDevice(), speculate="off", **SETTINGS) as plain:
        whole = [each.samples for each in plain.generate(PROMPTS, OF_FOUR_TOKENS)]
    with DraftingLLM(toy_folder, "tests.engine.test_draft_restart:drafting_from_texts") as drafting:
        assert [each.samples for each in drafting.generate(PROMPTS, OF_FOUR_TOKENS)] == whole
        assert drafting.client.num_restarts == 1 and list(short_tmp.rglob("was_killed"))
        counters = drafting.client.counters()
        assert 0 < counters.accepted_drafts["suffix"] < counters.drafted_tokens["suffix"], "of the second engine"
        assert [each.samples for each in drafting.generate(PROMPTS, OF_FOUR_TOKENS)] == whole
        counters = drafting.client.counters()
        assert counters.accepted_drafts["tree"] > 0, "of the answers that are cached"
        assert drafting.client.num_restarts == 1
