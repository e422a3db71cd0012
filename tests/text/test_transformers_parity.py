"""Made-up checkpoints of many kinds: the ids and the text of `AutoTokenizer` on the same files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from quire.text.declared_tokens import NAMES
from quire.text.template import ChatTemplate
from quire.text.tokenizer import Tokenizer
from tests.text.made_up_tokenizers import BESIDE, MARKED, MODELS, TEXTS, frames, save, with_added

pytestmark = pytest.mark.pure

transformers = pytest.importorskip("transformers")
FRAMES = tuple(frames(1, 2))
SHOWS_NAMES = "".join(
    f"{{% if {name} is defined %}}[{name}={{{{ {name} }}}}]{{% endif %}}"
    for name in (*NAMES, "image_token", "boi_token")
)


def oracle_of(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


def compare(folder: Path) -> None:
    ours, theirs = Tokenizer.from_folder(folder), oracle_of(folder)
    assert ours.num_tokens == len(theirs)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text).input_ids, text
        assert ours.encode(text, add_bos=False, add_eos=False) == theirs(text, add_special_tokens=False).input_ids
    for text in [*TEXTS, *MARKED]:
        chat = ours.encode(text, special=True, add_bos=False, add_eos=False)
        assert chat == theirs(text, add_special_tokens=False).input_ids, text
    draws = random.Random(7)
    inked = [i for i in range(ours.num_tokens) if not theirs.convert_ids_to_tokens(i).startswith("<0x")]
    for _ in range(20):
        ids = draws.choices(inked, k=6)
        for skip in (True, False):
            assert ours.decode(ids, skip_special=skip) == theirs.decode(ids, skip_special_tokens=skip), ids
    assert ours.eos_id == theirs.eos_token_id and ours.bos_id == theirs.bos_token_id
    shown = theirs.apply_chat_template([{"role": "user", "content": "a"}], chat_template=SHOWS_NAMES, tokenize=False)
    assert ChatTemplate(SHOWS_NAMES, ours.named_tokens).render([{"role": "user", "content": "a"}]) == shown


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("model", MODELS)
def test_declared_tokens_are_those_of_transformers(model: str, beside: str, tmp_path: Path) -> None:
    compare(save(tmp_path, MODELS[model](), BESIDE[beside]))


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("model", ["byte level", "marked", "unigram"])
def test_declared_tokens_join_those_of_the_file(model: str, beside: str, tmp_path: Path) -> None:
    compare(save(tmp_path, with_added(MODELS[model]()), BESIDE[beside]))


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("model", MODELS)
def test_the_post_processor_frames_a_prompt(model: str, frame: str, tmp_path: Path) -> None:
    native = with_added(MODELS[model]())
    native.post_processor = frames(native.token_to_id("<s>"), native.token_to_id("</s>"))[frame]
    for beside in ("nothing", "named tokens and flags", "flags that say no"):
        compare(save(tmp_path, native, BESIDE[beside]))


@pytest.mark.parametrize("model_type", ["llama", "mistral"])
@pytest.mark.parametrize("more", [{}, {"legacy": True}, {"legacy": False}, {"add_prefix_space": False}], ids=str)
@pytest.mark.parametrize("model", ["marked", "byte level"])
def test_a_llama_tokenizer_has_its_own_way_with_spaces(
    model: str, more: dict[str, Any], model_type: str, tmp_path: Path
) -> None:
    native = MODELS[model]()
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", **more}
    compare(save(tmp_path, native, {"tokenizer_config": config}, model_type))
