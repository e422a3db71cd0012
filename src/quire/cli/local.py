"""A model in this process, as `quire run` uses it: answers in pieces of thought and text."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from quire.cli.engine import Messages, Piece, Template
from quire.cli.form import Form
from quire.types.request import SamplingParams


@dataclass(frozen=True, slots=True)
class LocalModel:
    """An engine of our own."""

    llm: Any  # quire.engine.llm.LLM

    @property
    def template(self) -> Template:
        """The model's chat template."""
        template: Template = self.llm.template
        return template

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """The parameters that hold where the user gives none."""
        defaults: Mapping[str, Any] = self.llm.sampling_defaults
        return defaults

    def stream(self, prompt: str | Messages, sampling: SamplingParams, form: Form) -> Generator[Piece, None, None]:
        """The answer, piece by piece. Closing it cancels the request."""
        variables = form.template_variables
        splitter = self._splitter(prompt, sampling, variables) if form.constraint is None else None
        asked = self.llm.stream(prompt, sampling, constraint=form.constraint, chat_template_kwargs=variables)
        with closing(asked) as deltas:
            for delta in deltas:
                if splitter is None:
                    yield Piece(delta.text, "", delta.usage)
                else:
                    yield from splitter.pieces(delta)

    def close(self) -> None:
        """Give back the memory."""
        self.llm.close()

    def _splitter(self, prompt: str | Messages, sampling: SamplingParams, variables: Any) -> _Splitter | None:
        """Splits thoughts off, if the template knows thoughts. Most do not, and import nothing for it."""
        if isinstance(prompt, str) or not any("think" in text.lower() for text in self.template.sources.values()):
            return None
        parsers = import_module("quire.text.parsers.reasoning")
        reasoning = parsers.reasoning_of(self.template.sources.values())
        if reasoning is None or self.llm.tokenizer is None:
            return None
        begins = reasoning.begins_in(self.llm.template.render(prompt, variables=variables))
        rest = import_module("quire.text.parsers.compose").PlainParser()
        parser = parsers.ThoughtParser(reasoning, rest, begins)
        return _Splitter(self.llm.tokenizer, tuple(sampling.stop), parser, reasoning)


class _Splitter:
    """Tokens of one answer to thoughts and text. The marks around thoughts may be special tokens, which an engine's
    text leaves out: hence the text is made again from the tokens, with the marks in it."""

    def __init__(self, tokenizer: Any, stop: tuple[str, ...], parser: Any, reasoning: Any) -> None:
        self._parser = parser
        marks = tokenizer.tokens_named(reasoning.marks).values()
        detokenize = import_module("quire.text.detokenize")
        self._detokenizer = detokenize.Detokenizer(tokenizer, stop, shown=tuple(marks))
        self._thought = import_module("quire.text.parsers.style").Thought

    def pieces(self, delta: Any) -> Iterator[Piece]:
        """What an engine's delta adds."""
        parts = self._parser.push(self._detokenizer.push(delta.tokens))
        if delta.finish is not None:
            parts += [*self._parser.push(self._detokenizer.flush()), *self._parser.flush()]
        for part in parts:
            yield Piece("", part.text) if isinstance(part, self._thought) else Piece(part.text)
        if delta.usage is not None:
            yield Piece("", "", delta.usage)
