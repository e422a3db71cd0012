"""A draft model is given by name, as the model is: the name is looked up in the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.engine.llm import LLM
from quire.types.errors import QuireError
from quire.types.request import SamplingParams
from tests.engine.driver import expected
from tests.runner.stand_in import InterpreterDevice
from tests.store.folders import hub_model

pytestmark = pytest.mark.device

PROMPT = "Once upon a time"
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


def check_drafting_model(llm: LLM) -> None:
    """Assert that the engine has a model that drafts, and that the text is the same."""
    (completion,) = llm.generate(PROMPT, GREEDY)
    assert completion.tokens == tuple(expected("llama", [ord(char) for char in PROMPT], 24))
    assert "model" in llm.client.counters().drafted_tokens


def test_names_of_both_models_are_resolved_by_the_given_function(toy_folder: Path) -> None:
    names: list[str] = []

    def resolve(name: str) -> Path:
        names.append(name)
        return toy_folder

    device = InterpreterDevice()
    with LLM("toy:large", device=device, num_blocks=60, draft="toy:small", resolve=resolve) as llm:
        check_drafting_model(llm)
    assert sorted(names) == ["toy:large", "toy:small"]


def test_a_path_of_a_draft_model_is_not_looked_up(toy_folder: Path) -> None:
    def resolve(name: str) -> Path:
        raise AssertionError(name)

    device = InterpreterDevice()
    with LLM(toy_folder, device=device, num_blocks=60, draft=str(toy_folder), resolve=resolve) as llm:
        check_drafting_model(llm)


def test_a_draft_model_is_found_in_the_store(toy_folder: Path, tmp_path: Path, monkeypatch) -> None:
    hub_model(tmp_path / "hub", "Org/Toy-0.1B", {file.name: file.read_bytes() for file in toy_folder.iterdir()})
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    device, home = InterpreterDevice(), str(tmp_path / "home")
    with LLM(toy_folder, device=device, num_blocks=60, draft="Org/Toy-0.1B", home=home) as llm:
        check_drafting_model(llm)


def test_without_a_draft_model_no_model_drafts(toy_folder: Path) -> None:
    with LLM(toy_folder, device=InterpreterDevice(), num_blocks=60) as llm:
        llm.generate(PROMPT, GREEDY)
        assert "model" not in llm.client.counters().drafted_tokens


@pytest.mark.parametrize(
    "name, error",
    [
        ("unheard-of", "unheard-of:latest is not here, and 127.0.0.1:1 cannot be reached"),
        ("./nothing.gguf", "There is no file or folder ./nothing.gguf"),
        ("a b", "a b"),
    ],
)
def test_a_missing_draft_model_is_an_error_of_one_line(toy_folder: Path, tmp_path: Path, name: str, error: str) -> None:
    settings = {"num_blocks": 60, "home": str(tmp_path), "registry": "127.0.0.1:1"}  # nothing listens there
    with pytest.raises(QuireError) as caught:
        LLM(toy_folder, device=InterpreterDevice(), draft=name, **settings)
    assert error in caught.value.public and "\n" not in caught.value.public
