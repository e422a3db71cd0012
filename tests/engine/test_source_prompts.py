"""Prompts of models with an encoder: text in, the tokens of transformers out; over HTTP the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from quire import LLM, SamplingParams
from quire.serve.dialects.openai.dialect import DIALECT
from quire.types.errors import InvalidRequest
from tests.models.sources import make_source_toy
from tests.serve.running import running

pytestmark = pytest.mark.e2e
TEXT = "translate this"
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)


def write_folder(folder: Path, name: str, **generation: Any) -> Path:
    """A toy with a vocabulary of bytes, whose texts end with the token 1."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    toy = make_source_toy(name)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[-156:]
    vocabulary = {word: at for at, word in enumerate(("<pad>", "</s>", "<unk>", "<x>", *letters))}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    folder.mkdir(exist_ok=True)
    toy.torch_model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def expected(name: str, tokens: list[int], start: list[int], count: int) -> list[int]:
    import torch

    model = make_source_toy(name).torch_model
    text = list(start)
    with torch.no_grad():
        for _ in range(count):
            logits = model(input_ids=torch.tensor([tokens]), decoder_input_ids=torch.tensor([text])).logits
            text.append(int(logits[0, -1].argmax()))
    return text[len(start) :]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("t5"), "t5-v1.1")


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, device="cpu", kv_dtype="f32", lowered_gb=0) as llm:
        yield llm


def test_the_prompt_goes_to_the_encoder(llm: LLM):
    tokens = [*llm.get_tokenizer().encode(TEXT, add_bos=False, add_eos=False), 1]
    right = expected("t5-v1.1", tokens, [0], 12)
    by_text, by_tokens = llm.generate([TEXT, tokens], GREEDY)
    assert list(by_text.tokens) == list(by_tokens.tokens) == right
    assert by_text.usage.prompt == len(tokens) + 1
    assert llm.get_default_sampling_params().temperature == 0.0


def test_what_such_a_model_cannot_do_is_refused(llm: LLM):
    with pytest.raises(InvalidRequest, match="no chat template"):
        llm.chat("hello")
    with pytest.raises(InvalidRequest, match="prompt_logprobs"):
        llm.generate(TEXT, SamplingParams(prompt_logprobs=1))
    with pytest.raises(InvalidRequest, match="3000 tokens, 2048 is the limit"):
        llm.generate([[5] * 3000], GREEDY)
    with pytest.raises(InvalidRequest, match="cannot transcribe"):
        llm.transcribe(b"")


def test_a_forced_first_token_and_bad_words_are_honoured(tmp_path: Path):
    first = expected("bart", [5, 6, 2], [2, 9], 1)[0]
    folder = write_folder(tmp_path / "bart", "bart", forced_bos_token_id=9, bad_words_ids=[[first]])
    with LLM(folder, device="cpu", kv_dtype="f32", lowered_gb=0) as llm:
        (found,) = llm.generate([[5, 6, 2]], SamplingParams(max_tokens=1, ignore_eos=True))
    import torch

    with torch.no_grad():
        logits = make_source_toy("bart").torch_model(
            input_ids=torch.tensor([[5, 6, 2]]), decoder_input_ids=torch.tensor([[2, 9]])
        ).logits[0, -1]  # fmt: skip
    logits[first] = -torch.inf
    assert list(found.tokens) == [int(logits.argmax())]


def test_completions_over_http(folder: Path, llm: LLM):
    (right,) = llm.generate(TEXT, GREEDY)
    with running(folder, (DIALECT,), kv_dtype="f32", lowered_gb=0) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        body = {"ignore_eos": True}
        found = client.completions.create(model="toy", prompt=TEXT, max_tokens=12, extra_body=body)
        assert found.choices[0].text == right.text and found.usage.prompt_tokens == right.usage.prompt
        for change, text in (({"use_beam_search": True}, "beam"), ({"echo": True}, "echo")):
            with pytest.raises(openai.BadRequestError, match=text):
                client.completions.create(model="toy", prompt=TEXT, extra_body=change)
        with pytest.raises(openai.BadRequestError, match="no chat template"):
            client.chat.completions.create(model="toy", messages=[{"role": "user", "content": TEXT}])
