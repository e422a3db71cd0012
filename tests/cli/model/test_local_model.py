"""A local model's reasoning is split from its text, whether or not the marks are special tokens."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from quire.cli.model.answer_options import AnswerOptions, check_think
from quire.cli.model.local_model import LocalModel
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
    """Return the reasoning and the text of these tokens. The engine's own text omits special tokens."""

    def stream(prompt, sampling, *, constraint, chat_template_kwargs):
        for index, token in enumerate(tokens):
            is_last = index == len(tokens) - 1
            text = "" if token in special else WORDS[token]
            yield Delta(text, (token,), (), FinishReason.STOP if is_last else None, USAGE if is_last else None)

    source = "{{ messages }}[THINK] [/THINK]"
    template = SimpleNamespace(sources={"default": source}, render=lambda messages, **variables: f"hi{prompt_end}")
    llm = SimpleNamespace(stream=stream, template=template, tokenizer=Tokenizer(frozenset(special)))
    parts = list(LocalModel(llm).stream([{"role": "user", "content": "hi"}], SamplingParams(), AnswerOptions()))
    assert parts[-1].usage == USAGE
    return "".join(part.reasoning for part in parts), "".join(part.text for part in parts)


@pytest.mark.parametrize("special", [set(), {1, 2}])
def test_reasoning_between_marks_is_split_off(special):
    assert answer([1, 3, 4, 2, 5], special) == ("why not", "yes")
    assert answer([3, 4, 2, 5], special, prompt_end="[THINK]") == ("why not", "yes")
    assert answer([5, 4], special) == ("", "yes not")


@pytest.mark.parametrize(
    "think, source, error",
    [
        ("high", "{{ messages }}{{ reasoning_effort }}", None),
        (True, "{{ messages }}{{ reasoning_effort }}", None),
        (False, "{% if true %}{{ reasoning_effort }}{% endif %}", "Use --think low"),
        (True, "{{ messages }}<think></think>", None),
        (False, "{{ messages }}<think></think>", "always thinks"),
        (False, "{{ messages }}", None),
        (None, "", None),
    ],
)
def test_think_is_refused_if_the_template_ignores_it(think, source, error):
    sources = {"default": source + "{% if true %}{% endif %}"}
    if error is None:
        check_think(think, sources)
    else:
        with pytest.raises(InvalidRequest, match=error):
            check_think(think, sources)
