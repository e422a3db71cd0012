"""Where a checkpoint keeps its chat templates: the files that `transformers` reads, in its order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.text.errors import BrokenTemplate
from quire.text.template import CHATML, ChatTemplate
from quire.text.template_files import template_sources
from tests.text.made_up_tokenizers import save, words

pytestmark = pytest.mark.pure

TALK = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "run", "description": "", "parameters": {}}}]
LISTED = [{"name": name, "template": f"{name} of the configuration"} for name in ("default", "tool_use", "rag")]
TEXT = "text of the configuration"
FILE, TOOL_FILE = "chat_template.jinja", "additional_chat_templates/tool_use.jinja"
LAYOUTS: list[tuple[Any, list[str]]] = [
    (TEXT, []),
    (LISTED, []),
    (TEXT, [FILE]),
    (LISTED, [FILE]),
    (None, [FILE, TOOL_FILE]),
    (LISTED, [FILE, "additional_chat_templates/rag.jinja"]),
    (TEXT, [FILE, "additional_chat_templates/default.jinja"]),
]


def checkpoint(folder: Path, declared: Any, files: list[str]) -> Path:
    config = {} if declared is None else {"chat_template": declared}
    save(folder, words(), {"tokenizer_config": config})
    for name in files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"{name} {{{{ messages[0].content }}}}")
    return folder


@pytest.mark.parametrize("declared, files", LAYOUTS)
def test_the_template_is_the_one_that_transformers_takes(declared: Any, files: list[str], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = checkpoint(tmp_path, declared, files)
    ours, theirs = ChatTemplate.from_folder(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for tools in (None, TOOLS):
        expected = theirs.apply_chat_template(TALK, tools=tools, tokenize=False, add_generation_prompt=True)
        assert ours.render(TALK, tools=tools) == expected


def test_without_a_default_file_the_configuration_s_default_serves_beside_it(tmp_path: Path) -> None:
    template = ChatTemplate.from_folder(checkpoint(tmp_path, LISTED, [TOOL_FILE]))
    assert template.render(TALK) == "default of the configuration"
    assert template.render(TALK, tools=TOOLS) == f"{TOOL_FILE} hello" and set(template.sources) == {
        "default",
        "tool_use",
    }


def test_a_template_for_a_processor_serves_where_there_is_no_other(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, None, [])
    assert ChatTemplate.from_folder(folder).sources == {"default": CHATML}
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "of a processor"}))
    assert template_sources(folder) == {"default": "of a processor"}
    assert template_sources(checkpoint(folder, TEXT, [])) == {"default": TEXT}


@pytest.mark.parametrize("declared", [7, [7], [{"name": "default"}], [{"template": "x"}], {"default": 7}])
def test_a_template_of_another_kind_is_named(declared: Any, tmp_path: Path) -> None:
    with pytest.raises(BrokenTemplate, match=r"tokenizer_config\.json"):
        template_sources(checkpoint(tmp_path, declared, []))


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (checkpoint(tmp_path, None, []) / FILE).write_bytes(b"\xff\xfe\xff")
    with pytest.raises(BrokenTemplate, match=FILE):
        template_sources(tmp_path)
