"""The fields that chat completions, completions and responses share, and those that are refused.

OpenAI's own names come first, then those that vLLM, SGLang and TensorRT-LLM have added, then ours; llama.cpp's are in
llama_cpp.py. `null` is the same as no field. sampling.py, constraints.py and terms.py interpret them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from quire.serve.dialects.body import Refusal

TokenId = Annotated[int, Meta(ge=0, lt=1 << 32)]
Count = Annotated[int, Meta(ge=1, lt=1 << 31)]
Limit = Annotated[int, Meta(ge=-1, lt=1 << 31)]  # -1: none
CountOrZero = Annotated[int, Meta(ge=0, lt=1 << 31)]
Share = Annotated[float, Meta(gt=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
MAX_BIAS = 100
Bias = Annotated[float, Meta(ge=-MAX_BIAS, le=MAX_BIAS)]
Biases = dict[TokenId, Bias] | list[tuple[TokenId | str, float | bool]]  # llama.cpp: pairs; false: never
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
Id = Annotated[str, Meta(pattern=r"^[\x21-\x7e]{1,256}$")]
Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.:-]{1,128}$")]
Schema = str | dict[str, Any]  # a JSON schema, or the text of one
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Lifetime = Literal["5m", "30m", "1h", "12h", "24h"]


class ReasoningField(Struct, forbid_unknown_fields=True):
    """How much the model thinks. There are no summaries: the answer has the thoughts themselves."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class JsonSchema(Struct, forbid_unknown_fields=True):
    """OpenAI's wrapper of a schema. It is always enforced; `strict` closes objects that the server leaves open."""

    schema: dict[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct, forbid_unknown_fields=True):
    """OpenAI's types, llama.cpp's `schema` in json_object, and TensorRT-LLM's types json, regex and ebnf."""

    type: Literal["text", "json_object", "json_schema", "json", "regex", "ebnf"]
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None


class StructuredOutputs(Struct, forbid_unknown_fields=True):
    """vLLM's; exactly one must be given."""

    json: Schema | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class Keep(Struct, forbid_unknown_fields=True):
    """How long the cached prompt is kept, and its rank among others that are kept."""

    ttl: Seconds
    rank: Annotated[int, Meta(ge=1, le=100)] = 50


class CacheOptions(Struct, forbid_unknown_fields=True):
    """OpenAI's `prompt_cache_options`."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Lifetime | None = None


class OpenAIFields(Struct, kw_only=True):
    """The fields of all endpoints."""

    # Sampling.
    temperature: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    top_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Biases | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=1 << 31)] | None = None  # -1 and 0: off
    sampling_seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None  # SGLang
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    typical_p: Share | None = None
    repetition_penalty: Annotated[float, Meta(ge=1e-6, le=1e6)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1)] | None = None
    bad_words: list[str | list[TokenId]] | None = None

    # End of the answer, and what is returned of it.
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    min_tokens: CountOrZero | None = None
    ignore_eos: bool | None = None
    speculate: bool | str | None = None  # auto or off
    prompt_logprobs: CountOrZero | None = None
    return_token_ids: bool | None = None

    # Grammar.
    structured_outputs: StructuredOutputs | None = None  # vLLM
    guided_json: Schema | None = None  # vLLM before 0.12
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: str | None = None
    json_schema: Schema | None = None  # SGLang: a text; llama.cpp: an object
    regex: str | None = None  # SGLang
    ebnf: str | None = None  # SGLang
    grammar: str | None = None  # llama.cpp

    # Scheduling and cache.
    priority: Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)] | None = None  # vLLM's sense: lower is served first
    cache_salt: Annotated[str, Meta(max_length=1024)] | None = None
    extra_key: Annotated[str, Meta(max_length=1024)] | None = None  # SGLang: the same
    session_id: Id | None = None
    request_id: Id | None = None  # vLLM
    rid: Id | None = None  # SGLang
    timeout: Seconds | None = None
    keep: Seconds | Keep | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=1024)] | None = None
    prompt_cache_options: CacheOptions | None = None

    # For billing and audits elsewhere. Here only rules of routes read user and metadata.
    user: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "default"] | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None


_NO_BEAMS = Refusal("answers are sampled; there is no beam search.", (False,))
_THOUGHTS = Refusal("reasoning is always separated from the answer and streamed.", (True,))

REFUSED = {
    "store": Refusal("nothing is stored here; leave it out or give false.", (False,), is_ignorable=True),
    "moderation": Refusal("there is no moderation.", is_ignorable=True),
    "structural_tag": Refusal("give response_format, structured_outputs, regex or a grammar."),
    "guided_whitespace_pattern": Refusal("the white space of JSON is the model's choice."),
    "use_beam_search": _NO_BEAMS,
    "length_penalty": Refusal(_NO_BEAMS.why, (1,)),
    "early_stopping": _NO_BEAMS,
    "skip_special_tokens": Refusal("special tokens are never part of the text; see return_token_ids.", (True,)),
    "spaces_between_special_tokens": Refusal("special tokens are never part of the text.", (True, False)),
    "include_stop_str_in_output": Refusal("the text ends before a stop string; see stop_reason.", (False,)),
    "no_stop_trim": Refusal("the text ends before a stop string; see stop_reason.", (False,)),
    "stop_regex": Refusal("give stop or stop_token_ids."),
    "truncate_prompt_tokens": Refusal("a prompt is never cut silently."),
    "logits_processors": Refusal("requests bring no code; see logit_bias, allowed_token_ids and grammar."),
    "custom_logit_processor": Refusal("requests bring no code; see logit_bias, allowed_token_ids and grammar."),
    "custom_params": Refusal("there are no further arguments."),
    "session_params": Refusal("give session_id."),
    "media_io_kwargs": Refusal("only text is taken."),
    "vllm_xargs": Refusal("there are no further arguments."),
    "thinking_token_budget": Refusal("thoughts have no limit of their own; see reasoning_effort and max_tokens."),
    "repetition_detection": Refusal("see repetition_penalty and frequency_penalty."),
    "logprob_token_ids": Refusal("see logprobs."),
    "return_tokens_as_token_ids": Refusal("see return_token_ids.", (False,)),
    "return_hidden_states": Refusal("hidden states are not returned.", (False,)),
    "kv_transfer_params": Refusal("prompts and answers are computed in one place."),
    "lora_path": Refusal("there are no adapters."),
    "mm_processor_kwargs": Refusal("only text is taken."),
    "separate_reasoning": _THOUGHTS,
    "stream_reasoning": _THOUGHTS,
    "include_reasoning": _THOUGHTS,
    "cache_prompt": Refusal("prompts are always cached; see cache_salt.", (True,), is_ignorable=True),
}
