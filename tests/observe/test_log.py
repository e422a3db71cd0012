"""The format of the log."""

import io
import json
import logging

import pytest

from quire.config import ObserveConfig
from quire.observe.log import error_origin, start_logging

pytestmark = [pytest.mark.pure, pytest.mark.usefixtures("restored_logger")]


def test_a_json_line_carries_the_request_id_and_the_error():
    stream = io.StringIO()
    start_logging(ObserveConfig(log_format="json"), stream)
    try:
        raise ValueError("no such block")
    except ValueError:
        logging.getLogger("quire.engine").exception("step failed", extra={"request_id": "r1"})
    fields = json.loads(stream.getvalue())
    assert (fields["level"], fields["logger"], fields["message"], fields["request_id"]) == (
        "error",
        "quire.engine",
        "step failed",
        "r1",
    )
    assert "no such block" in fields["error"]


def test_lower_levels_are_not_logged_and_a_second_start_does_not_duplicate_lines():
    stream = io.StringIO()
    start_logging(ObserveConfig(log_level="warning"), io.StringIO())
    start_logging(ObserveConfig(log_level="warning"), stream)
    logging.getLogger("quire.cache").info("quiet")
    logging.getLogger("quire.cache").warning("loud")
    assert stream.getvalue().count("\n") == 1 and "WARNING quire.cache: loud" in stream.getvalue()


def test_error_origin_has_type_and_traceback_without_the_message():
    try:
        raise KeyError("text of a prompt")
    except KeyError as error:
        text = error_origin(error)
    assert text.startswith("KeyError\n") and __file__ in text
    assert "text of a prompt" not in text.replace('raise KeyError("text of a prompt")', "")
