"""A model loaded in this process, with its answer split into reasoning and text."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
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
        stream = self.llm.stream(prompt, sampling, constraint=options.constraint, chat_template_kwargs=variables)
        with closing(stream) as deltas:
            for delta in deltas:
                yield AnswerPart(delta.text, delta.reasoning, delta.usage)

    def close(self) -> None:
        """Release the engine's memory."""
        self.llm.close()
