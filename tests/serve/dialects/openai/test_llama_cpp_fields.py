"""Fields of llama.cpp's server: each is honoured, changes nothing, or is refused with its name and the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.serve.dialects.contract import RequestLimits
from quire.serve.dialects.openai.dialect import decode_chat, decode_completion
from quire.serve.dialects.openai.llama_cpp import ORDER
from quire.types.errors import InvalidRequest
from quire.types.request import SamplingParams

pytestmark = pytest.mark.pure

DECODERS = {decode_chat: {"messages": [{"role": "user", "content": "Hi"}]}, decode_completion: {"prompt": "Hi"}}
both = pytest.mark.parametrize("decode", DECODERS, ids=["chat", "completion"])


def sampling(decode: Any, **fields: Any) -> SamplingParams:
    return decode(json.dumps({**DECODERS[decode], **fields}).encode(), RequestLimits()).ask.sampling


@both
@pytest.mark.parametrize(
    "theirs, ours",
    [
        ({"n_predict": 7}, {"max_tokens": 7}),
        ({"repeat_penalty": 1.3}, {"repetition_penalty": 1.3}),
        ({"repeat_penalty": 1.3, "repeat_last_n": -1}, {"repetition_penalty": 1.3}),
        ({"typical_p": 0.5, "min_p": 0.1, "top_k": 3}, {"typical_p": 0.5, "min_p": 0.1, "top_k": 3}),
        ({"seed": -1}, {}),
        ({"max_tokens": 9, "n_predict": 9}, {"max_tokens": 9}),
    ],
)
def test_these_mean_the_same_as_ours(decode, theirs, ours):
    assert sampling(decode, **theirs) == sampling(decode, **ours)


@both
@pytest.mark.parametrize("field", ["n_predict", "max_tokens"])
def test_a_negative_limit_is_none(decode, field):
    assert sampling(decode, **{field: -1}).max_tokens is None


def test_probabilities_are_asked_for_by_their_number():
    assert sampling(decode_chat, n_probs=2) == sampling(decode_chat, logprobs=True, top_logprobs=2)
    assert sampling(decode_completion, n_probs=2) == sampling(decode_completion, logprobs=2)
    assert sampling(decode_chat, n_probs=0) == sampling(decode_chat)


@both
def test_a_bias_may_be_a_list_of_pairs(decode):
    chosen = sampling(decode, logit_bias=[[5, 1.5], [6, False], [7, -2]], bad_words=[[1, 2]])
    assert chosen.logit_bias == {5: 1.5, 7: -2.0} and chosen.bad_words == ((1, 2), (6,))


NEUTRAL = {
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ["\n", ":"],
    "top_n_sigma": -1.0,
    "typical_p": 1.0,
    "repeat_penalty": 1.0,
    "repeat_last_n": 64,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "n_probs": 0,
    "n_keep": 0,
    "n_discard": 0,
    "min_keep": 0,
    "samplers": ORDER,
    "t_max_predict_ms": 0,
    "id_slot": -1,
    "cache_prompt": True,
    "return_tokens": False,
    "timings_per_token": False,
    "post_sampling_probs": False,
    "lora": [],
    "response_fields": [],
    "reasoning_format": "auto",
    "ignore_eos": False,
    "n_indent": 0,
    "grammar": None,
    "json_schema": None,
}


@both
def test_the_defaults_of_a_client_that_sends_them_all_change_nothing(decode):
    asked, plain = (sampling(decode, **fields) for fields in (NEUTRAL, {"typical_p": 1.0}))
    assert asked == plain


@both
@pytest.mark.parametrize(
    "fields, says",
    [
        ({"mirostat": 2}, "temperature"),
        ({"dynatemp_range": 0.5}, "temperature"),
        ({"xtc_probability": 0.5}, "min_p"),
        ({"dry_multiplier": 0.8}, "repetition_penalty"),
        ({"samplers": ["top_k"]}, "order"),
        ({"min_keep": 3}, "likeliest"),
        ({"id_slot": 2}, "session_id"),
        ({"t_max_predict_ms": 100}, "max_tokens"),
        ({"return_tokens": True}, "return_token_ids"),
        ({"timings_per_token": True}, "server-timing"),
        ({"post_sampling_probs": True}, "distribution"),
        ({"lora": [{"id": 0, "scale": 1.0}]}, "adapters"),
        ({"cache_prompt": False}, "cache_salt"),
        ({"reasoning_format": "none"}, "reasoning_content"),
        ({"repeat_last_n": 64, "repeat_penalty": 1.1}, "give -1"),
        ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "differ"),
        ({"n_predict": 5, "max_tokens": 6}, "differ"),
        ({"logit_bias": [["word", 1]]}, "token id"),
        ({"logit_bias": [[5, True]]}, "false or from"),
    ],
)
def test_what_is_not_done_here_is_refused_with_the_reason(decode, fields, says):
    with pytest.raises(InvalidRequest, match=says) as refused:
        sampling(decode, **fields)
    name = (refused.value.field or "").partition("[")[0]
    assert name in fields and name in refused.value.public
