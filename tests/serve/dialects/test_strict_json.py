"""JSON that readers disagree about is refused, with a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from quire.serve.dialects import strict_json
from quire.serve.dialects.strict_json import MAX_DEPTH, check_depth, json_text, parse_json, quoted
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    "body, value",
    [
        (b' {"a": [1, 2.5, true, null, "\\u00e9"]} ', {"a": [1, 2.5, True, None, "é"]}),
        (b'"\\ud83d\\ude00"', "😀"),
        ('"😀"'.encode(), "😀"),
        (b'"\\\\ud800"', "\\ud800"),
        (b"1e-999", 0.0),
        (b"18446744073709551615", 2**64 - 1),
    ],
)
def test_good_json(body: bytes, value: Any):
    assert parse_json(body) == value


@pytest.mark.parametrize(
    "body, said",
    [
        (b"", "The body is empty."),
        (b"{", "Expecting property name"),
        (b'{"a": 1, "b": 2, "a": 3}', "the key 'a' is there twice"),
        (b'[{"a": {"b": 1, "b": 1}}]', "the key 'b' is there twice"),
        (b"NaN", "NaN is not a number of JSON"),
        (b"-Infinity", "-Infinity is not a number"),
        (b"1e999", "the number 1e999 is out of range"),
        (b"1" * 5000, "a number is out of range"),
        (b'"\\ud800"', "half of a surrogate pair"),
        (b'{"\\udc00": 1}', "half of a surrogate pair"),
        (b'"\xff"', "not valid UTF-8"),
        (b"[" * 10_000 + b"]" * 10_000, "nested too deeply"),
    ],
)
def test_bad_json(body: bytes, said: str):
    with pytest.raises(InvalidRequest) as raised:
        parse_json(body)
    assert said in raised.value.public


def test_depth_is_limited_where_a_value_is_passed_on():
    value: Any = 1
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    check_depth(value, "x")
    with pytest.raises(InvalidRequest, match=r"^x is nested too deeply"):
        json_text({"a": value}, "x")


def test_text_is_compact_and_keeps_the_order():
    assert json_text({"b": [1, "é"], "a": None}, "x") == '{"b":[1,"é"],"a":null}'


def test_what_is_quoted_is_short():
    assert quoted("a") == "'a'" and len(quoted("a" * 1000)) < 100


READ_ALIKE = [
    "[]",
    "[ ]",
    "[1]",
    "[1,]",
    f"[{','.join(map(str, range(-50, 20_000)))}]",
    f'[{", ".join(["7"] * 40)} , "a", 8, [{",".join(["1"] * 17)}]]',
    f"[{','.join(['7'] * 40)},]",
    f"[{','.join(['7'] * 40)}",
    f"[{','.join(['7'] * 40)},,8]",
    f"[{','.join(['7'] * 40)},8.5,-9e3,01]",
    f"[{','.join(['07'] * 40)}]",
    f"[{','.join(['- 7'] * 40)}]",
    f"[{','.join(['1' * 30] * 40)}]",
    '{"a": {"b": [1, {"a": 2}]}, "a": 3}',
    '{"a": [NaN]}',
    '{"text": "\\n\\u00e9", "more": [true, false, null, 1.5, {"x": []}]}  ',
    "{} x",
]


@pytest.mark.parametrize("text", READ_ALIKE, ids=lambda text: text[:12])
def test_both_decoders_read_the_same(text):
    def read(decoder):
        try:
            return decoder.decode(text)
        except ValueError as error:
            return str(error)

    assert read(strict_json._INTERRUPTIBLE_JSON) == read(strict_json._JSON)


def test_a_large_text_is_read_by_the_decoder_that_lets_other_threads_run(monkeypatch):
    monkeypatch.setattr(strict_json, "_JSON", None)
    assert parse_json(b'["%b"]' % (b"a" * strict_json.LARGE_TEXT)) == ["a" * strict_json.LARGE_TEXT]


@pytest.mark.parametrize("item", ["7", '{"role": "user"}', '"x"'])
def test_a_long_array_of_a_large_body_is_refused_before_anything_walks_through_it(monkeypatch, item):
    monkeypatch.setattr(strict_json, "MAX_ITEMS", 1000)
    monkeypatch.setattr(strict_json, "LARGE_TEXT", 100)
    body = f'{{"prompt": [{", ".join([item] * 1001)}]}}'.encode()
    with pytest.raises(InvalidRequest, match="more than 1,000 items"):
        strict_json.parse_json(body)
    with strict_json.allow_context(2000):
        assert len(strict_json.parse_json(body)["prompt"]) == 1001
