"""vLLM's parameter names: what each is called in Quire, which values have no effect, and the answer to any other.

One row for each name. `docs/VLLM.md` is generated from these; an unlisted name gets the usual error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from quire.types.errors import InvalidRequest

LLM, CALL, SAMPLING, SERVE = "LLM(…)", "generate, chat", "SamplingParams", "quire serve"
PLACES = (LLM, SERVE, SAMPLING, CALL)
ENGINE = (LLM, SERVE)
NO_VALUES: Mapping[Any, Any] = MappingProxyType({})
PARALLEL = "a model runs on one device; to use several GPUs, start a server for each behind a load balancer."


class Word(NamedTuple):
    """One parameter of vLLM."""

    name: str
    places: tuple[str, ...]
    ours: str = ""  # our parameter that takes its value; empty: only harmless values are accepted
    values: Mapping[Any, Any] = NO_VALUES  # vLLM's values that have another name here
    harmless: tuple[Any, ...] = ()  # values without an effect here, beside None
    is_harmless: bool = False  # every value is
    answer: str = ""  # the reason, or what to do instead


def _word(name: str, places: tuple[str, ...], ours: str = "", **more: Any) -> Word:
    return Word(name, places, ours, **more)


WORDS = (
    _word("max_model_len", ENGINE, "max_context"),
    _word("gpu_memory_utilization", ENGINE, "memory_share"),
    _word("max_num_seqs", ENGINE, "max_rows"),
    _word("max_num_batched_tokens", ENGINE, "max_step_tokens"),
    _word("block_size", ENGINE, "block_tokens"),
    _word("num_gpu_blocks_override", ENGINE, "num_blocks"),
    _word("kv_cache_dtype", ENGINE, "kv_dtype", values={"fp8": "f8_e4m3", "fp8_e4m3": "f8_e4m3", "bfloat16": "bf16"}),
    _word("pool", ENGINE, "pooling"),
    _word("enforce_eager", ENGINE, "captures", values={True: False, False: True}),
    _word("generation_config", ENGINE, "sampling_defaults", values={"auto": "model", "vllm": "none"}),
    _word("download_dir", ENGINE, "home"),
    _word(
        "dtype",
        ENGINE,
        "dtype",
        values={"bfloat16": "bf16", "float16": "f16", "half": "f16", "float32": "f32", "float": "f32"},
    ),
    _word(
        "quantization",
        ENGINE,
        "quantize",
        values={"fp8": "fp8"},
        answer="a checkpoint's own format is recognized; only fp8 is made while weights are loaded.",
    ),
    _word("tensor_parallel_size", ENGINE, harmless=(1,), answer=PARALLEL),
    _word("pipeline_parallel_size", ENGINE, harmless=(1,), answer=PARALLEL),
    _word("data_parallel_size", ENGINE, harmless=(1,), answer=PARALLEL),
    _word("trust_remote_code", ENGINE, is_harmless=True, answer="no code of a checkpoint is ever run."),
    _word("seed", (LLM,), answer="give each request its own: SamplingParams(seed=…)."),
    _word("seed", (SERVE,), answer="give each request its own: the field `seed`."),
    _word("swap_space", ENGINE, harmless=(0, 4), answer="preempted requests are computed again, not swapped."),
    _word("cpu_offload_gb", ENGINE, harmless=(0,), answer="only experts can be in host memory: set experts_on_host."),
    _word(
        "enable_prefix_caching",
        ENGINE,
        harmless=(True,),
        answer="it is always on; a `cache_salt` of its own keeps a request's prefixes apart.",
    ),
    _word("enable_chunked_prefill", ENGINE, harmless=(True,), answer="it is always on; see max_step_tokens."),
    _word("disable_log_stats", ENGINE, is_harmless=True, answer="figures are at /metrics."),
    _word("disable_log_requests", ENGINE, is_harmless=True, answer="prompts are logged only with `--log-prompts`."),
    _word("tokenizer", ENGINE, answer="the model's own is used."),
    _word("tokenizer_mode", ENGINE, harmless=("auto",), answer="the model's own is used."),
    _word("skip_tokenizer_init", ENGINE, harmless=(False,), answer="give token ids as prompts."),
    _word("revision", ENGINE, answer="pull the revision you want into a folder, and give its path."),
    _word("chat_template", ENGINE, answer="the model's own is used; `quire create` makes a model with another."),
    _word("override_generation_config", ENGINE, answer="put PARAMETER lines into a Modelfile: `quire create`."),
    _word("enable_lora", ENGINE, harmless=(False,), answer="merge the adapter into the weights."),
    _word(
        "speculative_config", ENGINE, answer="give draft=MODEL for a draft model; speculate='off' switches drafts off."
    ),
    _word(
        "task",
        ENGINE,
        harmless=("auto", "generate", "embed", "score", "classify"),
        answer="a model does what it can: generate, embed, score, classify.",
    ),
    _word("runner", ENGINE, harmless=("auto", "generate", "pooling"), answer="a model does all that it can."),
    _word("convert", ENGINE, harmless=("auto", "none"), answer="set pooling for a model that generates text."),
    _word("override_pooler_config", ENGINE, answer="set pooling; dimensions and normalize are fields of requests."),
    _word("pooler_config", ENGINE, answer="set pooling; dimensions and normalize are fields of requests."),
    _word("max_seq_len_to_capture", ENGINE, is_harmless=True, answer="what is captured is decided by memory."),
    _word("disable_custom_all_reduce", ENGINE, is_harmless=True, answer=PARALLEL),
    _word("served_model_name", ENGINE, answer="write NAME=MODEL: `quire serve NAME=MODEL`."),
    _word("ssl_certfile", (SERVE,), "tls_cert"),
    _word("ssl_keyfile", (SERVE,), "tls_key"),
    _word("allowed_origins", (SERVE,), "cors_origins"),
    _word("uvicorn_log_level", (SERVE,), "log_level"),
    _word("enable_auto_tool_choice", (SERVE,), is_harmless=True, answer="it is always on."),
    _word("tool_call_parser", (SERVE,), is_harmless=True, answer="it is found by the chat template."),
    _word("reasoning_parser", (SERVE,), is_harmless=True, answer="it is found by the chat template."),
    _word("top_k", (SAMPLING,), "top_k", values={-1: 0}),
    _word("best_of", (SAMPLING,), harmless=(1,), answer="give n: every sample is returned."),
    _word("guided_decoding", (SAMPLING,), answer="give generate or chat a `constraint`: Constraint(…)."),
    _word("structured_outputs", (SAMPLING,), answer="give generate or chat a `constraint`: Constraint(…)."),
    _word("use_beam_search", (SAMPLING,), harmless=(False,), answer="answers are sampled."),
    _word("length_penalty", (SAMPLING,), harmless=(1,), answer="answers are sampled."),
    _word("early_stopping", (SAMPLING,), harmless=(False,), answer="answers are sampled."),
    _word("logits_processors", (SAMPLING,), answer="give logit_bias, allowed_token_ids or a `constraint`."),
    _word("detokenize", (SAMPLING,), harmless=(True,), answer="text is always made; tokens are in .tokens."),
    _word("skip_special_tokens", (SAMPLING,), harmless=(True,), answer="decode .tokens with llm.tokenizer."),
    _word("spaces_between_special_tokens", (SAMPLING,), is_harmless=True, answer="special tokens are not in the text."),
    _word("include_stop_str_in_output", (SAMPLING,), harmless=(False,), answer="the text ends before it."),
    _word("truncate_prompt_tokens", (SAMPLING,), answer="nothing is cut: shorten the prompt's token ids."),
    _word("output_kind", (SAMPLING,), answer="generate returns whole answers, stream returns pieces."),
    _word("extra_args", (SAMPLING,), answer="there are none here."),
    _word("sampling_params", (CALL,), "sampling"),
    _word("use_tqdm", (CALL,), "progress"),
    _word("lora_request", (CALL,), answer="merge the adapter into the weights."),
    _word("priority", (CALL,), answer="priorities are a field of requests over HTTP."),
    _word("prompt_token_ids", (CALL,), answer="give the token ids as the prompt."),
    _word("chat_template", (CALL,), answer="the model's own is used; `quire create` makes a model with another."),
    _word("chat_template_content_format", (CALL,), is_harmless=True, answer="it is found by the chat template."),
    _word("add_generation_prompt", (CALL,), harmless=(True,), answer="an answer always begins a new message."),
    _word("continue_final_message", (CALL,), harmless=(False,), answer="give generate the rendered text."),
    _word("mm_processor_kwargs", (CALL,), answer="models read text."),
)
BY_PLACE: Mapping[str, Mapping[str, Word]] = MappingProxyType(
    {place: {word.name: word for word in WORDS if place in word.places} for place in PLACES}
)


def translate(place: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with our names. Raises for an unsupported value, and if a name is given together with ours."""
    made: dict[str, Any] = {}
    for name, value in given.items():
        word, ours = BY_PLACE[place].get(name), name
        if word is not None:
            if word.is_harmless or _is_harmless(word, value):
                continue
            if word.answer and not _is_among(value, word.values):
                raise InvalidRequest(f"{name} is {_shown(value)}, which is not supported: {word.answer}", field=name)
            ours, value = word.ours, word.values[value] if _is_among(value, word.values) else value
        if ours in made or (ours != name and given.get(ours) is not None):
            raise InvalidRequest(f"{name} and {ours} are the same here: give one of them.", field=name)
        made[ours] = value
    return made


def answer_to_flag(arguments: Iterable[str], known: Iterable[str]) -> str | None:
    """The answer to the first vLLM flag among these arguments. `known` are Quire's own flags."""
    ours = set(known)
    for argument in arguments:
        flag = argument.partition("=")[0]
        word = BY_PLACE[SERVE].get(flag.removeprefix("--").replace("-", "_")) if flag.startswith("--") else None
        if argument == "--":
            return None
        if word is not None and flag not in ours:
            return f"{flag} is vLLM's. {_advice(word)}"
    return None


def vllm_page() -> str:
    """Return the text of `docs/VLLM.md`."""
    lines = ["# For users of vLLM", "", INTRODUCTION, ""]
    for place in PLACES:
        lines += [f"## {place}", "", "| vLLM | here |", "|---|---|"]
        lines += [f"| `{word.name}` | {_advice(word, place)} |" for word in BY_PLACE[place].values()]
        lines.append("")
    return "\n".join(lines)


INTRODUCTION = (
    "Made from `types/vllm_words.py`. Where a word has another name here, Python takes both; `quire serve` takes ours "
    "and answers the other with it. A value that cannot be honoured is refused with what to do instead. A completion "
    "has `.outputs[0].text`, `.outputs[0].token_ids`, `.prompt` and `.prompt_token_ids` beside our own names, and a "
    "model `get_tokenizer()` and `get_default_sampling_params()`."
)


def _advice(word: Word, place: str = SERVE) -> str:
    if word.ours:
        ours = f"--{word.ours.replace('_', '-')}" if place == SERVE else word.ours
        values = ", ".join(f"`{_spelled(key)}` becomes `{_spelled(value)}`" for key, value in word.values.items())
        return f"Use `{ours}`{f': {values}' if values else ''}.{f' Else {word.answer}' if word.answer else ''}"
    if place == SERVE:
        return f"Leave it out: {word.answer}"
    taken = " or ".join(f"`{_spelled(value)}`" for value in word.harmless)
    accepts = "Changes nothing" if word.is_harmless else f"Taken as {taken} only" if taken else "Not supported"
    return f"{accepts}: {word.answer}"


def _spelled(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def _is_harmless(word: Word, value: object) -> bool:
    return value is None or _is_among(value, word.harmless)


def _is_among(value: object, known: Iterable[object]) -> bool:
    """Is the value among these? True is not equal to 1 here."""
    plain = isinstance(value, str | int | float)
    return plain and any(value == each for each in known if isinstance(each, bool) == isinstance(value, bool))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 64 else f"a {type(value).__name__}"
