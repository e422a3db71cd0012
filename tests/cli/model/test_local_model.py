"""A model in this process, as `quire run` uses it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quire.cli.model.answer_options import AnswerOptions, check_think
from quire.cli.model.chat_model import AnswerPart
from quire.cli.model.local_model import LocalModel
from quire.types.answer import Delta, Usage
from quire.types.errors import InvalidRequest
from quire.types.request import FinishReason, SamplingParams

pytestmark = pytest.mark.pure

USAGE = Usage(1, 0, 5, 0.1, 0.2)


def test_deltas_become_pieces_of_thought_and_text():
    given = []

    def stream(*arguments, **more):
        given.append((arguments, more))
        yield Delta("", (1, 3), reasoning="why")
        yield Delta("yes", (2, 5), (), FinishReason.STOP, USAGE)

    options = AnswerOptions(think=True)
    model = LocalModel(SimpleNamespace(stream=stream))
    assert list(model.stream("hi", SamplingParams(), options)) == [AnswerPart("", "why"), AnswerPart("yes", "", USAGE)]
    variables = {"enable_thinking": True, "thinking": True}
    assert given == [(("hi", SamplingParams()), {"constraint": None, "chat_template_kwargs": variables})]


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
