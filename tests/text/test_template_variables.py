"""Variables that clients give to chat templates: what may be given, and that nothing but our own errors comes of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.text.go_chat import GoChatTemplate
from quire.text.sandbox import ChatEnvironment
from quire.text.template import ChatTemplate
from quire.text.template_variables import FUNCTIONS, RESERVED, check_names
from quire.types.errors import InvalidRequest, QuireError
from tests.text.test_template import ANSWER, FAMILIES, SYSTEM, TOOLS, USER, by_transformers

pytestmark = pytest.mark.pure

# A template that uses its variables in every way that can go wrong.
USES = """{{ a }}{{ a.b }}{{ a['b'] }}{{ a + 1 if b else a ~ b }}{% for x in a %}{{ loop.index }}{{ x | upper }}
{%- endfor %}{%- for x in range(3) %}{{ b * x }}{% endfor %}{{ a | tojson }}{{ a | length }}
{{- b | int + 1 }}{{ a % b }}{{ a(b) }}
{{- strftime_now(a) }}{{ a | join(b) }}{{ a[b:] }}{{ a.format(b) }}{{ a | sort }}{{ namespace(x=a).x }}{{ a ** b }}"""
PARTS = [part + "}}" for part in USES.replace("\n", "").split("}}") if "{%" not in part and part]
TEMPLATES = [ChatTemplate(source) for source in (*FAMILIES.values(), USES, *PARTS)]
GO = GoChatTemplate("{{ range .Messages }}{{ .Content }}{{ end }}{{ .Think }}{{ .ThinkLevel }}")
NAMES = (
    st.sampled_from(["a", "b", "bos_token", "documents", "enable_thinking", "loop", "caller", *RESERVED]) | st.text()
)
VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["%d", "{0}", "%99999d", "*"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
) | st.just(object())


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([*TEMPLATES, GO]), st.dictionaries(NAMES, VALUES, max_size=4), st.booleans())
def test_any_variables_are_rendered_or_refused_with_our_own_errors(
    template: Any, variables: dict[str, Any], opens: bool
) -> None:
    try:
        if opens:
            template.render_open([USER, ANSWER], tools=TOOLS, variables=variables)
        else:
            template.render([SYSTEM, USER], variables=variables)
    except QuireError as error:
        assert error.status in (400, 500)


@pytest.mark.parametrize("name", [*RESERVED, "a-b", "", "1", "a b"])
def test_a_name_that_is_taken_is_refused_by_its_field(name: str) -> None:
    with pytest.raises(InvalidRequest, match="chat_template_kwargs") as error:
        ChatTemplate("{{ a }}").render([USER], variables={name: 1})
    assert error.value.status == 400 and str(error.value.field).startswith("chat_template_kwargs")
    if name in RESERVED:
        assert error.value.field == f"chat_template_kwargs.{name}"


def test_every_function_of_the_sandbox_is_reserved() -> None:
    assert sorted(ChatEnvironment().globals) == sorted(FUNCTIONS)


def test_special_tokens_and_documents_may_be_given_as_in_transformers() -> None:
    variables = {"bos_token": "<x>", "documents": [{"title": "t", "text": "u"}], "date_string": "today"}
    source = "{{ bos_token }}{{ eos_token }}{{ documents[0].title }}{{ date_string }}"
    check_names(variables)
    found = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render([USER], variables=variables)
    assert found == by_transformers(source, [USER], **variables) == "<x></s>ttoday"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("words", ["Sunny", " Sunny. ", "So:\n\n", "a <b> {{ c }}"])
def test_a_last_message_that_goes_on_is_written_as_transformers_writes_it(family: str, words: str) -> None:
    talk = [SYSTEM, USER, {"role": "assistant", "content": words}]
    template = ChatTemplate(FAMILIES[family], {"bos_token": "<s>", "eos_token": "</s>"})
    expected = by_transformers(FAMILIES[family], talk, continue_final_message=True)
    assert template.render_open(talk) == expected


def test_a_last_message_that_the_template_leaves_out_stands_where_an_answer_begins() -> None:
    source = "{% for m in messages if m.role == 'user' %}{{ m.content }};{% endfor %}{{ '>' if add_generation_prompt }}"
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
    assert ChatTemplate(source).render_open(talk) == "Hi;>Yes"
