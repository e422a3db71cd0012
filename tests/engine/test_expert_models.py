"""Models with experts or latent attention, from files of transformers to tokens, on the native device."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.engine.llm import LLM
from quire.types.request import SamplingParams
from tests.devices.cpu.programs import HAS_NATIVE
from tests.engine.spelled import save_spelled
from tests.models.toys import make_toy, some_tokens

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")]

NUM_NEW = 24


@pytest.mark.parametrize("case", ["qwen3_moe", "gpt_oss", "deepseek_v3"])
def test_many_at_once_generate_what_transformers_does_and_hits_change_nothing(case: str, tmp_path: Path):
    toy = make_toy(case)
    folder = save_spelled(toy.torch_model, tmp_path)
    texts = [some_tokens(length) for length in (5, 40, 70, 71)]
    expected = [toy.expected_greedy(text, NUM_NEW) for text in texts]
    sampling = SamplingParams(max_tokens=NUM_NEW, temperature=0, ignore_eos=True)
    with LLM(folder, device="cpu", num_blocks=120, max_rows=8, max_step_tokens=48, kv_dtype="f32") as llm:
        for _ in range(2):  # the second time from the prefix cache
            found = llm.generate([list(text) for text in texts], sampling)
            assert [list(each.outputs[0].token_ids) for each in found] == expected
