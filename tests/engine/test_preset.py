"""Whoever opens a model finds the preset that lies beside its weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.engine.model_files import read_model_text
from quire.text.errors import BrokenPreset, BrokenTemplate
from quire.text.model_text import ModelText
from quire.text.preset import FILES
from quire.text.prompts import encode_prompts
from quire.types.chat import ChatRequest
from quire.types.message import Message
from quire.weights.checkpoint import open_checkpoint

pytestmark = pytest.mark.pure

CHATML = "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n"
QUESTION = [Message("user", "Hi")]
SYSTEM = Message("system", "Be brief.")


@pytest.fixture
def folder(tmp_path: Path, model_file: Path) -> Path:
    (tmp_path / "model.gguf").symlink_to(model_file)
    return tmp_path


def opened(folder: Path, **said: str) -> ModelText:
    for role, text in said.items():
        (folder / FILES[role]).write_text(text)
    return read_model_text(open_checkpoint(folder / "model.gguf"))


def encoded(model_text: ModelText, messages: list[Message]) -> tuple[int, ...]:
    return encode_prompts(ChatRequest("m", tuple(messages)), model_text)[0].tokens


def test_a_presets_system_prompt_and_messages_come_first_with_the_files_template(folder):
    plain = opened(folder)
    model_text = opened(folder, system="Be brief.", messages='[{"role": "user", "content": "Ho"}]')
    explicit = [SYSTEM, Message("user", "Ho"), *QUESTION]
    assert encoded(model_text, QUESTION) == encoded(plain, explicit) != encoded(plain, QUESTION)
    own = [Message("system", "Be long."), *QUESTION]
    assert encoded(model_text, own) == encoded(plain, [own[0], explicit[1], *QUESTION])


def test_a_presets_template_replaces_the_files_template(folder):
    plain = opened(folder)
    model_text = opened(folder, template=CHATML)
    assert not model_text.template.is_default and model_text.template.sources == {"default": CHATML}
    assert encoded(model_text, [SYSTEM, *QUESTION]) == encoded(plain, [SYSTEM, *QUESTION])


def test_the_tokenizer_adds_the_start_token_that_go_templates_leave_out(folder):
    model_text = opened(folder, template=CHATML)
    assert model_text.tokenizer is not None
    plain = encoded(model_text, QUESTION)
    model_text.tokenizer.prefix = (0,)
    assert encoded(model_text, QUESTION) == (0, *plain)


def test_an_invalid_preset_is_an_error_when_the_model_is_opened(folder):
    with pytest.raises(BrokenTemplate, match="line 1"):
        opened(folder, template="{{ if }}")
    (folder / FILES["template"]).unlink()
    with pytest.raises(BrokenPreset, match="LoRA"):
        opened(folder, adapter="weights")
