"""`SamplingParams` accepts scalars for lists, vLLM's names and numpy's numbers, and records which were given."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest

from quire.types.defaults import SamplingDefaults
from quire.types.errors import InvalidRequest
from quire.types.request import SamplingParams

pytestmark = pytest.mark.pure

DEFAULTS = SamplingDefaults({"temperature": 0.2, "top_k": 7, "max_tokens": 33}, {})


@pytest.mark.parametrize(
    "field, given, normal",
    [
        ("stop", "city", ("city",)),
        ("stop", ["a", "b"], ("a", "b")),
        ("stop", None, ()),
        ("stop_token_ids", 5, (5,)),
        ("stop_token_ids", np.array([5, 6]), (5, 6)),
        ("allowed_token_ids", [np.int64(3)], (3,)),
        ("bad_words", [[1, 2], (3,)], ((1, 2), (3,))),
        ("logit_bias", {"5": 1, np.int32(6): np.float32(0.5)}, {5: 1.0, 6: 0.5}),
        ("logit_bias", None, {}),
        ("top_k", -1, 0),
        ("top_k", 2**31, 2**31 - 1),
        ("top_k", 2**70, 2**31 - 1),
        ("max_tokens", 2**70, 2**31 - 1),
        ("seed", 2**64 + 5, 5),
        ("seed", -1, -1),
        ("temperature", 1, 1.0),
        ("ignore_eos", np.bool_(True), True),
        ("speculate", None, "auto"),
        ("speculate", True, "auto"),
        ("speculate", "auto", "auto"),
        ("speculate", 1, "auto"),
        ("speculate", np.bool_(True), "auto"),
        ("speculate", False, "off"),
        ("speculate", "off", "off"),
        ("speculate", 0, "off"),
    ],
)
def test_a_value_is_converted_to_its_normal_form(field, given, normal):
    value = getattr(SamplingParams(**{field: given}), field)
    assert value == normal and type(value) is type(normal)


@pytest.mark.parametrize(
    "field, value",
    [
        ("temperature", "hot"),
        ("temperature", True),
        ("temperature", 10**400),
        ("top_k", 2.5),
        ("n", "2"),
        ("n", True),
        ("seed", 1.5),
        ("stop", 5),
        ("stop", [""]),
        ("stop", ["a", 5]),
        ("stop", "\ud800"),
        ("stop", b"end"),
        ("stop_token_ids", "5"),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [2**40]),
        ("allowed_token_ids", {"a": 1}),
        ("bad_words", ["word"]),
        ("bad_words", [[]]),
        ("logit_bias", [5]),
        ("logit_bias", {5: float("nan")}),
        ("logit_bias", {5: float("inf")}),
        ("logit_bias", {5: 1e7}),
        ("logit_bias", {"five": 1.0}),
        ("logit_bias", {"9" * 50: 1.0}),
        ("ignore_eos", "yes"),
        ("speculate", "on"),
        ("speculate", "OFF"),
        ("speculate", ""),
        ("speculate", 2),
        ("speculate", 1.0),
        ("speculate", ["auto"]),
        ("max_tokens", "10"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_with_its_name(field, value):
    with pytest.raises(InvalidRequest, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field and len(caught.value.public) < 300


@pytest.mark.parametrize("values", [(1,) * 22, ()])
def test_too_many_or_unknown_parameters_are_refused(values):
    with pytest.raises(InvalidRequest, match="parameter"):
        SamplingParams(*values, **({} if values else {"temprature": 1}))


def test_given_names_the_parameters_that_were_given():
    params = SamplingParams(32, temperature=1.0, stop=None, seed=None)
    assert params.given == {"max_tokens", "temperature", "seed"}  # None is not a stop string, but a valid seed
    assert params == SamplingParams(max_tokens=32)
    for same in (pickle.loads(pickle.dumps(params)), copy.deepcopy(params), copy.copy(params)):
        assert same == params and same.given == params.given
    assert params.updated(n=2).given == params.given | {"n"}
    assert replace(params, n=2).given == SamplingParams.__dataclass_fields__.keys()


def test_defaults_fill_only_what_was_not_given():
    def filled(params):
        return DEFAULTS.fill(params, params.given)

    assert filled(SamplingParams()) == SamplingParams(temperature=0.2, top_k=7, max_tokens=33)
    assert filled(SamplingParams(temperature=1.0, top_k=0, max_tokens=None)) == SamplingParams()
    assert filled(SamplingParams(min_tokens=50)).max_tokens is None  # the model's default is shorter
    assert filled(replace(SamplingParams(), n=2)) == SamplingParams(n=2)  # all count as given


@pytest.mark.parametrize(
    "given, advice",
    [
        ({"best_of": 3}, "give n"),
        ({"guided_decoding": object()}, "constraint"),
        ({"structured_outputs": {"json": {}}}, "constraint"),
        ({"skip_special_tokens": False}, "llm.tokenizer"),
        ({"logits_processors": [len]}, "logit_bias"),
    ],
)
def test_an_unsupported_parameter_of_vllm_is_refused_with_an_alternative(given, advice):
    with pytest.raises(InvalidRequest, match=advice) as caught:
        SamplingParams(**given)
    assert caught.value.field == next(iter(given))


def test_parameters_of_vllm_are_accepted_with_values_that_change_nothing():
    given = {"best_of": 1, "skip_special_tokens": True, "guided_decoding": None, "spaces_between_special_tokens": True}
    assert SamplingParams(**given) == SamplingParams()
