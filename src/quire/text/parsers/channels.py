"""Thoughts of gpt-oss: an answer is a row of messages, each with a channel, and those on one channel are thoughts.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>

The prompt has begun the first message with <|start|>assistant, or has written even more of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.text.parsers.lark import literal, mark_rule, text_until
from quire.types.errors import InvalidRequest

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
ANALYSIS, COMMENTARY, FINAL = "analysis", "commentary", "final"
ROLE = "assistant"
# The template writes the effort as it is; these are the levels that the models were trained with.
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}


class Channels:
    """The messages of an answer. All marks are special tokens."""

    marks = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)

    def is_in(self, template: str) -> bool:
        """Does a model with this chat template write such messages?"""
        return all(mark in template for mark in (START, CHANNEL, MESSAGE))

    def begun_in(self, prompt: str) -> str:
        """What the rendered prompt has written of the first message after its role."""
        return prompt.rpartition(START + ROLE)[2] if START + ROLE in prompt else ""

    def text_opening(self, begun: str) -> str:
        """What must follow for the next word to be text that the user sees."""
        if MESSAGE not in begun:
            return f"{CHANNEL}{FINAL}{MESSAGE}".removeprefix(begun)
        return "" if f"{CHANNEL}{FINAL}" in begun else f"{END}{START}{ROLE}{CHANNEL}{FINAL}{MESSAGE}"

    def known_variables(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Variables of the template, with one of the levels of effort that the models have."""
        effort = variables.get("reasoning_effort")
        if effort is None:
            return {name: value for name, value in variables.items() if name != "reasoning_effort"}
        if effort not in _EFFORTS:
            raise InvalidRequest(
                f"reasoning_effort is {effort!r}; this model always thinks: use low, medium or high.",
                field="reasoning_effort",
            )
        return {**variables, "reasoning_effort": _EFFORTS[effort]}

    def rules(self, begun: str, tokens: Mapping[str, int]) -> str:
        """Lark rules for the messages before a call, the first of them named `thought`. There may be none."""
        opening = f"{mark_rule(CHANNEL, tokens)} {literal(ANALYSIS)} {mark_rule(MESSAGE, tokens)}"
        rules = [
            f"thought: {'thinking ' if MESSAGE in begun else ''}({opening} thinking)*",
            f"thinking: thinking_text {mark_rule(START, tokens)} {literal(ROLE)}",
            text_until("thinking_text", END, tokens),
        ]
        return "\n".join(rules)


CHANNELS = Channels()
