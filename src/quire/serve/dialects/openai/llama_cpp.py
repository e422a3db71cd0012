"""Fields of llama.cpp's server: those that are supported, and those that are refused unless off.

Some fields only tune a method that another field enables. If that field is refused unless off, they change nothing and
may have any value.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quire.serve.dialects.body import Refusal
from quire.serve.dialects.openai.fields import CountOrZero, OpenAIFields
from quire.types.errors import InvalidRequest

Factor = Annotated[float, Meta(ge=1e-6, le=1e6)]
PENALTIES = {"repeat_penalty": 1.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


class LlamaCppFields(OpenAIFields, kw_only=True):
    """Fields of chat completions and completions."""

    repeat_penalty: Factor | None = None  # the same as repetition_penalty
    repeat_last_n: Annotated[int, Meta(ge=-1, lt=1 << 31)] | None = None  # -1: penalties look at the whole text
    n_predict: Annotated[int, Meta(ge=-2, lt=1 << 31)] | None = None  # the same as max_tokens
    n_probs: CountOrZero | None = None  # the same as top_logprobs, or logprobs of completions

    # Which tokens to drop when the context is full: none ever are.
    n_keep: Annotated[int, Meta(ge=-1)] | None = None
    n_discard: CountOrZero | None = None

    # Of methods that REFUSED has.
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    dynatemp_exponent: float | None = None
    xtc_threshold: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None


ORDER = ["penalties", "temperature", "min_p", "top_k", "typ_p", "top_p"]  # in which the sampler works
_OTHERS = "choose among tokens with temperature, top_k, top_p, min_p and typical_p."
REFUSED = {
    "mirostat": Refusal(_OTHERS, (0,)),
    "dynatemp_range": Refusal("the temperature stays the same; see temperature.", (0,)),
    "xtc_probability": Refusal(_OTHERS, (0,)),
    "dry_multiplier": Refusal("see repetition_penalty, frequency_penalty and presence_penalty.", (0,)),
    "top_n_sigma": Refusal(_OTHERS, (-1, 0)),
    "tfs_z": Refusal(_OTHERS, (1,)),
    "min_keep": Refusal("top_p, min_p and typical_p always keep the likeliest token, and no more.", (0, 1)),
    "samplers": Refusal(f"the order is always {', '.join(ORDER)}.", (ORDER,)),
    "penalize_nl": Refusal("a line break is a token like any other.", (True,)),
    "n_indent": Refusal("see grammar.", (0,)),
    "t_max_predict_ms": Refusal("see max_tokens, and timeout for the whole request.", (0,)),
    "t_max_prompt_ms": Refusal("see timeout for the whole request.", (0, -1)),
    "id_slot": Refusal(
        "there are no slots: any request finds what is cached; see session_id.", (-1,), is_ignorable=True
    ),
    "slot_id": Refusal(
        "there are no slots: any request finds what is cached; see session_id.", (-1,), is_ignorable=True
    ),
    "lora": Refusal("there are no adapters.", ([],)),
    "image_data": Refusal("only text is taken.", ([],)),
    "return_tokens": Refusal("see return_token_ids.", (False,)),
    "timings_per_token": Refusal("see the header server-timing, and usage.", (False,)),
    "return_progress": Refusal("a stream begins with the first token.", (False,)),
    "post_sampling_probs": Refusal("logprobs are those of the model's own distribution.", (False,)),
    "response_fields": Refusal("an answer has all of its fields.", ([],)),
    "reasoning_format": Refusal("thoughts are always apart, in reasoning_content.", ("auto", "deepseek")),
    "reasoning_in_content": Refusal("thoughts are always apart, in reasoning_content.", (False,)),
    "reasoning_budget": Refusal("see reasoning_effort and max_tokens.", (-1,)),
    "thinking_forced_open": Refusal("the model's template says whether an answer begins with thoughts.", (False,)),
    "parse_tool_calls": Refusal("calls are always parsed; to have none, give no tools.", (True,)),
}


def agreed_value(one: tuple[str, Any], other: tuple[str, Any]) -> Any:
    """The value of two fields with one meaning. Refuses two values that differ."""
    if one[1] is not None and other[1] is not None and one[1] != other[1]:
        raise InvalidRequest(f"{one[0]} and {other[0]} differ: give one of them.", field=other[0])
    return other[1] if one[1] is None else one[1]


def repetition_penalty_of(given: LlamaCppFields) -> float | None:
    """The repetition penalty under either name. It covers the whole text, so no other window is supported."""
    if given.repeat_last_n not in (None, -1):
        strong = next((n for n, off in PENALTIES.items() if getattr(given, n) not in (None, off)), None)
        if strong is not None:
            public = f"repeat_last_n is {given.repeat_last_n}, and {strong} looks at the whole text: give -1."
            raise InvalidRequest(public, field="repeat_last_n")
    penalty: float | None = agreed_value(
        ("repetition_penalty", given.repetition_penalty), ("repeat_penalty", given.repeat_penalty)
    )
    return penalty
