"""Decodes the output of one choice, with a tokenizer whose tokens are bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.text.answer_collector import AnswerCollector
from quire.text.choice_decoder import ChoiceDecoder
from quire.text.detokenize import Detokenizer
from quire.text.output_format import OutputFormat
from quire.text.parsers.registry import all_styles, by_name
from quire.text.parsers.style import ArgumentsPiece, CallStart, Piece, TextPiece, ThoughtPiece
from quire.types.chat import Ending, Event, Finish, ReasoningDelta, TextDelta, Tool, ToolDelta
from quire.types.output import Finished, Tokens
from quire.types.request import FinishReason, SamplingParams
from quire.types.step import TokenLogprobs

pytestmark = pytest.mark.pure

EOS = 256


class Bytes:
    """Token 0 to 255 is that byte; 256 ends."""

    special_ids = frozenset({EOS})

    def token_bytes(self, token: int) -> bytes:
        return b"<end>" if token == EOS else bytes([token])

    opening_bytes = token_bytes


class ByteText:
    tokenizer = Bytes()
    eos_ids = (EOS, ord("$"))

    def detokenizer(self, sampling, *, continues, shown):
        least = sampling.min_tokens
        return Detokenizer(self.tokenizer, sampling.stop, min_tokens=least, continues=continues, shown=shown)


class Marked:
    """Thoughts stand in (), a call is written [name=arguments], and ~ is held back."""

    def __init__(self) -> None:
        self._mode = "text"
        self._held = ""

    def push(self, text: str) -> list[Piece]:
        return [piece for char in text for piece in self._one(char)]

    def _one(self, char: str) -> list[Piece]:
        if char == "~":
            self._held += char
            return []
        if char in "()[=]":
            self._mode = {"(": "thought", "[": "name", "=": "arguments"}.get(char, "text")
            name, self._held = self._held, "" if char == "=" else self._held
            return [CallStart(name)] if char == "=" else []
        if self._mode == "name":
            self._held += char
            return []
        kind = {"thought": ThoughtPiece, "arguments": ArgumentsPiece, "text": TextPiece}[self._mode]
        said, self._held = self._held + char, ""
        return [kind(said)]

    def flush(self, is_cut_off: bool = False) -> list[Piece]:
        return [TextPiece(self._held)] if self._held else []


def output_format(parsed: bool = False, parallel: bool = True, **sampling) -> OutputFormat:
    parser = Marked if parsed else None
    return OutputFormat(SamplingParams(**sampling), ByteText(), parser=parser, parallel=parallel)  # type: ignore[arg-type]


def decode(
    text: str | bytes, form: OutputFormat, *, at_once: bool, reason: FinishReason = FinishReason.STOP, last: int = EOS
) -> list[Event]:
    """All events of an answer, its tokens one by one or together; logprobs are minus their places."""
    tokens = tuple(text.encode() if isinstance(text, str) else text) + ((last,) if reason is FinishReason.STOP else ())
    logprobs = tuple(TokenLogprobs(token, -float(place)) for place, token in enumerate(tokens))
    decoder, out = ChoiceDecoder(3, form), []
    outputs = (
        [(tokens[:-1], logprobs[:-1])]
        if at_once
        else [((t,), (p,)) for t, p in zip(tokens, logprobs, strict=True)][:-1]
    )
    for some, scores in outputs:
        decoder.take(Tokens("a", 0, some, scores), out)
    decoder.take(Finished("a", 0, reason, tokens[-1:], logprobs[-1:]), out)
    assert decoder.is_over
    return out


@pytest.fixture(params=[True, False], ids=["at once", "one by one"])
def at_once(request):
    return request.param


def joined(events: list[Event], kind: type) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def tokens_of(events: list[Event]) -> bytes:
    kinds = TextDelta | ReasoningDelta | ToolDelta
    return bytes(t for e in events if isinstance(e, kinds) for t in e.tokens if t != EOS)


def test_text_comes_out_with_its_tokens_and_an_end(at_once):
    events = decode("héllo", output_format(), at_once=at_once)
    assert joined(events, TextDelta) == "héllo" and tokens_of(events) == "héllo".encode()
    assert events[-1] == Finish(3, Ending.STOP) and all(event.choice == 3 for event in events)


def test_tokens_wait_for_the_character_that_they_are_part_of():
    first, *_ = decode("é", output_format(), at_once=False)
    assert first == TextDelta(3, "é", tuple("é".encode()))


def test_an_unfinished_character_comes_at_the_end(at_once):
    events = decode(b"a\xc3", output_format(), at_once=at_once, reason=FinishReason.LENGTH)
    assert joined(events, TextDelta) == "a\ufffd" and events[-1] == Finish(3, Ending.LENGTH)


def test_a_stop_string_ends_it_and_what_comes_after_is_dropped(at_once):
    events = decode("one two three", output_format(stop=("wo t",)), at_once=at_once)
    assert joined(events, TextDelta) == "one t" and events[-1] == Finish(3, Ending.STOP_TEXT, "wo t")
    assert tokens_of(events) == b"one two t"


def test_a_stop_string_within_the_first_min_tokens_does_not_end_the_answer(at_once):
    events = decode("one. two. three", output_format(stop=(".",), min_tokens=4), at_once=at_once)
    assert joined(events, TextDelta) == "one. two" and events[-1] == Finish(3, Ending.STOP_TEXT, ".")
    events = decode("one. two. three", output_format(stop=(".",), min_tokens=3), at_once=at_once)
    assert joined(events, TextDelta) == "one"


def test_a_stop_token_is_reported_without_its_text(at_once):
    events = decode("abc", output_format(stop_token_ids=(EOS,), logprobs=0), at_once=at_once)
    assert joined(events, TextDelta) == "abc" and events[-1] == Finish(3, Ending.STOP_TEXT, EOS)
    assert [each.id for event in events[:-1] for each in event.logprobs] == [*b"abc", EOS]


def test_the_token_that_ends_an_answer_is_not_part_of_its_text_even_if_it_is_not_special(at_once):
    events = decode(b"abc", output_format(), at_once=at_once, last=ord("$"))
    assert joined(events, TextDelta) == "abc" and events[-1] == Finish(3, Ending.STOP)
    assert tokens_of(events) == b"abc$"
    assert joined(decode(b"a$c", output_format(ignore_eos=True), at_once=at_once), TextDelta) == "a$c"


def test_scores_go_with_their_tokens(at_once):
    events = decode("héy", output_format(logprobs=0, stop=("zz",)), at_once=at_once)
    scores = [score for event in events[:-1] for score in event.logprobs]
    assert [score.logprob for score in scores] == [0.0, -1.0, -2.0, -3.0, -4.0]
    assert b"".join(score.bytes for score in scores[:-1]).decode() == "héy"
    assert all(len(event.tokens) == len(event.logprobs) for event in events[:-1])


def test_thoughts_and_calls_are_events_of_their_own(at_once):
    events = decode('(hmm)Well.[get={"a":1}]', output_format(parsed=True), at_once=at_once)
    assert joined(events, ReasoningDelta) == "hmm" and joined(events, TextDelta).startswith("Well.")
    calls = [event for event in events if isinstance(event, ToolDelta)]
    assert calls[0].name == "get" and calls[0].id and calls[0].arguments == ""
    assert {call.call for call in calls} == {0} and all(call.id is None for call in calls[1:])
    assert events[-1] == Finish(3, Ending.TOOL_CALLS)
    if at_once:
        assert len(calls) == 2 and len([e for e in events if isinstance(e, ReasoningDelta)]) == 1


def test_all_tokens_are_in_events_and_scored_including_those_of_calls_and_marks(at_once):
    said = '(hmm)Well.[get={"a":1}][put={}]'
    events = decode(said, output_format(parsed=True, logprobs=0), at_once=at_once)
    assert tokens_of(events) == said.encode()
    assert all(len(event.tokens) == len(event.logprobs) for event in events[:-1])
    collector = AnswerCollector()
    collector.take(events)
    (choice,) = collector.choices()
    assert [score.logprob for score in choice.logprobs] == [-float(place) for place in range(len(said) + 1)]
    assert b"".join(score.bytes for score in choice.text_logprobs) == b")Well."


def test_where_calls_are_not_parallel_the_answer_ends_before_the_second(at_once):
    events = decode("[get={}]Well.[put={}]Bye.", output_format(parsed=True, parallel=False), at_once=at_once)
    assert [event.name for event in events if isinstance(event, ToolDelta) and event.name] == ["get"]
    assert joined(events, TextDelta) == "Well." and events[-1] == Finish(3, Ending.TOOL_CALLS)


def test_tokens_of_thought_are_counted(at_once):
    form = output_format(parsed=True)
    decoder, out = ChoiceDecoder(0, form), []
    pieces = [tuple(b"(hmm)Well.")] if at_once else [(token,) for token in b"(hmm)Well."]
    for tokens in pieces:
        decoder.take(Tokens("a", 0, tokens), out)
    assert (decoder.num_reasoning, decoder.num_tokens) == (4, 10)


def test_held_text_is_released_at_the_end(at_once):
    assert joined(decode("a~", output_format(parsed=True), at_once=at_once), TextDelta) == "a~"


def test_a_call_that_is_cut_off_ended_by_its_length(at_once):
    events = decode("[get={", output_format(parsed=True), at_once=at_once, reason=FinishReason.LENGTH)
    assert events[-1] == Finish(3, Ending.LENGTH)


CALLS = {
    "hermes": '<tool_call>\n{"name": "get", "arguments": {"a": "b"}}\n</tool_call>',
    "generic": '<tool_call>\n{"name": "get", "arguments": {"a": "b"}}\n</tool_call>',
    "llama3": '{"name": "get", "parameters": {"a": "b"}}',
    "mistral": '[TOOL_CALLS]get[ARGS]{"a": "b"}',
    "apertus": '<|tools_prefix|>[{"get": {"a": "b"}}]<|tools_suffix|>',
    "command": '<|START_ACTION|>[{"tool_name": "get", "parameters": {"a": "b"}}]<|END_ACTION|>',
    "deepseek": '<｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n{"a": "b"}\n```<｜tool▁call▁end｜>',
    "deepseek_v31": '<｜tool▁call▁begin｜>get<｜tool▁sep｜>{"a": "b"}<｜tool▁call▁end｜>',
    "function_gemma": "<start_function_call>call:get{a:<escape>b<escape>}<end_function_call>",
    "gemma4": '<|tool_call>call:get{a:<|"|>b<|"|>}<tool_call|>',
    "glm": "<tool_call>get\n<arg_key>a</arg_key>\n<arg_value>b</arg_value>\n</tool_call>",
    "glm47": "<tool_call>get<arg_key>a</arg_key><arg_value>b</arg_value></tool_call>",
    "granite": '<|tool_call|>[{"name": "get", "arguments": {"a": "b"}}]',
    "harmony": '<|channel|>commentary to=functions.get <|constrain|>json<|message|>{"a": "b"}<|call|>',
    "hunyuan": '<tool_calls>[{"name": "get", "arguments": {"a": "b"}}]</tool_calls>',
    "kimi": (
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>{"a": "b"}'
        "<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "lfm2": '<|tool_call_start|>[get(a="b")]<|tool_call_end|>',
    "lfm25": "<|tool_call_start|>[get(a='b')]<|tool_call_end|>",
    "minimax": (
        '<minimax:tool_call>\n<invoke name="get">\n<parameter name="a">b</parameter>\n</invoke>\n</minimax:tool_call>'
    ),
    "nemotron": '<TOOLCALL>[{"name": "get", "arguments": {"a": "b"}}]</TOOLCALL>',
    "olmo3": '<function_calls>get(a="b")</function_calls>',
    "phi4": '<|tool_call|>[{"name": "get", "arguments": {"a": "b"}}]<|/tool_call|>',
    "pythonic": '[get(a="b")]',
    "qwen3_coder": "<tool_call>\n<function=get>\n<parameter=a>\nb\n</parameter>\n</function>\n</tool_call>",
    "seed_oss": "<seed:tool_call>\n<function=get>\n<parameter=a>b</parameter>\n</function>\n</seed:tool_call>",
}


@pytest.mark.parametrize("style", all_styles())
def test_a_call_that_is_cut_off_anywhere_yields_only_what_is_known_of_it(style, at_once):
    said = CALLS[style]
    form = OutputFormat(SamplingParams(), ByteText(), parser=lambda: by_name(style).parser([Tool("get")]))  # type: ignore[arg-type]
    stopped = replace(form, sampling=SamplingParams(stop=("$",)))
    for end in range(2, len(said)):
        for output, text, ending in ((form, said[:end], Ending.LENGTH), (stopped, said[:end] + "$", Ending.STOP_TEXT)):
            events = decode(text, output, at_once=at_once, reason=FinishReason.LENGTH)
            collector = AnswerCollector()
            collector.take(events)
            (choice,) = collector.choices()
            assert choice.text == "" and events[-1].ending is ending and tokens_of(events) == text.encode()
            known = [(call.name, call.arguments) for call in choice.tool_calls]
            assert known == [] or (known[0][0] == "get" and '{"a": "b"}'.startswith(known[0][1]))
            assert known or said[:end].count("get") == 0 or said[:end].endswith("get")


def test_collected_events_are_the_whole_answer(at_once):
    collector = AnswerCollector()
    collector.take(decode('(hmm)Well.[get={"a":1}][put={}]', output_format(parsed=True, logprobs=0), at_once=at_once))
    (choice,) = collector.choices()
    assert (choice.index, choice.text, choice.reasoning) == (3, "Well.", "hmm")
    assert [(call.name, call.arguments) for call in choice.tool_calls] == [("get", '{"a":1}'), ("put", "{}")]
    assert choice.ending is Ending.TOOL_CALLS and len({call.id for call in choice.tool_calls}) == 2
