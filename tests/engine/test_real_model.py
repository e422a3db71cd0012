"""The real model behind the whole engine, by the references: slow, and the truth that a device is compared with."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.engine.llm import LLM
from quire.types.request import FinishReason, SamplingParams
from tests.runner.stand_in import InterpreterDevice

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_default_model_answers_a_question(model_file: Path) -> None:
    with LLM(model_file, device=InterpreterDevice(), num_blocks=64, max_context=512) as llm:
        question = [{"role": "user", "content": "What is the capital of France?"}]
        (completion,) = llm.chat(question, SamplingParams(temperature=0.0, max_tokens=12))
        assert "Paris" in completion.text
        assert completion.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
