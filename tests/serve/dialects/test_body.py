"""Bodies are read into shapes, and what is wrong is said in a sentence with the path of the field."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct

from quire.serve.dialects import body
from quire.serve.dialects.body import DOTS, Refusal, Schemas, convert_value, ignore_unknown_fields, read_body, schema_of
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure


class Leaf(Struct, forbid_unknown_fields=True):
    """Inside."""

    colour: Literal["red", "blue"]
    size: Annotated[int, Meta(ge=1, le=9)] | None = None


class Tree(Struct, kw_only=True):
    """A body."""

    leaves: list[Leaf]
    name: str | None = None
    weights: dict[int, float] | None = None
    anything: Any = None


REFUSED = {"old": Refusal("use name.", (False, ["a"]))}


def tree(**fields: Any) -> Tree:
    return read_body(json.dumps({"leaves": [], **fields}).encode(), Tree, REFUSED)


@pytest.mark.parametrize(
    "fields, field, public",
    [
        ({"leaves": 1}, "leaves", "leaves must be a list, not an integer."),
        ({"leaves": [{}]}, "leaves[0].colour", "Missing required parameter: leaves[0].colour"),
        ({"leaves": [{"colour": "red"}, {"colour": "green"}]}, "leaves[1].colour", None),
        ({"leaves": [{"colour": "red", "size": 10}]}, "leaves[0].size", "leaves[0].size must be an integer <= 9."),
        ({"leaves": [{"colour": "red", "x": 1}]}, "leaves[0].x", "Unrecognized request argument supplied: leaves[0].x"),
        ({"name": []}, "name", "name must be a string or null, not a list."),
        ({"weights": {"a": 1}}, "weights", "A name in weights must be an integer, not a string."),
        ({"weights": {"1": True}}, "weights[...]", "weights[...] must be a number, not a boolean."),
        ({"new": 1}, "new", "Unrecognized request argument supplied: new"),
        ({"old": True}, "old", "old is not supported: use name."),
    ],
)
def test_what_is_wrong_is_said_with_its_path(fields, field, public):
    with pytest.raises(InvalidRequest) as caught:
        tree(**fields)
    assert caught.value.field == field
    assert caught.value.public == (public or "leaves[1].colour is 'green'; it must be one of 'blue', 'red'.")


def test_a_refused_name_may_have_a_harmless_value():
    assert tree(old=False) == tree(old=["a"]) == tree(old=None) == tree()
    with pytest.raises(InvalidRequest, match="old is not supported"):
        tree(old=0)


def test_a_value_out_of_a_body_is_shaped_under_its_own_path():
    assert convert_value({"colour": "red"}, Leaf, "here") == Leaf("red")
    with pytest.raises(InvalidRequest, match=r"here\[2\].colour is 'x'; it must be one of 'blue', 'red'"):
        convert_value({"colour": "x"}, Leaf, "here[2]")
    with pytest.raises(InvalidRequest, match=r"here must be an object, not a string"):
        convert_value("x", Leaf, "here")


def test_the_schema_is_in_one_piece_and_says_what_is_refused():
    schema = Schemas({"/x": (Tree, REFUSED)})["/x"]
    assert schema == schema_of(Tree, REFUSED)
    assert "$ref" not in json.dumps(schema)
    assert isinstance(schema, dict) and schema["additionalProperties"] is False and schema["required"] == ["leaves"]
    assert schema["properties"]["old"] == {"enum": [None, False, ["a"]]}
    assert schema["properties"]["leaves"]["items"]["properties"]["colour"] == {"enum": ["blue", "red"]}


class Twig(Struct, tag_field="type", tag="twig", forbid_unknown_fields=True):
    size: int


class Fork(Struct, tag_field="type", tag="fork", forbid_unknown_fields=True):
    weights: dict[str, float]


class Branch(Struct, forbid_unknown_fields=True):
    name: str
    parts: list[Twig | Fork] = []


@pytest.mark.parametrize(
    "body, field, said",
    [
        (b"[]", None, "The body must be an object, not a list."),
        (b"{}", "name", "name: Field required"),
        (b'{"name": "a", "x": 1}', "x", "x: Extra inputs are not permitted"),
        (b'{"name": 5}', "name", "name must be a string, not an integer."),
        (b'{"name": "a", "parts": [{"type": "twig"}]}', "parts.0.size", "parts.0.size: Field required"),
        (
            b'{"name": "a", "parts": [{"type": "leaf"}]}',
            "parts.0.type",
            "parts.0.type is 'leaf'; it must be one of 'twig', 'fork'.",
        ),
        (
            b'{"name": "a", "parts": [{"type": "twig", "size": 1}, {"type": "fork", "weights": {"a": "b"}}]}',
            "parts.1.weights.*",
            "parts.1.weights.* must be a number, not a string.",
        ),
        (b'{"name": "a", "parts": [{"type": "twig", "size": 1, "`x`": 2}]}', "parts.0.`x`", "Extra inputs"),
    ],
)
def test_a_dialect_may_write_places_with_dots(body: bytes, field: str | None, said: str):
    with pytest.raises(InvalidRequest) as caught:
        read_body(body, Branch, spelling=DOTS)
    assert caught.value.field == field and said in caught.value.public


def test_a_good_body_has_its_shape():
    assert read_body(b'{"name": "a", "parts": [{"type": "twig", "size": 1}]}', Branch) == Branch("a", [Twig(1)])


def test_the_schema_of_a_union_has_no_references():
    schema = schema_of(Branch)
    twig, fork = schema["properties"]["parts"]["items"]["anyOf"]
    assert twig["properties"]["type"] == {"enum": ["twig"]} and fork["required"] == ["type", "weights"]
    assert schema["additionalProperties"] is False and "$" not in str(schema)


class Inner(Struct, forbid_unknown_fields=True):
    a: int = 0


class Outer(Struct):
    many: list[Inner] = []
    one: Inner | None = None


REFUSED_HERE = {"kept": Refusal("it changes the answer."), "store": Refusal("nothing is.", (False,), is_ignorable=True)}
MORE = b'{"many": [{"a": 1, "x": 2}, {"a": 3, "y": 4}], "one": {"z": [5]}, "provider": {}, "store": true}'


def test_unknown_fields_are_dropped_at_every_level_if_that_is_asked_for():
    with pytest.raises(InvalidRequest):
        read_body(MORE, Outer, REFUSED_HERE)
    with ignore_unknown_fields(True):
        assert read_body(MORE, Outer, REFUSED_HERE) == Outer([Inner(1), Inner(3)], Inner())
    with pytest.raises(InvalidRequest):  # until the end of the block
        read_body(MORE, Outer, REFUSED_HERE)


def test_what_is_known_and_wrong_is_refused_all_the_same():
    with ignore_unknown_fields(True):
        with pytest.raises(InvalidRequest, match="kept is not supported"):
            read_body(b'{"kept": 1}', Outer, REFUSED_HERE)
        with pytest.raises(InvalidRequest, match="must be an integer"):
            read_body(b'{"many": [{"a": "x", "y": 1}]}', Outer, REFUSED_HERE)


def test_a_name_that_is_ignored_is_logged_once(caplog):
    body._log_ignored.cache_clear()
    with ignore_unknown_fields(True):
        for _ in range(3):
            read_body(b'{"provider": 1, "my-secret 1": 2}', Outer, {})
    assert [record.args for record in caplog.records] == [("provider",), ("…",)]
