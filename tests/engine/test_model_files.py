"""The text side of a checkpoint folder: the prompts of `transformers` on the same files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Native
from tokenizers import processors

from quire.engine.model_files import read_model_text
from quire.weights.checkpoint import open_checkpoint

pytestmark = pytest.mark.pure

TALK = [{"role": "user", "content": "Hi!"}]
TOOLS = [{"type": "function", "function": {"name": "run", "description": "", "parameters": {"type": "object"}}}]
DEFAULT = "{{ bos_token }}<|turn|>{{ messages[-1].content }}{{ eos_token }}{{ '<|answer|>' if add_generation_prompt }}"
TOOL_USE = "<|im_start|>{{ tools[0].function.name }}{{ pad_token }}{{ image_token }}<|answer|>"
CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|im_start|>",
    "eos_token": "~",  # of the model's vocabulary, and not among the file's added tokens
    "pad_token": "<|pad|>",
    "added_tokens_decoder": {"131": {"content": "<|turn|>", "special": True}, "132": {"content": "<|answer|>"}},
    "extra_special_tokens": {"image_token": "<|image|>"},
}


@pytest.fixture
def folder(toy_folder: Path, tmp_path: Path) -> Path:
    """The toy with a post-processor, tokens that only the configuration has, and two templates."""
    shutil.copytree(toy_folder, tmp_path, dirs_exist_ok=True)
    native = Native.from_file(str(tmp_path / "tokenizer.json"))
    begin = native.token_to_id("<|im_start|>")
    single = processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", begin)])
    native.post_processor = processors.Sequence([processors.ByteLevel(), single])
    native.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "chat_template.jinja").write_text(DEFAULT)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(TOOL_USE)
    return tmp_path


def test_prompts_and_conversations_are_tokenized_as_by_transformers(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model_text, oracle = read_model_text(open_checkpoint(folder)), transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("Hi there.", "", "  a\n"):
        assert list(model_text.encode(text)) == oracle(text).input_ids
        assert list(model_text.encode(text, framed=False)) == oracle(text, add_special_tokens=False).input_ids
    for tools in (None, TOOLS):
        expected = oracle.apply_chat_template(TALK, tools=tools, add_generation_prompt=True, return_dict=False)
        assert list(model_text.encode_rendered(model_text.template.render(TALK, tools=tools))) == expected
    end = oracle.eos_token_id
    assert end in model_text.eos_ids and model_text.tokenizer is not None and end in model_text.tokenizer.special_ids
    tokens = [*oracle("ok", add_special_tokens=False).input_ids, end]
    assert model_text.tokenizer.decode(tokens) == oracle.decode(tokens, skip_special_tokens=True) == "ok"


def test_a_bpe_that_drops_merges_at_random_while_it_is_trained_encodes_always_alike(folder: Path) -> None:
    document = json.loads((folder / "tokenizer.json").read_text())
    document["model"] |= {"dropout": 0.5, "merges": [["a", "b"]]}
    document["model"]["vocab"] |= {"ab": 128}
    document["added_tokens"] = []
    document["post_processor"] = None
    (folder / "tokenizer.json").write_text(json.dumps(document))
    model_text = read_model_text(open_checkpoint(folder))
    assert {model_text.encode("ab") for _ in range(20)} == {(128,)}
