"""From Python too, a parameter that is not given is the Modelfile's, else the model's, else ours."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from quire.engine.llm import LLM
from quire.text.preset import FILES
from quire.types.errors import ContextTooLong
from quire.types.request import SamplingParams
from tests.runner.stand_in import InterpreterDevice

pytestmark = pytest.mark.pure

PROMPT = [[5, 6, 7]]


@pytest.fixture
def folder(toy_folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(toy_folder, tmp_path / "model")
    file = tmp_path / "model" / "generation_config.json"
    known = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps(known | {"do_sample": False, "max_new_tokens": 9, "top_k": 3}))
    return tmp_path / "model"


def opened(folder: Path, **settings: object) -> LLM:
    return LLM(folder, device=InterpreterDevice(), **{"num_blocks": 120, "max_rows": 8, **settings})


def test_unset_parameters_take_the_models_defaults(folder):
    with opened(folder) as llm:
        assert llm.get_default_sampling_params() == SamplingParams(max_tokens=9, temperature=0.0, top_k=3)
        assert llm.sampling_defaults == {"max_tokens": 9, "temperature": 0.0, "top_k": 3}
        free = SamplingParams(ignore_eos=True)
        greedy = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))[0].tokens
        assert llm.generate(PROMPT, free)[0].tokens == greedy and len(greedy) == 9
        assert tuple(t for delta in llm.stream(PROMPT[0], free) for t in delta.tokens) == greedy
        assert llm.generate(PROMPT)[0].tokens == greedy[: len(llm.generate(PROMPT)[0].tokens)]
        assert len(llm.generate(PROMPT, free.updated(max_tokens=4))[0].tokens) == 4


def test_the_modelfiles_parameters_come_first_and_its_num_ctx_is_the_context(folder):
    (folder / FILES["params"]).write_text(json.dumps({"num_predict": 5, "num_ctx": 64}))
    with opened(folder) as llm:
        assert llm.get_default_sampling_params() == SamplingParams(max_tokens=5, temperature=0.0, top_k=3)
        assert llm.client.ready.max_context == 64
        with pytest.raises(ContextTooLong, match=r"70 tokens.*64"):
            llm.generate([[5] * 70])
        answer = llm.generate(PROMPT, SamplingParams(max_tokens=None, ignore_eos=True))[0]
        assert len(answer.tokens) + 3 == 64
    with opened(folder, max_context=96) as llm:
        assert llm.client.ready.max_context == 96


def test_the_models_own_defaults_can_be_switched_off(folder):
    with opened(folder, sampling_defaults="none") as llm:
        assert llm.get_default_sampling_params() == SamplingParams()
