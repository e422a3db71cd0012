"""Conversations: every turn resends the whole history.

The answers in the history are generated here instead of taken from the server: every engine gets the same prompts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from quire.bench.load.lengths import LengthDistribution, parse_lengths
from quire.bench.load.random_words import random_words
from quire.bench.load.session import ChatMessage, LoadRequest, Session, chat_message


@dataclass(frozen=True, slots=True)
class ChatWorkload:
    """A shared system prompt, then turns of a question and an answer."""

    system: LengthDistribution = field(default=parse_lengths("64"))
    turns: LengthDistribution = field(default=parse_lengths("2-6"))
    input: LengthDistribution = field(default=parse_lengths("lognormal:40:0.8:400"))
    output: LengthDistribution = field(default=parse_lengths("64"))

    def sessions(self, rng: random.Random) -> Iterator[Session]:
        """Yield sessions without end."""
        system = chat_message("system", random_words(rng, self.system.draw(rng)))
        while True:
            history: list[ChatMessage] = [system]
            requests = []
            for _ in range(self.turns.draw(rng)):
                history.append(chat_message("user", random_words(rng, self.input.draw(rng))))
                max_tokens = self.output.draw(rng)
                requests.append(LoadRequest(tuple(history), max_tokens))
                history.append(chat_message("assistant", random_words(rng, max_tokens)))
            yield Session(tuple(requests))


WORKLOAD = ChatWorkload
