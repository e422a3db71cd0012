"""Whoever opens a model finds the preset that lies beside its weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.engine.text_side import TextSide
from quire.text.errors import BrokenPreset, BrokenTemplate
from quire.text.preset import FILES
from quire.weights.checkpoint import open_checkpoint

pytestmark = pytest.mark.pure

CHATML = "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n"
QUESTION = [{"role": "user", "content": "Hi"}]
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.fixture
def folder(tmp_path: Path, model_file: Path) -> Path:
    (tmp_path / "model.gguf").symlink_to(model_file)
    return tmp_path


def opened(folder: Path, **said: str) -> TextSide:
    for role, text in said.items():
        (folder / FILES[role]).write_text(text)
    return TextSide.of(open_checkpoint(folder / "model.gguf"))


def test_a_presets_system_prompt_and_messages_come_first_with_the_files_template(folder):
    plain = opened(folder)
    side = opened(folder, system="Be brief.", messages='[{"role": "user", "content": "Ho"}]')
    explicit = [SYSTEM, {"role": "user", "content": "Ho"}, *QUESTION]
    assert side.encode_chat(QUESTION) == plain.encode_chat(explicit) != plain.encode_chat(QUESTION)
    own = [{"role": "system", "content": "Be long."}, *QUESTION]
    assert side.encode_chat(own) == plain.encode_chat([own[0], explicit[1], *QUESTION])


def test_a_presets_template_replaces_the_files_template(folder):
    plain = opened(folder)
    side = opened(folder, template=CHATML)
    assert not side.template.is_default and side.template.sources == {"default": CHATML}
    assert side.encode_chat([SYSTEM, *QUESTION]) == plain.encode_chat([SYSTEM, *QUESTION])


def test_the_tokenizer_adds_the_start_token_that_go_templates_leave_out(folder):
    side = opened(folder, template=CHATML)
    assert side.tokenizer is not None
    plain = side.encode_chat(QUESTION)
    side.tokenizer.prefix = (0,)
    assert side.encode_chat(QUESTION) == (0, *plain)


def test_a_broken_preset_is_an_error_when_the_model_is_opened(folder):
    with pytest.raises(BrokenTemplate, match="line 1"):
        opened(folder, template="{{ if }}")
    (folder / FILES["template"]).unlink()
    with pytest.raises(BrokenPreset, match="LoRA"):
        opened(folder, adapter="weights")
