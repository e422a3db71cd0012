"""Agents: a long list of tools that all share, then steps of an action and what came of it, so the prefix grows.

Tools stand in the text of the conversation, so a server needs to know nothing of them. Actions in the history are
written here, not those that the server chose: every engine gets the same prompts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from quire.bench.asks import Ask, Message, Session, says
from quire.bench.lengths import Lengths, parse_lengths
from quire.bench.words import WORDS, text


@dataclass(frozen=True, slots=True)
class Agent:
    """`input` is the task, `result` what a tool answers."""

    tools: int = 8
    tool: Lengths = field(default=parse_lengths("48"))
    steps: Lengths = field(default=parse_lengths("3-6"))
    input: Lengths = field(default=parse_lengths("32"))
    result: Lengths = field(default=parse_lengths("lognormal:64:0.6:400"))
    output: Lengths = field(default=parse_lengths("32"))

    def sessions(self, chance: random.Random) -> Iterator[Session]:
        """Without end."""
        names = chance.sample(WORDS, self.tools)
        tools = "\n".join(f"{name}(argument): {text(chance, self.tool.draw(chance))}" for name in names)
        system = says("system", f"Reach the goal step by step. You have these tools:\n{tools}")
        while True:
            history: list[Message] = [system, says("user", f"Goal: {text(chance, self.input.draw(chance))}")]
            asks = []
            for _ in range(self.steps.draw(chance)):
                max_tokens = self.output.draw(chance)
                asks.append(Ask(tuple(history), max_tokens))
                history.append(says("assistant", f"{chance.choice(names)}({text(chance, max_tokens)})"))
                history.append(says("user", f"Result: {text(chance, self.result.draw(chance))}"))
            yield Session(tuple(asks))


WORKLOAD = Agent
