"""Read vLLM's log: requests, and with --enable-log-outputs their answers.

    INFO 04-14 17:12:57 [logger.py:39] Received request ID: prompt: '…', params: SamplingParams(…), prompt_token_ids: …
    INFO … Received request ID: params: SamplingParams(…), lora_request: None.     newer ones have the prompt in
    DEBUG … Request ID details: prompt: '…', prompt_token_ids: […], …              another line
    INFO … Generated response ID: output: '…', output_token_ids: […], finish_reason: stop

The log has no year, and its times are whole seconds.
"""

from __future__ import annotations

import ast
import re
from array import array
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

YEAR = 2000  # a leap year, so that all days exist; only differences matter
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
    """Yield the fields of each request's TracedRequest, in order of arrival."""
    requests: dict[str, dict[str, Any]] = {}
    arrivals: dict[str, float] = {}
    for line in lines:
        head = HEAD.search(line)
        if head is None:
            continue
        name, rest, time = head["id"], head["rest"], _seconds(head)
        fields = requests.setdefault(name, {})
        if head["what"] == "Generated response":
            ids = OUTPUT_TOKENS.search(rest)
            if ids is not None:
                fields["num_output"] = len(_ids(ids["ids"]))
            if name in arrivals:
                fields["seconds"] = time - arrivals[name]
            continue
        fields |= _prompt(rest)
        if head["what"] == "Received request":
            arrivals[name] = time
            limit = MAX_TOKENS.search(rest)
            fields |= {
                "time": time,
                "path": "/v1/chat/completions" if name.startswith(CHAT_ID) else "/v1/completions",
                "max_tokens": None if limit is None else int(limit["count"]),
                "form": "structured_outputs" if CONSTRAINED.search(rest) else None,
            }
    yield from (fields for fields in requests.values() if "time" in fields)


def _prompt(rest: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    text = PROMPT.search(rest)
    if text is not None and text["text"] != "None":
        fields["text"] = ast.literal_eval(text["text"])
    ids = TOKENS.search(rest)
    if ids is not None and ids["ids"]:
        fields["tokens"] = array("I", _ids(ids["ids"]))
        fields["num_prompt"] = len(fields["tokens"])
    return fields


def _ids(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part.strip()]


def _seconds(head: re.Match[str]) -> float:
    text = f"{YEAR}-{head['month']}-{head['day']}T{head['clock']}"
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
