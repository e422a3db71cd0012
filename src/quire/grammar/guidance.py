"""The grammar backend with llguidance: Earley parsing over bytes, with masks in microseconds.

JSON is written on one line, as by `json.dumps`: `{"a": 1, "b": [2, 3]}`. Optional white space would be written for ever
by small models, and would end every run of forced tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import llguidance
from numpy.typing import NDArray

from quire.grammar.alternatives import SchemaOptions
from quire.grammar.grammar import GrammarVocabulary
from quire.grammar.schema import Schema, invalid_schema, locate_error, parse_schema
from quire.grammar.schema_writer import exact_schema
from quire.types.errors import InvalidRequest, QuireError
from quire.types.request import Constraint, ConstraintKind

Array = NDArray[Any]

ANY_OBJECT: Schema = {"type": "object"}
JSON_FORM = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "coerce_one_of": False,  # overlapping branches are refused: an answer that matches two is invalid
    "lenient": False,
    "json_allow_general_unicode_escapes": False,
}
# A name must not be written in two ways: "\u0061" would repeat "a", with a value that is not checked.
ESCAPES = 'nrbtf\\"'

# The cost of a mask: 25 ms and 100 MB in the worst case; beyond that the request fails. A row has an item for each
# possible continuation: an enum of 2,000 objects is one row, so rows may be longer than the default.
LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=200_000,
    max_items_in_row=20_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
MAX_REASON = 400  # characters of the library's error
MAX_EBNF_RULES = 1_000  # the converter is Python: 0.4 s for this many, quadratic in their number

ANCHOR = "\x01"  # put before a text, so that a tokenizer does not treat it as the start; it merges with nothing


class Guidance:
    """Compiles for the vocabulary of one model, which is indexed when this is created."""

    def __init__(self, vocabulary: GrammarVocabulary, open_objects: bool = False) -> None:
        self._open_objects = open_objects
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_TokenizerAdapter(vocabulary)),
            n_vocab=vocabulary.vocab_size,
            eos_token=list(vocabulary.end_ids),
        )

    def compile(self, constraint: Constraint) -> GuidanceGrammar:
        """Thread-safe. Everything but the rewriting of a schema runs without the GIL."""
        try:
            matcher = self._compile(constraint)
            matcher.compute_bitmask()  # once, for all states that start from this matcher
            if matcher.is_error():
                raise _invalid(constraint.kind, _reason(matcher.get_error()))
            return GuidanceGrammar(matcher)
        except (RecursionError, UnicodeEncodeError) as error:
            why = "it is nested too deeply" if isinstance(error, RecursionError) else "it is not valid Unicode"
            raise _invalid(constraint.kind, why) from error

    def _compile(self, constraint: Constraint) -> llguidance.LLMatcher:
        match constraint.kind:
            case ConstraintKind.JSON:
                return self._compile_text(_json_grammar(ANY_OBJECT), constraint)
            case ConstraintKind.SCHEMA:
                options = SchemaOptions(closes_objects=constraint.strict or not self._open_objects)
                return self._compile_schema(parse_schema(constraint.text), options)
            case ConstraintKind.REGEX:
                return self._compile_text(llguidance.grammar_from("regex", constraint.text), constraint)
            case ConstraintKind.CHOICE:
                lark = "start: " + " | ".join(json.dumps(choice) for choice in constraint.choices)
                return self._compile_text(llguidance.grammar_from("lark", lark), constraint)
            case ConstraintKind.LARK:
                return self._compile_text(llguidance.grammar_from("lark", constraint.text), constraint)
            case ConstraintKind.EBNF:
                return self._compile_text(_from_ebnf(constraint.text), constraint)

    def _compile_schema(self, schema: Schema, options: SchemaOptions) -> llguidance.LLMatcher:
        def compiled(part: Schema) -> llguidance.LLMatcher:
            return self._matcher(_json_grammar(exact_schema(part, options)))

        def compile_error(part: Schema) -> str | None:
            try:
                return compiled(part).get_error() or None
            except InvalidRequest as error:
                return error.public

        matcher = compiled(schema)
        if not matcher.is_error():
            return matcher
        raise invalid_schema(locate_error(schema, compile_error, matcher.get_error()), _reason(matcher.get_error()))

    def _compile_text(self, grammar: str, constraint: Constraint) -> llguidance.LLMatcher:
        matcher = self._matcher(grammar)
        if matcher.is_error():
            raise _invalid(constraint.kind, _reason(matcher.get_error(), constraint.kind))
        return matcher

    def _matcher(self, grammar: str) -> llguidance.LLMatcher:
        return llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)


class GuidanceGrammar:
    """A matcher in its initial state."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    def start(self) -> GuidanceState:
        """A copy of the matcher, which takes microseconds."""
        return GuidanceState(self._matcher.deep_copy())


class GuidanceState:
    """A matcher and the number of tokens that it has consumed."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher
        self._num_tokens = 0

    @property
    def must_stop(self) -> bool:
        """Is the answer complete, so that nothing may follow?"""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def error(self) -> QuireError | None:
        """The error of a matcher that has failed. It stays failed, and would allow only the end token."""
        if not self._matcher.is_error():
            return None
        reason = _reason(self._matcher.get_error())
        return InvalidRequest(f"The grammar failed after {self._num_tokens} tokens: {reason}.", field="constraint")

    def accept(self, tokens: Sequence[int]) -> None:
        """Advance by these tokens."""
        self._num_tokens += len(tokens)
        self._matcher.consume_tokens(list(tokens))

    def forced_tokens(self) -> list[int]:
        """Only tokens that are certain: the last ones may still merge with what follows, and come next time."""
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens[: self._matcher.validate_tokens(tokens)] if tokens else tokens

    def fill_mask(self, bits: Array, drafts: Sequence[int] = ()) -> None:
        """Written into the rows of `bits` by native code, without the GIL."""
        matcher, at, row = self._matcher, bits.ctypes.data, bits.strides[0]
        matcher.unsafe_compute_mask_ptr(at, row)
        num_accepted = 0
        for draft in drafts:
            if not matcher.validate_tokens([draft]):
                break
            matcher.consume_token(draft)
            num_accepted += 1
            matcher.unsafe_compute_mask_ptr(at + num_accepted * row, row)
        if num_accepted:
            matcher.rollback(num_accepted)


class _TokenizerAdapter:
    """The interface that llguidance needs of a tokenizer. The text that it tokenizes is in the middle of an answer."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._tokenizer = vocabulary.tokenizer
        self.tokens = [vocabulary.tokenizer.token_bytes(token) for token in range(vocabulary.vocab_size)]
        self.special_token_ids = sorted(
            token for token in vocabulary.tokenizer.special_ids if token < vocabulary.vocab_size
        )
        self.eos_token_id = vocabulary.end_ids[0]
        self.bos_token_id = vocabulary.tokenizer.bos_id
        self._prefixes = [("", 0), (ANCHOR, len(self._encode(ANCHOR)))]
        self._longest = max(map(len, self.tokens))
        self._ids = {
            word: token for token, word in enumerate(self.tokens) if token not in vocabulary.tokenizer.special_ids
        }

    def __call__(self, text: str) -> list[int]:
        """Tokens of exactly this text: as the tokenizer encodes it, or else the longest match at each position."""
        encoded = text.encode()
        for prefix, length in self._prefixes:
            tokens = self._encode(prefix + text)[length:]
            if b"".join([self.tokens[token] for token in tokens]) == encoded:
                return tokens
        return self._greedy(encoded)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_bos=False, add_eos=False)

    def _greedy(self, text: bytes) -> list[int]:
        tokens: list[int] = []
        at = 0
        while at < len(text):
            ends = range(min(len(text), at + self._longest), at, -1)
            end = next((end for end in ends if text[at:end] in self._ids), None)
            if end is None:
                return []  # it has no tokens, so nothing can be forced here
            tokens.append(self._ids[text[at:end]])
            at = end
        return tokens


_KIND_NAMES = {
    ConstraintKind.JSON: "form",
    ConstraintKind.SCHEMA: "JSON schema",
    ConstraintKind.REGEX: "regular expression",
    ConstraintKind.CHOICE: "choice",
    ConstraintKind.LARK: "Lark grammar",
    ConstraintKind.EBNF: "EBNF grammar",
}


def _invalid(kind: ConstraintKind, why: str) -> InvalidRequest:
    return InvalidRequest(f"The {_KIND_NAMES[kind]} cannot be compiled: {why}.", field="constraint")


def _json_grammar(schema: Schema) -> str:
    text = json.dumps(schema, ensure_ascii=False)
    escapes = ESCAPES + "u" * ("\\u00" in text)  # needed for the control characters in a schema
    form = JSON_FORM | {"json_allowed_escapes": escapes}
    return llguidance.LLMatcher.grammar_from_json_schema(text, overrides=form)  # type: ignore[arg-type]


def _from_ebnf(text: str) -> str:
    """Convert GBNF to Lark. Unicode escapes are resolved here: the library's converter breaks those with zeros."""
    if text.count("::=") > MAX_EBNF_RULES:
        raise _invalid(ConstraintKind.EBNF, f"it has more than {MAX_EBNF_RULES} rules")
    try:
        return llguidance.grammar_from("ebnf", re.sub(r"\\(?:u([\da-fA-F]{4})|U([\da-fA-F]{8})|.)", _character, text))
    except ValueError as error:
        reason = str(error).removeprefix("Failed to convert the grammar from GBNF to Lark: ")
        raise _invalid(ConstraintKind.EBNF, reason) from error


def _character(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2]
    if code is None:
        return escape[0]
    value = int(code, 16)
    return f"\\x{value:02X}" if value < 0x80 else chr(min(value, 0x10FFFF))


def _reason(message: str, kind: ConstraintKind = ConstraintKind.SCHEMA) -> str:
    """The library's error in one line, reworded where that helps.

    A position is given as line and column only for Lark: other grammars are converted, and their positions are lost.
    """
    message = message.removesuffix("<non-verbose/>").strip()
    if match := re.match(r"Unimplemented keys: \[(.*)\]", message):
        return f"not supported: {match[1].replace(chr(34), '')}"
    if message.startswith("oneOf constraints are not supported"):
        return "oneOf is supported only if its branches exclude each other, which these may not; use anyOf"
    if message.startswith("NoExtensionBias"):
        return "no token of the model can come next"
    if message.startswith("panic"):
        return "it is too large"
    position = ""
    if match := re.match(r"(?:at )?(\d+)\((\d+)\): ", message):
        position = f"line {match[1]}, column {match[2]}: " if kind is ConstraintKind.LARK else ""
        message = message[match.end() :]
    if match := re.search(r"regex parse error:\n    .*\n    ( *)\^.*\nerror: (.*)", message):
        return f"{position}character {len(match[1]) + 1}: {match[2]}"
    message = message.partition("\n")[0]
    return position + (message if len(message) <= MAX_REASON else message[:MAX_REASON] + "…").rstrip(".")
