"""A model loaded in this process, with its answer split into reasoning and text."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from quire.cli.model.answer_options import AnswerOptions
from quire.cli.model.chat_model import AnswerPart, Messages, TemplateInfo
from quire.types.request import SamplingParams


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A `ChatModel` over an engine in this process."""

    llm: Any  # quire.engine.llm.LLM

    @property
    def template(self) -> TemplateInfo:
        """The model's chat template."""
        template: TemplateInfo = self.llm.template
        return template

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """The model's own defaults for sampling parameters."""
        defaults: Mapping[str, Any] = self.llm.sampling_defaults
        return defaults

    def stream(
        self, prompt: str | Messages, sampling: SamplingParams, options: AnswerOptions
    ) -> Generator[AnswerPart, None, None]:
        """Yield the answer in parts. Closing the generator cancels the request."""
        variables = options.template_variables
        splitter = self._splitter(prompt, sampling, variables) if options.constraint is None else None
        stream = self.llm.stream(prompt, sampling, constraint=options.constraint, chat_template_kwargs=variables)
        with closing(stream) as deltas:
            for delta in deltas:
                if splitter is None:
                    yield AnswerPart(delta.text, "", delta.usage)
                else:
                    yield from splitter.split(delta)

    def close(self) -> None:
        """Release the engine's memory."""
        self.llm.close()

    def _splitter(self, prompt: str | Messages, sampling: SamplingParams, variables: Any) -> _ReasoningSplitter | None:
        """Return a splitter if the template has reasoning marks. Most have none, and import nothing for it."""
        if isinstance(prompt, str) or not any("think" in text.lower() for text in self.template.sources.values()):
            return None
        parsers = import_module("quire.text.parsers.reasoning")
        reasoning = parsers.reasoning_of(self.template.sources.values())
        if reasoning is None or self.llm.tokenizer is None:
            return None
        begins = reasoning.begins_in(self.llm.template.render(prompt, variables=variables))
        rest = import_module("quire.text.parsers.compose").PlainParser()
        parser = parsers.ThoughtParser(reasoning, rest, begins)
        return _ReasoningSplitter(self.llm.tokenizer, tuple(sampling.stop), parser, reasoning)


class _ReasoningSplitter:
    """Splits the tokens of one answer into reasoning and text.

    The marks around reasoning may be special tokens, which the engine's text omits. So the text is decoded again from
    the tokens, marks included.
    """

    def __init__(self, tokenizer: Any, stop: tuple[str, ...], parser: Any, reasoning: Any) -> None:
        self._parser = parser
        marks = tokenizer.tokens_named(reasoning.marks).values()
        detokenize = import_module("quire.text.detokenize")
        self._detokenizer = detokenize.Detokenizer(tokenizer, stop, shown=tuple(marks))
        self._thought = import_module("quire.text.parsers.style").Thought

    def split(self, delta: Any) -> Iterator[AnswerPart]:
        """Yield the parts that an engine's delta adds."""
        parts = self._parser.push(self._detokenizer.push(delta.tokens))
        if delta.finish is not None:
            parts += [*self._parser.push(self._detokenizer.flush()), *self._parser.flush()]
        for part in parts:
            yield AnswerPart("", part.text) if isinstance(part, self._thought) else AnswerPart(part.text)
        if delta.usage is not None:
            yield AnswerPart("", "", delta.usage)
