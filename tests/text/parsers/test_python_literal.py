"""Python's own parser is the oracle."""

from __future__ import annotations

import ast
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.text.parsers.python_literal import literal_as_json

pytestmark = pytest.mark.pure

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)


@given(VALUES)
def test_a_literal_is_read_as_python_and_json_write_it(value: object) -> None:
    assert json.loads(literal_as_json(repr(value))) == ast.literal_eval(repr(value)) == value
    assert json.loads(literal_as_json(json.dumps(value, ensure_ascii=False))) == value


@pytest.mark.parametrize(
    "text, value",
    [
        ("(1, 2,)", [1, 2]),
        (" { 'a' : [ ] , } ", {"a": []}),
        ("1_000", 1000),
        (".5", 0.5),
        ("+1", 1),
        (r"'\d \'x\' \x41 \u00e9'", r"\d 'x' A é"),
        ("'a\\\nb'", "ab"),
        (r"'\ud800'", "\ufffd"),
    ],
)
def test_other_ways_to_write_a_literal(text: str, value: object) -> None:
    assert json.loads(literal_as_json(text)) == value


@pytest.mark.parametrize(
    "text",
    ["", "Oslo", "a b", "1 + 1", "[1 2]", "[1", "{1: 2}", "{'a'}", "'a' 'b'", "f'x'", "'open", "nan", "1e999", "-",
     "[" * 200 + "]" * 200, "print(1)"],
)  # fmt: skip
def test_what_is_no_literal_is_a_string(text: str) -> None:
    assert json.loads(literal_as_json(text)) == text
