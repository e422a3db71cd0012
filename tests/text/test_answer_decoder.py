"""The output of one request becomes events and is counted; thoughts too, with a toy vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from quire.text.answer_collector import AnswerCollector
from quire.text.answer_decoder import AnswerDecoder, total_usage
from quire.text.model_text import ModelText
from quire.text.output_format import output_format_of
from quire.text.prompts import Prompt, encode_prompts
from quire.text.template import ChatTemplate
from quire.types.chat import ChatRequest, Choice, CompletionRequest, Event, PromptEcho
from quire.types.message import Message
from quire.types.output import Finished, Tokens
from quire.types.request import FinishReason, Pin, SamplingParams
from quire.types.step import PREDICTION, DraftCount, TokenLogprobs

pytestmark = pytest.mark.pure

WORDS = {1: "[THINK]", 2: "[/THINK]", 3: "why", 4: " not", 5: "yes", 6: "hi"}
END = 9


@dataclass
class Words:
    """A tokenizer of a few words."""

    special_ids: frozenset[int] = frozenset()
    eos_ids: tuple[int, ...] = (END,)

    def tokens_named(self, names: Any) -> dict[str, int]:
        return {text: token for token, text in WORDS.items() if text in names}

    def token_bytes(self, token: int) -> bytes:
        return WORDS.get(token, "").encode()

    opening_bytes = token_bytes

    def encode(self, text: str, **more: Any) -> list[int]:
        return [6, *([1] if text.endswith("[THINK]") else [])]

    def decode(self, tokens: Any, skip_special: bool) -> str:
        return "".join(WORDS[token] for token in tokens)


def decoder_of(ask: Any, model_text: ModelText) -> tuple[AnswerDecoder, list[tuple[str, int]]]:
    stopped: list[tuple[str, int]] = []
    prompts = encode_prompts(ask, model_text)
    output_format = output_format_of(ask, prompts, model_text)
    return AnswerDecoder(prompts[0], output_format, lambda *sample: stopped.append(sample)), stopped


def chat(tokens: list[int], special: set[int], template: str) -> Choice:
    model_text = ModelText(Words(frozenset(special)), ChatTemplate(template), ())  # type: ignore[arg-type]
    decoder, _ = decoder_of(ChatRequest("m", (Message("user", "hi"),)), model_text)
    events: list[Event] = []
    for token in tokens:
        decoder.take(Tokens("r", 0, (token,)), events)
    decoder.take(Finished("r", 0, FinishReason.STOP, (END,)), events)
    assert decoder.is_over
    collector = AnswerCollector()
    collector.take(events)
    (choice,) = collector.choices()
    assert list(choice.tokens) == [*tokens, END]
    return choice


@pytest.mark.parametrize("special", [set(), {1, 2}], ids=["plain marks", "special marks"])
def test_thoughts_between_marks_are_reasoning_whatever_kind_of_tokens_the_marks_are(special: set[int]) -> None:
    template = "{{ messages }}{# [THINK] [/THINK] #}"
    found = chat([1, 3, 4, 2, 5], special, template)
    assert (found.reasoning, found.text) == ("why not", "yes")
    found = chat([3, 4, 2, 5], special, template + "[THINK]")
    assert (found.reasoning, found.text) == ("why not", "yes"), "the template has opened the thought"
    found = chat([5, 4], special, template)
    assert (found.reasoning, found.text) == ("", "yes not")


def completion(**sampling: Any) -> tuple[AnswerDecoder, list[tuple[str, int]]]:
    model_text = ModelText(Words(), ChatTemplate(None), ())  # type: ignore[arg-type]
    echo = sampling.pop("echo", False)
    return decoder_of(CompletionRequest("m", ((6, 3),), SamplingParams(**sampling), echo=echo), model_text)


def test_a_stop_string_ends_its_sample_in_the_engine_and_the_rest_is_dropped() -> None:
    decoder, stopped = completion(n=2, stop=("not",))
    events: list[Event] = []
    decoder.take(Tokens("r", 1, (3, 4, 5), num_forced=3), events)
    decoder.take(Tokens("r", 1, (5,)), events)
    assert stopped == [("r", 1)] and not decoder.is_over
    assert (decoder.choices[1].num_tokens, decoder.num_forced) == (2, 2), "those after the stop string do not count"
    decoder.take(Finished("r", 0, FinishReason.LENGTH, (5,), waited=0.5), events)
    decoder.take(Finished("r", 1, FinishReason.STOP, (), waited=0.25), events)
    assert decoder.is_over and stopped == [("r", 1)] and decoder.endings == ["stop_text", "length"]
    assert decoder.waited == 0.5


def test_an_echoed_prompt_comes_first_once_its_scores_are_complete() -> None:
    decoder, _ = completion(echo=True, prompt_logprobs=0)
    events: list[Event] = []
    decoder.take(Tokens("r", 0, (5,)), events)
    assert events == []
    decoder.take(Tokens("r", 0, (), prompt_logprobs=(TokenLogprobs(3, -1.5),)), events)
    prompt = events[0]
    assert isinstance(prompt, PromptEcho) and (prompt.text, prompt.tokens) == ("hiwhy", (6, 3))
    assert [score.logprob for score in prompt.logprobs] == [None, -1.5] and len(events) == 2


def test_usage_counts_hits_of_the_first_sample_and_pinned_tokens_that_were_computed() -> None:
    decoder, _ = completion(n=2)
    decoder.prompt = Prompt((6,) * 10, None, (Pin(0, 8),))
    for sample, num_hit in ((0, 3), (1, 9)):
        decoder.take(Tokens("r", sample, (5, 5), num_hit=num_hit), [])
    usage = total_usage((decoder, decoder), 0.1, 0.2)
    assert (usage.prompt, usage.cached, usage.output, usage.kept) == (20, 6, 8, 10)


def test_usage_counts_drafts_by_drafter_and_only_accepted_tokens_of_the_answer() -> None:
    decoder, _ = completion(stop=("not",))
    decoder.take(Tokens("r", 0, (3, 5), drafts=(DraftCount("tree", 4, 1),)), [])
    decoder.take(Tokens("r", 0, (5, 5), drafts=(DraftCount("tree", 2, 1), DraftCount("suffix", 1, 0))), [])
    decoder.take(Tokens("r", 0, (5, 4, 5, 5), drafts=(DraftCount("suffix", 3, 3),)), [])  # the second one ends it
    usage = total_usage((decoder,), 0.1, 0.2)
    assert usage.drafts == (DraftCount("suffix", 4, 2), DraftCount("tree", 6, 2))
    assert (usage.drafted, usage.accepted) == (10, 4)


def test_usage_tells_of_a_prediction_of_which_nothing_was_tried() -> None:
    decoder, _ = completion()
    decoder.prompt = Prompt((6,), None, predicted=(3, 4))
    assert total_usage((decoder,), 0.1, 0.2).drafts == (DraftCount(PREDICTION, 0, 0),)
