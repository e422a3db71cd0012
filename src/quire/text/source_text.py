"""How a text goes to a model with an encoder: the prompt is read by the encoder, and the decoder begins with a few
tokens that the model's files name."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.text.errors import UnsupportedTokenizer
from quire.types.defaults import SamplingDefaults
from quire.types.errors import InvalidRequest

logger = logging.getLogger("quire.text")
CONFIG = "config.json"
# Settings of generation that change the text and are not applied, with the values that change nothing.
NOT_APPLIED = {"num_beams": 1, "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "min_length": 0}


@dataclass(frozen=True, slots=True)
class SourceText:
    """The text side of an encoder-decoder."""

    start: tuple[int, ...]  # what the decoder begins with
    suppressed: tuple[int, ...] = ()  # tokens that are never written


def read_source_text(config: Mapping[str, Any], generation: Mapping[str, Any]) -> SourceText | None:
    """Read config.json and generation_config.json, which counts more. None: the model has no encoder."""
    if not config.get("is_encoder_decoder"):
        return None
    found = {**config, **{name: value for name, value in generation.items() if value is not None}}
    start = found.get("decoder_start_token_id")
    if not isinstance(start, int):
        raise UnsupportedTokenizer("config.json has no decoder_start_token_id: what the decoder begins with.")
    first = found.get("forced_bos_token_id")
    words = found.get("bad_words_ids") or []
    if any(not isinstance(word, list) or len(word) != 1 for word in words):
        raise UnsupportedTokenizer("bad_words_ids has words of several tokens, which are not supported.")
    ignored = [f"{name} {found[name]}" for name, neutral in NOT_APPLIED.items() if found.get(name, neutral) != neutral]
    if ignored:
        logger.warning("Settings of the model's files that are not applied: %s.", ", ".join(ignored))
    return SourceText((start, *([first] if isinstance(first, int) else [])), tuple(word[0] for word in words))


def source_of_gguf(metadata: Mapping[str, Any]) -> SourceText | None:
    """Read the metadata of a GGUF file. None: the model has no encoder."""
    if metadata.get("general.architecture") != "t5":
        return None
    start = metadata.get("t5.decoder_start_token_id", metadata.get("tokenizer.ggml.padding_token_id", 0))
    return SourceText((int(start),))


def greedy_unless_set(defaults: SamplingDefaults, generation: Mapping[str, Any]) -> SamplingDefaults:
    """Such models translate and summarize: without `do_sample` they write the likeliest tokens."""
    if "temperature" in defaults.values or generation.get("do_sample"):
        return defaults
    return SamplingDefaults({**defaults.values, "temperature": 0.0}, {**defaults.sources, "temperature": CONFIG})


def refuse_text(field: str) -> InvalidRequest:
    """The error of a text for a speech model."""
    return InvalidRequest(
        "This model transcribes recordings and reads no text: send a sound file to /v1/audio/transcriptions, or to "
        "llm.transcribe.",
        field=field,
    )


def refuse_chat() -> InvalidRequest:
    """The error of a conversation with a model that reads texts."""
    return InvalidRequest(
        "This model has an encoder and no chat template: send the text to /v1/completions, or to llm.generate.",
        field="messages",
    )
