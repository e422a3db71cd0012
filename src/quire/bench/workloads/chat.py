"""Conversations: every turn sends all that was said before again.

The answers in the history are written here, not those that the server gave: so every engine gets the same prompts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from quire.bench.asks import Ask, Message, Session, says
from quire.bench.lengths import Lengths, parse_lengths
from quire.bench.words import text


@dataclass(frozen=True, slots=True)
class Chat:
    """A system prompt that all share, and turns of a question and an answer."""

    system: Lengths = field(default=parse_lengths("64"))
    turns: Lengths = field(default=parse_lengths("2-6"))
    input: Lengths = field(default=parse_lengths("lognormal:40:0.8:400"))
    output: Lengths = field(default=parse_lengths("64"))

    def sessions(self, chance: random.Random) -> Iterator[Session]:
        """Without end."""
        system = says("system", text(chance, self.system.draw(chance)))
        while True:
            history: list[Message] = [system]
            asks = []
            for _ in range(self.turns.draw(chance)):
                history.append(says("user", text(chance, self.input.draw(chance))))
                max_tokens = self.output.draw(chance)
                asks.append(Ask(tuple(history), max_tokens))
                history.append(says("assistant", text(chance, max_tokens)))
            yield Session(tuple(asks))


WORKLOAD = Chat
