"""The request log: lengths and times in clear, prompts as marks."""

from __future__ import annotations

import json
import stat
from array import array

import pytest

from quire.config import BadSetting
from quire.observe.marks import marks_of
from quire.observe.record import Record
from quire.observe.request_log import RequestLog, open_request_log
from quire.report.trace import read_trace
from quire.types.request import SamplingParams

pytestmark = pytest.mark.pure


def record(*prompts: tuple[int, ...], **facts: object) -> Record:
    made = Record("r-1", "POST", "/v1/completions", "openai", at=1e9, arrived=10.0, status=200, ended=10.5)
    made.prompts, made.model, made.sampling = prompts, "m", SamplingParams(max_tokens=4, stop=("a secret",))
    for name, fact in facts.items():
        setattr(made, name, fact)
    return made


def test_marks_are_equal_for_equal_prefixes_only():
    left, right = marks_of((1, 2, 3, 3, 9), b"s"), marks_of((1, 2, 4, 3, 9), b"s")
    assert left[:2] == right[:2] and not set(left[2:]) & set(right[2:]) and left[2] != left[3]
    assert marks_of((1, 2, 3), b"other") != left[:3] and marks_of((), b"s") == array("I")


def test_the_log_can_be_read_as_a_trace(tmp_path):
    path = tmp_path / "requests.jsonl"
    with open_request_log(str(path)) as (log,):
        log(record((5, 6, 7), (5, 6), salt="alice/", session="talk", prompt_tokens=5, output_tokens=4, cached_tokens=2))
        log(record((5, 6, 7), first_token=10.2, at=1e9 + 3))
        log(record())  # it ran no model
    first, second, third = read_trace(path).requests
    assert first.tokens == third.tokens and first.tokens[:2] == second.tokens
    assert (first.tenant == second.tenant, third.tenant, third.time, third.first_token) == (True, "", 3.0, 0.2)
    assert (first.num_prompt, first.num_output, first.max_tokens, first.seconds) == (3, 2, 4, 0.5)


def test_names_tokens_and_texts_are_not_in_the_log(tmp_path):
    path = tmp_path / "requests.jsonl"
    with open_request_log(str(path)) as (log,):
        log(record((70001, 70002), salt="alice/", session="talk", prompt="my prompt"))
    text = path.read_text()
    assert not [word for word in ("alice", "talk", "70001", "my prompt", "a secret") if word in text]


def test_the_files_are_private_and_the_secret_survives_a_restart(tmp_path):
    path = tmp_path / "requests.jsonl"
    for _ in range(2):
        with open_request_log(str(path)) as (log,):
            log(record((1, 2, 3)))
    first, second = (json.loads(line)["marks"] for line in path.read_text().splitlines())
    assert first == second
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
    assert modes == {"requests.jsonl": 0o600, "requests.jsonl.secret": 0o600}


def test_the_log_can_be_rotated_while_it_is_written(tmp_path):
    path = tmp_path / "requests.jsonl"
    log = RequestLog(path)
    path.rename(tmp_path / "old")
    log(record((1,)))
    log.close()
    assert len(path.read_text().splitlines()) == 1 and not (tmp_path / "old").read_text()


def test_an_unwritable_path_is_refused(tmp_path):
    (tmp_path / "requests.jsonl.secret").write_bytes(b"short")
    for path in (tmp_path / "requests.jsonl", tmp_path / "nowhere" / "x"):
        with pytest.raises(BadSetting, match="cannot be written"):
            RequestLog(path)


def test_without_a_path_there_is_no_observer():
    with open_request_log(None) as observers:
        assert observers == ()
