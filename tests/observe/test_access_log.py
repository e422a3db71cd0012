"""The access log: a line for each request, with its id and without its text."""

from __future__ import annotations

import io
import json
import logging

import pytest

from quire.config import ObserveConfig
from quire.observe.access_log import log_access
from quire.observe.log import start_logging
from quire.observe.record import Record
from quire.text.errors import RejectedMessages
from quire.types.errors import InvalidRequest, Overloaded
from quire.types.request import SamplingParams

pytestmark = [pytest.mark.pure, pytest.mark.usefixtures("restored_logger")]


def record(path: str = "/v1/completions", **facts: object) -> Record:
    made = Record("r-1", "POST", path, "openai", at=1e9, arrived=10.0, status=200, ended=10.5)
    for name, fact in facts.items():
        setattr(made, name, fact)
    return made


def logged(record: Record, **settings: str) -> str:
    stream = io.StringIO()
    start_logging(ObserveConfig(**settings), stream)
    log_access(logging.getLogger("quire.access"), record)
    return stream.getvalue()


ANSWERED = {"model": "m", "submitted": 10.1, "first_token": 10.2, "prompt_tokens": 7, "output_tokens": 3}


def test_a_text_line_has_times_tokens_model_key_and_id():
    line = logged(record(**ANSWERED, key="alice", cached_tokens=2))
    cost = "200 500 ms, first token 200 ms, 7+3 tokens (2 cached), model m, key alice, id r-1"
    assert line.endswith(f"INFO quire.access: POST /v1/completions {cost}\n")


@pytest.mark.parametrize(
    "error, expected",
    [
        (Overloaded("Try again.", 3.0), "overloaded: Try again."),
        (
            InvalidRequest("n is 500; at most 128 are allowed.", "n"),
            "invalid_request: n is 500; at most 128 are allowed.",
        ),
        (InvalidRequest("role is 'my \"secret'; choose 'user'.", "role"), "invalid_request: role is '…'."),
        (InvalidRequest("Unknown: my-secret 1", "my-secret 1"), "invalid_request: Unknown: …"),
        (InvalidRequest("The regex cannot be followed: my secret.", "constraint"), "The regex cannot be followed."),
        (RejectedMessages("my secret"), "rejected_messages"),
    ],
)
def test_an_error_has_its_code_and_message_without_the_clients_text(error, expected):
    refused = record(status=error.status)
    refused.fail(error)
    line = logged(refused)
    assert expected in line and "secret" not in line and line.count("\n") == 1
    assert json.loads(logged(refused, log_format="json"))["error"] == error.code


def test_a_json_line_has_every_fact_as_a_field():
    fields = json.loads(logged(record(**ANSWERED, traceparent="00-aa-bb-01"), log_format="json"))
    facts = {
        "request_id": "r-1",
        "status": 200,
        "seconds": 0.5,
        "first_token_seconds": 0.2,
        "traceparent": "00-aa-bb-01",
    }
    assert facts.items() <= fields.items() and fields["prompt_tokens"] == 7
    assert "error" not in fields and "client_id" not in fields and "arrived" not in fields


def test_a_prompt_is_logged_only_if_it_is_in_the_record():
    sampling = SamplingParams(stop=("my secret",))
    for log_format in ("text", "json"):
        assert "my secret" not in logged(record(**ANSWERED, sampling=sampling), log_format=log_format)
        assert "my secret" in logged(record(**ANSWERED, prompt="my secret"), log_format=log_format)


def test_a_path_cannot_forge_a_line():
    line = logged(record("/v1\n12:00:00 INFO quire.access: POST /forged 200"))
    assert line.count("\n") == 1 and "/v1\\n12:00:00" in line


def test_a_disconnected_client_and_a_refused_one_are_distinguished():
    assert " gone " in logged(record(status=0))
    refused = json.loads(logged(record(status=503, error="overloaded"), log_format="json"))
    assert (refused["status"], refused["error"]) == (503, "overloaded")


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
def test_probes_are_logged_only_if_they_fail(path):
    assert logged(record(path)) == "" and logged(record(path), log_level="debug")
    assert logged(record(path, status=503, error="model_loading"))
