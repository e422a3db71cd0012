"""An engine with a drafter that is a model dies: the answers go on with exactly the tokens they would have had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("zmq")
pytest.importorskip("msgspec")

from quire.engine.llm import LLM, EnginePlace, LoadedModel
from quire.types.request import SamplingParams
from tests.engine.head_toys import with_head
from tests.engine.model_drafts import perturbed
from tests.engine.spelled import save_spelled
from tests.models.toys import make_toy, some_tokens
from tests.runner.stand_in import InterpreterDevice

pytestmark = pytest.mark.device

SETTINGS = {"num_blocks": 200, "max_rows": 16, "log_level": "debug"}  # an idle engine proves its invariants
GREEDY = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
WAYS = [GREEDY, GREEDY.updated(n=2, temperature=0.8, seed=6), GREEDY.updated(logprobs=1)]
PROMPTS = [some_tokens(5 + 7 * n) for n in range(3)]
SAMPLING = [WAYS[n % len(WAYS)] for n in range(len(PROMPTS))]


class DraftingLLM(LLM):
    """An LLM whose model drafts in every step, in a child process."""

    def __init__(self, model: Path, **settings: Any) -> None:
        place = EnginePlace("cpu", False, "tests.engine.child:drafting")
        self._model = LoadedModel(model, place, None, {**SETTINGS, **settings})


@pytest.fixture
def with_draft_model(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    toy, noisy = make_toy("llama"), perturbed(make_toy("llama"), 0.05)
    folders = [save_spelled(each.torch_model, tmp_path / name) for each, name in ((toy, "model"), (noisy, "draft"))]
    return folders[0], {"draft": str(folders[1])}


@pytest.fixture
def with_own_head(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    toy = with_head("glm4_moe").toy
    folder = save_spelled(toy.torch_model, tmp_path)
    arrays = {name: tensor.array for name, tensor in toy.checkpoint.tensors.items()}
    pytest.importorskip("safetensors.numpy").save_file(arrays, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    return folder, {}


@pytest.mark.parametrize(
    "files, name", [("with_draft_model", "model"), pytest.param("with_own_head", "mtp", marks=pytest.mark.slow)]
)
def test_answers_go_on_exactly_when_an_engine_that_drafts_is_killed(
    files: str, name: str, request: pytest.FixtureRequest, short_tmp: Path
) -> None:
    folder, settings = request.getfixturevalue(files)
    with LLM(folder, device=InterpreterDevice(), speculate="off", **SETTINGS) as plain:
        whole = [each.samples for each in plain.generate(PROMPTS, SAMPLING)]
    with DraftingLLM(folder, **settings) as child:
        answers = [each.samples for each in child.generate(PROMPTS, SAMPLING)]
        assert child.client.num_restarts == 1 and answers == whole
        counters = child.client.counters()
        assert 0 < counters.accepted_drafts[name] < counters.drafted_tokens[name], "of the second engine"
