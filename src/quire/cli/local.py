"""A model in this process, as `quire run` uses it: answers in pieces of thought and text."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
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
        asked = self.llm.stream(
            prompt, sampling, constraint=form.constraint, chat_template_kwargs=form.template_variables
        )
        with closing(asked) as deltas:
            for delta in deltas:
                yield Piece(delta.text, delta.reasoning, delta.usage)

    def close(self) -> None:
        """Give back the memory."""
        self.llm.close()
