"""A text model with an encoder, over HTTP: its texts are those of transformers, and what it cannot do is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.serve.http.app import all_dialects
from tests.engine.test_sources import expected
from tests.models.sources import make_source_toy
from tests.serve.running import Running, running

pytestmark = pytest.mark.e2e
WORDS = ["<pad>", "</s>", "<unk>", *(f"▁w{number}" for number in range(157))]
TEXT = "w1 w20 w3 w150"


def write_folder(folder: Path) -> Path:
    """T5 with random weights; a word is a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.processors import TemplateProcessing

    tokenizer = Tokenizer(models.Unigram([(word, -float(index)) for index, word in enumerate(WORDS)], unk_id=2))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.add_special_tokens(WORDS[:3])
    make_source_toy("t5").torch_model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(write_folder(tmp_path_factory.mktemp("t5")), all_dialects(), max_context=64, lowered_gb=0) as made:
        yield made


def post(server: Running, path: str, **body: Any) -> Any:
    return server.http.post(path, json={"model": "toy", **body})


def test_a_text_is_that_of_transformers(server: Running):
    ids = [WORDS.index(f"▁{word}") for word in TEXT.split()] + [1]
    made = expected("t5", np.array(ids), [0], 8)
    wanted = "".join(WORDS[token].replace("▁", " ") for token in made if token > 2)  # special tokens are no text
    assert 1 not in made and len(set(made)) > 1
    for prompt in (TEXT, ids):
        answer = post(server, "/v1/completions", prompt=prompt, max_tokens=8).json()
        assert answer["choices"][0]["text"] == wanted and answer["usage"]["completion_tokens"] == 8
    assert post(server, "/tokenize", prompt=TEXT).json()["tokens"] == ids


@pytest.mark.parametrize(
    "path, body, words",
    [
        ("/v1/completions", {"prompt": "w1", "use_beam_search": True}, "there is no beam search"),
        ("/v1/completions", {"prompt": "w1", "echo": True}, "echo and return_token_ids are not"),
        ("/v1/completions", {"prompt": "w1", "return_token_ids": True}, "echo and return_token_ids are not"),
        ("/v1/completions", {"prompt": [5, 160]}, "prompt has the token 160"),
        ("/v1/completions", {"prompt": "w1 " * 500}, "send at most"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "w1"}]}, "send the text to /v1/completions"),
        ("/v1/embeddings", {"input": "w1"}, "This model cannot embed: it can generate."),
    ],
)
def test_what_it_cannot_do_is_refused(server: Running, path: str, body: dict[str, Any], words: str):
    answer = post(server, path, **body)
    assert answer.status_code == 400 and words in answer.text and "--pooling" not in answer.text
