"""How many tokens of a text a model reads, and how many of a longer one are cut."""

from __future__ import annotations

from typing import NamedTuple

from quire.types.errors import InvalidRequest, TextTooLong
from quire.types.vectors import WHOLE_MODEL


class TokenRoom(NamedTuple):
    """The room for one text, or for one pair."""

    truncate: int | None  # cut longer texts to this many tokens, or to WHOLE_MODEL; None: they are an error
    limit: int  # what the model reads
    field: str  # of the client: what errors name

    @property
    def most(self) -> int:
        """The most tokens."""
        return self.limit if self.truncate in (None, WHOLE_MODEL) else min(self.truncate, self.limit)

    def excess(self, num_tokens: int, num_own: int) -> int:
        """Return how many tokens must be cut. `num_own` of them are the model's own, and stay."""
        if num_tokens <= self.most:
            return 0
        if self.truncate is None:
            raise TextTooLong(num_tokens, self.limit, self.field)
        if self.most <= num_own:
            raise InvalidRequest(
                f"truncate_prompt_tokens is {self.most}, and {num_own} tokens are the model's own: give {num_own + 1} "
                "or more.",
                field="truncate_prompt_tokens",
            )
        return num_tokens - self.most
