"""What the scheduler knows of drafters, and the most that a device verifies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from quire.scheduler.request_state import RequestState

MAX_DRAFTS = 32  # tokens of one draft
MIN_GAIN = 1.06  # of tokens per second: less is within the error of the estimates


class DraftTokens(Protocol):
    """A proposal: see quire.spec."""

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def strength(self) -> int: ...


class ProposesDrafts(Protocol):
    """A drafter: see quire.spec."""

    @property
    def name(self) -> str: ...
    @property
    def priors(self) -> tuple[float, ...]: ...
    def propose(self, texts: Sequence[RequestState], limit: int) -> Sequence[DraftTokens]: ...
    def forget(self, sample_id: str) -> None: ...


class ModelStepTime(Protocol):
    """How long a step of a drafter's model took."""

    @property
    def num_tokens(self) -> int: ...
    @property
    def seconds(self) -> float: ...


class ProposesByModel(ProposesDrafts, Protocol):
    """A drafter that runs a model: see quire.spec."""

    @property
    def max_drafts(self) -> int: ...
    def backlogs(self, texts: Sequence[RequestState]) -> Sequence[int | None]: ...
    def read(self, texts: Sequence[RequestState], num_tokens: int) -> None: ...
    def take_times(self) -> Sequence[ModelStepTime]: ...


class DraftLimits(NamedTuple):
    """The most that a device verifies in a step, and what a rejected draft costs."""

    row_drafts: int = MAX_DRAFTS  # of one text
    step_drafts: int = 1 << 20  # of all texts
    step_tokens: int = 1 << 20
    has_states: bool = False  # of recurrent layers: a text with a rejected token computes accepted ones again
    budget: int = 1 << 20  # tokens of a step in all, prompts included
