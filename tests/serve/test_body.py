"""Bodies are read into shapes, and what is wrong is said in a sentence with the path of the field."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct

from quire.serve.body import MAX_DEPTH, Refusal, Schemas, check_depth, read, schema_of, shaped, shown
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
    return read(json.dumps({"leaves": [], **fields}).encode(), Tree, REFUSED)


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


def test_a_value_out_of_a_body_is_shaped_under_its_own_path():
    assert shaped({"colour": "red"}, Leaf, "here") == Leaf("red")
    with pytest.raises(InvalidRequest, match=r"here\[2\].colour is 'x'; it must be one of 'blue', 'red'"):
        shaped({"colour": "x"}, Leaf, "here[2]")
    with pytest.raises(InvalidRequest, match=r"here must be an object, not a string"):
        shaped("x", Leaf, "here")


def test_the_schema_is_in_one_piece_and_says_what_is_refused():
    schema = Schemas({"/x": (Tree, REFUSED)})["/x"]
    assert schema == schema_of(Tree, REFUSED)
    assert "$ref" not in json.dumps(schema)
    assert isinstance(schema, dict) and schema["additionalProperties"] is False and schema["required"] == ["leaves"]
    assert schema["properties"]["old"] == {"enum": [None, False, ["a"]]}
    assert schema["properties"]["leaves"]["items"]["properties"]["colour"] == {"enum": ["blue", "red"]}


def test_depth_has_a_limit():
    deep: Any = 1
    for _ in range(MAX_DEPTH - 1):
        deep = [deep] if isinstance(deep, dict) else {"a": deep}
    check_depth(deep, "x")
    with pytest.raises(InvalidRequest, match="x is nested too deeply"):
        check_depth([[deep]], "x")


def test_what_is_quoted_is_short():
    assert shown("a") == "'a'" and len(shown("a" * 1000)) < 100
