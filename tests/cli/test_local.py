"""A model in this process, as `quire run` uses it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quire.cli.engine import Piece
from quire.cli.form import Form, check_think
from quire.cli.local import LocalModel
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

    form = Form(think=True)
    model = LocalModel(SimpleNamespace(stream=stream))
    assert list(model.stream("hi", SamplingParams(), form)) == [Piece("", "why"), Piece("yes", "", USAGE)]
    variables = {"enable_thinking": True, "thinking": True}
    assert given == [(("hi", SamplingParams()), {"constraint": None, "chat_template_kwargs": variables})]


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
