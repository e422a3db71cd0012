"""Prompts stay out of the log: in every dialect, at every level, answered or refused."""

from __future__ import annotations

import json
import signal

import httpx
import pytest

from tests.serve.processes.test_process import SMALL, serving

pytestmark = pytest.mark.e2e

SECRET = "xyzzy-plugh-4711"
MESSAGES = [{"role": "user", "content": f"My password is {SECRET}."}]
REQUESTS = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2, "stop": [f"no {SECRET}"]},
    "/v1/completions": {"prompt": SECRET, "max_tokens": 2},
    "/v1/responses": {"input": SECRET, "max_output_tokens": 2},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/api/chat": {"messages": MESSAGES, "options": {"num_predict": 2}},
    "/api/generate": {"prompt": SECRET, "options": {"num_predict": 2}},
    "/tokenize": {"prompt": SECRET},
    "/v1/cache/explain": {"messages": MESSAGES},
}
TOOL = {"type": "function", "function": {"name": "keep", "parameters": {"properties": {"it": {"const": SECRET}}}}}
ANSWERED = [  # with the secret itself, whole or streamed, as text and as a call
    *REQUESTS.items(),
    ("/v1/completions", {"prompt": "Say", "max_tokens": 30, "guided_choice": [SECRET]}),
    ("/v1/completions", {"prompt": "Say", "max_tokens": 3, "guided_choice": [SECRET], "stream": True, "logprobs": 2}),
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 60, "tools": [TOOL], "tool_choice": "required"}),
]
REFUSED = [
    ("/v1/chat/completions", {"messages": [{"role": SECRET, "content": SECRET}]}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": SECRET}),
    ("/api/chat", {"messages": MESSAGES, "format": SECRET}),
    ("/v1/completions", {"prompt": SECRET, SECRET: 1}),
    ("/v1/completions", {"prompt": SECRET * 1000}),
    ("/v1/completions", {"prompt": "Say", "regex": f"({SECRET}"}),
    ("/v1/completions", {"prompt": "Say", "ebnf": f"root ::= {SECRET} ("}),
    ("/v1/completions", {"prompt": "Say", "json_schema": {"type": SECRET}}),
    ("/v1/completions", {"prompt": "Say", "json_schema": {"properties": {SECRET: {"pattern": f"({SECRET}"}}}}),
]


def test_no_prompt_is_in_the_log_of_any_dialect_and_every_line_about_a_request_has_its_id(model_file):
    with serving(model_file, *SMALL, "--log-format", "json", "--log-level", "debug") as server:
        asked = [*ANSWERED, *REFUSED]
        for number, (path, body) in enumerate(asked):
            whole, head = {"model": server.model, **body}, {"x-request-id": f"r-{number}"}
            answer = httpx.post(f"{server.url}{path}", json=whole, headers=head, timeout=60, trust_env=False)
            assert answer.status_code == (200 if number < len(ANSWERED) else 400), answer.text
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
    accesses = [said for line in server.lines if line.startswith("{") and (said := json.loads(line)).get("path")]
    assert [(said["request_id"], said["path"]) for said in accesses] == [
        (f"r-{number}", path) for number, (path, _) in enumerate(asked)
    ]
    assert not any(SECRET in line for line in server.lines)
