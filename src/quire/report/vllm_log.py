"""vLLM's log of requests: what came in, and with --enable-log-outputs what came of it.

    INFO 04-14 17:12:57 [logger.py:39] Received request ID: prompt: '…', params: SamplingParams(…), prompt_token_ids: …
    INFO … Received request ID: params: SamplingParams(…), lora_request: None.     newer ones have the prompt in
    DEBUG … Request ID details: prompt: '…', prompt_token_ids: […], …              a line of its own
    INFO … Generated response ID: output: '…', output_token_ids: […], finish_reason: stop

The log has no year, and seconds are its finest time.
"""

from __future__ import annotations

import ast
import re
from array import array
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

YEAR = 2000  # any: only differences matter; a leap year, so that all days exist
HEAD = re.compile(
    r"(?P<month>\d\d)-(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d)\b.*?"
    r"(?P<what>Received request|Generated response|Request) (?P<id>\S+?)(?: \([^)]*\))?(?: details)?: (?P<rest>.*)"
)
PROMPT = re.compile(r"prompt: (?P<text>None|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")
TOKENS = re.compile(r"prompt_token_ids: \[(?P<ids>[\d, ]*)\]")
OUTPUT_TOKENS = re.compile(r"output_token_ids: \[(?P<ids>[\d, ]*)\]")
MAX_TOKENS = re.compile(r"max_tokens=(?P<count>\d+)")
CONSTRAINED = re.compile(r"(?:guided_decoding|structured_outputs)=(?!None)")
CHAT_ID = "chatcmpl"


def read_vllm_lines(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The facts of each request, in the order in which they came."""
    found: dict[str, dict[str, Any]] = {}
    began: dict[str, float] = {}
    for line in lines:
        head = HEAD.search(line)
        if head is None:
            continue
        name, rest, when = head["id"], head["rest"], _seconds(head)
        facts = found.setdefault(name, {})
        if head["what"] == "Generated response":
            ids = OUTPUT_TOKENS.search(rest)
            if ids is not None:
                facts["num_output"] = len(_ids(ids["ids"]))
            if name in began:
                facts["seconds"] = when - began[name]
            continue
        facts |= _prompt(rest)
        if head["what"] == "Received request":
            began[name] = when
            limit = MAX_TOKENS.search(rest)
            facts |= {
                "time": when,
                "path": "/v1/chat/completions" if name.startswith(CHAT_ID) else "/v1/completions",
                "max_tokens": None if limit is None else int(limit["count"]),
                "form": "structured_outputs" if CONSTRAINED.search(rest) else None,
            }
    yield from (facts for facts in found.values() if "time" in facts)


def _prompt(rest: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    text = PROMPT.search(rest)
    if text is not None and text["text"] != "None":
        facts["text"] = ast.literal_eval(text["text"])
    ids = TOKENS.search(rest)
    if ids is not None and ids["ids"]:
        facts["tokens"] = array("I", _ids(ids["ids"]))
        facts["num_prompt"] = len(facts["tokens"])
    return facts


def _ids(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part.strip()]


def _seconds(head: re.Match[str]) -> float:
    said = f"{YEAR}-{head['month']}-{head['day']}T{head['clock']}"
    return datetime.fromisoformat(said).replace(tzinfo=UTC).timestamp()
