"""Agents: a long shared list of tools, then steps of an action and its result, so the prefix grows.

Tools are described in the text of the conversation, so the server needs no tool support. The actions in the history are
generated here instead of taken from the server's answers: every engine gets the same prompts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from quire.bench.load.lengths import LengthDistribution, parse_lengths
from quire.bench.load.random_words import WORDS, random_words
from quire.bench.load.session import ChatMessage, LoadRequest, Session, chat_message


@dataclass(frozen=True, slots=True)
class AgentWorkload:
    """`input` is the length of the task, `result` that of a tool's result."""

    tools: int = 8
    tool: LengthDistribution = field(default=parse_lengths("48"))
    steps: LengthDistribution = field(default=parse_lengths("3-6"))
    input: LengthDistribution = field(default=parse_lengths("32"))
    result: LengthDistribution = field(default=parse_lengths("lognormal:64:0.6:400"))
    output: LengthDistribution = field(default=parse_lengths("32"))

    def sessions(self, rng: random.Random) -> Iterator[Session]:
        """Yield sessions without end."""
        names = rng.sample(WORDS, self.tools)
        tools = "\n".join(f"{name}(argument): {random_words(rng, self.tool.draw(rng))}" for name in names)
        system = chat_message("system", f"Reach the goal step by step. You have these tools:\n{tools}")
        while True:
            history: list[ChatMessage] = [
                system,
                chat_message("user", f"Goal: {random_words(rng, self.input.draw(rng))}"),
            ]
            requests = []
            for _ in range(self.steps.draw(rng)):
                max_tokens = self.output.draw(rng)
                requests.append(LoadRequest(tuple(history), max_tokens))
                history.append(chat_message("assistant", f"{rng.choice(names)}({random_words(rng, max_tokens)})"))
                history.append(chat_message("user", f"Result: {random_words(rng, self.result.draw(rng))}"))
            yield Session(tuple(requests))


WORKLOAD = AgentWorkload
