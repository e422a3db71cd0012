"""The grammar contract by llguidance: Earley parsing over bytes, with masks in microseconds.

JSON is written in one line, as `json.dumps` does it: `{"a": 1, "b": [2, 3]}`. Nobody misses a choice about white space,
small models would write it for ever, and each place for it would end a run of forced tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import llguidance
from numpy.typing import NDArray

from quire.grammar.alternatives import Rules
from quire.grammar.grammar import Words
from quire.grammar.schema import Schema, locate, read, refused
from quire.grammar.writing import exact
from quire.types.errors import InvalidRequest, QuireError
from quire.types.request import Constraint, ConstraintKind

Array = NDArray[Any]

ANY_OBJECT: Schema = {"type": "object"}
JSON_FORM = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "coerce_one_of": False,  # branches that may both hold are refused: an answer that fits two of them is not valid
    "lenient": False,
    "json_allow_general_unicode_escapes": False,
}
# A name may not be spelled a second way: "\u0061" would be "a" again, with a value that nobody has looked at.
ESCAPES = 'nrbtf\\"'

# What a mask may cost: some 25 ms and 100 MB in the worst case, and then the request fails by itself. A row has an item
# for each way in which the text may go on: an enum of 2,000 objects is such a row, so it may be longer than usual.
LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=200_000,
    max_items_in_row=20_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
MAX_REASON = 400  # characters of what the library says
MAX_EBNF_RULES = 1_000  # its converter is Python, and takes 0.4 s for so many, four times that for twice as many

ANCHOR = "\x01"  # before a text, so that a tokenizer sees no beginning there; it joins with nothing


class Guidance:
    """Compiles for the words of one model. Opening it takes as long as walking through the vocabulary."""

    def __init__(self, words: Words, open_objects: bool = False) -> None:
        self._open_objects = open_objects
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Spelling(words)), n_vocab=words.vocab_size, eos_token=list(words.end_ids)
        )

    def compile(self, constraint: Constraint) -> GuidanceGrammar:
        """May be called from several threads at once: all but the checks of a schema runs without the interpreter."""
        try:
            matcher = self._compile(constraint)
            matcher.compute_bitmask()  # the first mask is made here once, for all that start with it
            if matcher.is_error():
                raise _refused(constraint.kind, _reason(matcher.get_error()))
            return GuidanceGrammar(matcher)
        except (RecursionError, UnicodeEncodeError) as error:
            why = "it is nested too deeply" if isinstance(error, RecursionError) else "it is not valid Unicode"
            raise _refused(constraint.kind, why) from error

    def _compile(self, constraint: Constraint) -> llguidance.LLMatcher:
        match constraint.kind:
            case ConstraintKind.JSON:
                return self._follow(_json_grammar(ANY_OBJECT), constraint)
            case ConstraintKind.SCHEMA:
                rules = Rules(closes=constraint.strict or not self._open_objects)
                return self._compile_schema(read(constraint.text), rules)
            case ConstraintKind.REGEX:
                return self._follow(llguidance.grammar_from("regex", constraint.text), constraint)
            case ConstraintKind.CHOICE:
                lark = "start: " + " | ".join(json.dumps(choice) for choice in constraint.choices)
                return self._follow(llguidance.grammar_from("lark", lark), constraint)
            case ConstraintKind.LARK:
                return self._follow(llguidance.grammar_from("lark", constraint.text), constraint)
            case ConstraintKind.EBNF:
                return self._follow(_from_ebnf(constraint.text), constraint)

    def _compile_schema(self, schema: Schema, rules: Rules) -> llguidance.LLMatcher:
        def compiled(part: Schema) -> llguidance.LLMatcher:
            return self._matcher(_json_grammar(exact(part, rules)))

        def refusal(part: Schema) -> str | None:
            try:
                return compiled(part).get_error() or None
            except InvalidRequest as error:
                return error.public

        matcher = compiled(schema)
        if not matcher.is_error():
            return matcher
        raise refused(locate(schema, refusal, matcher.get_error()), _reason(matcher.get_error()))

    def _follow(self, grammar: str, constraint: Constraint) -> llguidance.LLMatcher:
        matcher = self._matcher(grammar)
        if matcher.is_error():
            raise _refused(constraint.kind, _reason(matcher.get_error(), constraint.kind))
        return matcher

    def _matcher(self, grammar: str) -> llguidance.LLMatcher:
        return llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)


class GuidanceGrammar:
    """A matcher that has seen nothing yet."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    def start(self) -> GuidanceState:
        """A copy, which costs microseconds."""
        return GuidanceState(self._matcher.deep_copy())


class GuidanceState:
    """A matcher and what it was given."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher
        self._num_tokens = 0

    @property
    def must_stop(self) -> bool:
        """Is the text whole, with nothing that could follow?"""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def error(self) -> QuireError | None:
        """A matcher that has failed stays so: it would allow nothing but the end."""
        if not self._matcher.is_error():
            return None
        said = f"The answer cannot be held to its form any further, after {self._num_tokens} tokens: "
        return InvalidRequest(said + _reason(self._matcher.get_error()) + ".", field="constraint")

    def accept(self, tokens: Sequence[int]) -> None:
        """The text goes on with these."""
        self._num_tokens += len(tokens)
        self._matcher.consume_tokens(list(tokens))

    def forced_tokens(self) -> list[int]:
        """As many as are certain: the last ones may yet join with what follows, and are left to the next turn."""
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens[: self._matcher.validate_tokens(tokens)] if tokens else tokens

    def fill_mask(self, bits: Array, drafts: Sequence[int] = ()) -> None:
        """Straight into the rows of `bits`, without the interpreter."""
        matcher, at, row = self._matcher, bits.ctypes.data, bits.strides[0]
        matcher.unsafe_compute_mask_ptr(at, row)
        num_tried = 0
        for draft in drafts:
            if not matcher.validate_tokens([draft]):
                break
            matcher.consume_token(draft)
            num_tried += 1
            matcher.unsafe_compute_mask_ptr(at + num_tried * row, row)
        if num_tried:
            matcher.rollback(num_tried)


class _Spelling:
    """A model's words as llguidance asks for them. Text that it wants in tokens stands in the middle of an answer."""

    def __init__(self, words: Words) -> None:
        self._tokenizer = words.tokenizer
        self.tokens = [words.tokenizer.token_bytes(token) for token in range(words.vocab_size)]
        self.special_token_ids = sorted(token for token in words.tokenizer.special_ids if token < words.vocab_size)
        self.eos_token_id = words.end_ids[0]
        self.bos_token_id = words.tokenizer.bos_id
        self._heads = [("", 0), (ANCHOR, len(self._encode(ANCHOR)))]
        self._longest = max(map(len, self.tokens))
        self._ids = {word: token for token, word in enumerate(self.tokens) if token not in words.tokenizer.special_ids}

    def __call__(self, text: str) -> list[int]:
        """Tokens that spell exactly this text: the model's own way, or else from the longest word to the shortest."""
        wanted = text.encode()
        for head, length in self._heads:
            tokens = self._encode(head + text)[length:]
            if b"".join([self.tokens[token] for token in tokens]) == wanted:
                return tokens
        return self._greedy(wanted)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_bos=False, add_eos=False)

    def _greedy(self, text: bytes) -> list[int]:
        tokens: list[int] = []
        at = 0
        while at < len(text):
            ends = range(min(len(text), at + self._longest), at, -1)
            end = next((end for end in ends if text[at:end] in self._ids), None)
            if end is None:
                return []  # no word spells it: nothing can be forced here
            tokens.append(self._ids[text[at:end]])
            at = end
        return tokens


_WHAT = {
    ConstraintKind.JSON: "form",
    ConstraintKind.SCHEMA: "JSON schema",
    ConstraintKind.REGEX: "regular expression",
    ConstraintKind.CHOICE: "choice",
    ConstraintKind.LARK: "Lark grammar",
    ConstraintKind.EBNF: "EBNF grammar",
}


def _refused(kind: ConstraintKind, why: str) -> InvalidRequest:
    return InvalidRequest(f"The {_WHAT[kind]} cannot be followed: {why}.", field="constraint")


def _json_grammar(schema: Schema) -> str:
    text = json.dumps(schema, ensure_ascii=False)
    escapes = ESCAPES + "u" * ("\\u00" in text)  # a schema with control characters needs a way to write them
    form = JSON_FORM | {"json_allowed_escapes": escapes}
    return llguidance.LLMatcher.grammar_from_json_schema(text, overrides=form)  # type: ignore[arg-type]


def _from_ebnf(text: str) -> str:
    """GBNF by way of Lark. Escapes of Unicode are resolved here: the library's converter spoils those with zeros."""
    if text.count("::=") > MAX_EBNF_RULES:
        raise _refused(ConstraintKind.EBNF, f"it has more than {MAX_EBNF_RULES} rules")
    try:
        return llguidance.grammar_from("ebnf", re.sub(r"\\(?:u([\da-fA-F]{4})|U([\da-fA-F]{8})|.)", _character, text))
    except ValueError as error:
        reason = str(error).removeprefix("Failed to convert the grammar from GBNF to Lark: ")
        raise _refused(ConstraintKind.EBNF, reason) from error


def _character(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2]
    if code is None:
        return escape[0]
    value = int(code, 16)
    return f"\\x{value:02X}" if value < 0x80 else chr(min(value, 0x10FFFF))


def _reason(said: str, kind: ConstraintKind = ConstraintKind.SCHEMA) -> str:
    """What the library says, in one line, and in our words where it matters.

    A place in a grammar is told as line and column. What is not a Lark grammar has become one on its way, and a place
    in that one is nobody's.
    """
    said = said.removesuffix("<non-verbose/>").strip()
    if found := re.match(r"Unimplemented keys: \[(.*)\]", said):
        return f"not supported: {found[1].replace(chr(34), '')}"
    if said.startswith("oneOf constraints are not supported"):
        return "oneOf is supported where its branches exclude each other, which these may not; use anyOf"
    if said.startswith("NoExtensionBias"):
        return "no token of the model can come next"
    if said.startswith("panic"):
        return "it is too large"
    place = ""
    if found := re.match(r"(?:at )?(\d+)\((\d+)\): ", said):
        place = f"line {found[1]}, column {found[2]}: " if kind is ConstraintKind.LARK else ""
        said = said[found.end() :]
    if found := re.search(r"regex parse error:\n    .*\n    ( *)\^.*\nerror: (.*)", said):
        return f"{place}character {len(found[1]) + 1}: {found[2]}"
    said = said.partition("\n")[0]
    return place + (said if len(said) <= MAX_REASON else said[:MAX_REASON] + "…").rstrip(".")
