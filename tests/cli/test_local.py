"""Thoughts of a model in this process are split off its answer, whatever kind of tokens their marks are."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from quire.cli.form import Form, check_think
from quire.cli.local import LocalModel
from quire.types.answer import Delta, Usage
from quire.types.errors import InvalidRequest
from quire.types.request import FinishReason, SamplingParams

pytestmark = pytest.mark.pure

WORDS = {1: "[THINK]", 2: "[/THINK]", 3: "why", 4: " not", 5: "yes"}
USAGE = Usage(1, 0, 5, 0.1, 0.2)


@dataclass
class Tokenizer:
    special_ids: frozenset[int]

    def tokens_named(self, names):
        return {text: token for token, text in WORDS.items() if text in names}

    def token_bytes(self, token: int) -> bytes:
        return WORDS[token].encode()

    opening_bytes = token_bytes


def answer(tokens: list[int], special: set[int], prompt_end: str = "") -> tuple[str, str]:
    """The thought and the text that an engine's tokens become. The engine's own text leaves special tokens out."""

    def stream(prompt, sampling, *, constraint, chat_template_kwargs):
        for place, token in enumerate(tokens):
            is_last = place == len(tokens) - 1
            text = "" if token in special else WORDS[token]
            yield Delta(text, (token,), (), FinishReason.STOP if is_last else None, USAGE if is_last else None)

    source = "{{ messages }}[THINK] [/THINK]"
    template = SimpleNamespace(sources={"default": source}, render=lambda messages, **variables: f"hi{prompt_end}")
    llm = SimpleNamespace(stream=stream, template=template, tokenizer=Tokenizer(frozenset(special)))
    pieces = list(LocalModel(llm).stream([{"role": "user", "content": "hi"}], SamplingParams(), Form()))
    assert pieces[-1].usage == USAGE
    return "".join(piece.thought for piece in pieces), "".join(piece.text for piece in pieces)


@pytest.mark.parametrize("special", [set(), {1, 2}])
def test_thoughts_between_marks_are_split_off(special):
    assert answer([1, 3, 4, 2, 5], special) == ("why not", "yes")
    assert answer([3, 4, 2, 5], special, prompt_end="[THINK]") == ("why not", "yes")
    assert answer([5, 4], special) == ("", "yes not")


@pytest.mark.parametrize(
    "think, source, said",
    [
        ("high", "{{ messages }}{{ reasoning_effort }}", None),
        (True, "{{ messages }}{{ reasoning_effort }}", None),
        (False, "{% if true %}{{ reasoning_effort }}{% endif %}", "use --think low"),
        (True, "{{ messages }}<think></think>", None),
        (False, "{{ messages }}<think></think>", "always thinks"),
        (False, "{{ messages }}", None),
        (None, "", None),
    ],
)
def test_a_template_that_would_ignore_it_is_not_told_to_think(think, source, said):
    sources = {"default": source + "{% if true %}{% endif %}"}
    if said is None:
        check_think(think, sources)
    else:
        with pytest.raises(InvalidRequest, match=said):
            check_think(think, sources)
