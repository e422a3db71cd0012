"""A request that no engine could serve is refused by its constructor, and the message names the field."""

import pytest

from quire.types.errors import InvalidRequest
from quire.types.request import Constraint, ConstraintKind, GenerateRequest, SamplingParams

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    "field, value",
    [
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("n", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -2),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 2.0),
        ("typical_p", 0.0),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 5e-324),
        ("repetition_penalty", 1e300),
        ("presence_penalty", 3.0),
        ("frequency_penalty", -3.0),
        ("allowed_token_ids", ()),
        ("logprobs", -1),
        ("prompt_logprobs", -1),
    ],
)
def test_an_impossible_sampling_parameter_is_refused_by_name(field, value):
    with pytest.raises(InvalidRequest, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field


def test_min_tokens_cannot_exceed_max_tokens():
    SamplingParams(min_tokens=5)
    with pytest.raises(InvalidRequest, match="min_tokens"):
        SamplingParams(max_tokens=4, min_tokens=5)


@pytest.mark.parametrize("prompt", [(), (-1,), (1 << 32,)])
def test_a_prompt_without_tokens_or_with_impossible_ones_is_refused(prompt):
    with pytest.raises(InvalidRequest, match="prompt"):
        GenerateRequest("a", prompt)


def test_a_weight_must_be_positive():
    with pytest.raises(InvalidRequest, match="weight"):
        GenerateRequest("a", (1,), weight=0.0)


@pytest.mark.parametrize("kind", ["choice", "json_schema", "lark", "ebnf"])
def test_a_constraint_without_content_is_refused(kind):
    with pytest.raises(InvalidRequest, match=kind) as caught:
        Constraint(ConstraintKind(kind))
    assert caught.value.field == "constraint"


@pytest.mark.parametrize("arguments", [("poem",), (None,), ("regex", 5), ("json_schema", {"type": "object"})])
def test_a_constraint_of_another_kind_or_without_text_is_refused(arguments):
    with pytest.raises(InvalidRequest, match="constraint"):
        Constraint(*arguments)


def test_one_string_is_one_choice_and_a_kind_may_be_a_string():
    assert Constraint("choice", choices="yes").choices == ("yes",)
    assert Constraint("choice", choices=["yes", "no"]) == Constraint(ConstraintKind.CHOICE, choices=("yes", "no"))
    for invalid in ([""], [5], 5):
        with pytest.raises(InvalidRequest, match="choices"):
            Constraint("choice", choices=invalid)


def test_a_request_with_a_constraint_is_constrained_and_its_samples_have_ids():
    assert not GenerateRequest("a", (1,)).is_constrained
    request = GenerateRequest("a", (1,), SamplingParams(n=2), constraint=Constraint(ConstraintKind.JSON))
    assert request.is_constrained and [request.sample_id(sample) for sample in (0, 1)] == ["a#0", "a#1"]
    assert GenerateRequest("a", (1,)).sample_id(0) == "a"
    assert Constraint(ConstraintKind.CHOICE, choices=("é", "b")).num_bytes == 3
