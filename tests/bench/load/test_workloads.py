"""Workloads: equal for equal seeds, and shaped by their options."""

from __future__ import annotations

import json
import random
from itertools import islice

import pytest

from quire.bench.load.session import LoadRequest, Session
from quire.bench.load.workload_spec import describe_workloads, parse_workload, workload_names
from quire.report.trace import CHAT
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure

SEEDED = [name for name in workload_names() if name != "trace"]


def sessions(spec: str, count: int = 50, seed: int = 1, **lengths: str) -> list[Session]:
    return list(islice(parse_workload(spec, lengths).sessions(random.Random(seed)), count))


def prompt(request: LoadRequest) -> str:
    return "\n".join(f"{message['role']}: {message['content']}" for message in request.messages)


def test_all_workloads_are_found_and_described():
    assert {"unique", "shared", "chat", "rag", "agent", "structured", "mixed", "trace"} <= set(workload_names())
    assert all(about and options for _, about, options in describe_workloads())


@pytest.mark.parametrize("name", SEEDED)
def test_a_seed_decides_every_prompt(name):
    assert sessions(name) == sessions(name) != sessions(name, seed=2)
    for session in sessions(name):
        assert session.requests and all(request.max_tokens >= 1 and request.messages for request in session.requests)
        assert all(request.messages[-1]["role"] == "user" for request in session.requests)


def test_unique_prompts_begin_differently_and_have_the_requested_length():
    requests = [session.requests[0] for session in sessions("unique", input="20", output="9")]
    assert {len(request.messages[0]["content"].split()) for request in requests} == {20}
    assert {request.max_tokens for request in requests} == {9}
    assert len({tuple(request.messages[0]["content"].split()[:4]) for request in requests}) == len(requests)


def test_shared_prompts_begin_with_one_of_the_groups_as_often_as_the_hit_rate_says():
    created = sessions("shared:prefix=30,groups=3,hit=0.8,input=5", count=1000)
    begins = [" ".join(session.requests[0].messages[0]["content"].split()[:30]) for session in created]
    counts = {begin: begins.count(begin) for begin in set(begins)}
    groups = [count for count in counts.values() if count > 1]
    assert len(groups) == 3
    assert sum(groups) / 1000 == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize("name", ["chat", "agent"])
def test_every_turn_resends_the_history(name):
    several = [session for session in sessions(name) if len(session.requests) > 1]
    assert several
    for session in several:
        for before, after in zip(session.requests, session.requests[1:], strict=False):
            assert after.messages[: len(before.messages)] == before.messages
            assert after.messages[len(before.messages)]["role"] == "assistant"
    systems = {session.requests[0].messages[0]["content"] for session in sessions(name)}
    assert len(systems) == 1


def test_rag_retrieves_some_documents_more_often_than_others():
    prompts = [prompt(session.requests[0]) for session in sessions("rag:documents=10,found=2,skew=1.5", count=400)]
    counts = [sum(f"Document {place}: " in text for text in prompts) for place in range(1, 11)]
    assert sum(counts) == 800
    assert counts[0] > 2 * counts[4] > 0


def test_structured_requests_have_a_schema():
    requests = [session.requests[0] for session in sessions("structured")]
    assert all(request.expects_json for request in requests)
    kinds = {request.extra_fields["response_format"]["json_schema"]["name"] for request in requests}
    assert kinds == {"person", "verdict", "order"}


def test_mixed_has_its_parts_in_their_shares():
    created = sessions("mixed:of=unique*3+structured", count=1000)
    share = sum(session.requests[0].expects_json for session in created) / 1000
    assert share == pytest.approx(0.25, abs=0.04)


def test_a_trace_is_replayed_at_its_recorded_times(tmp_path):
    body = {"model": "theirs", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    lines = [
        {"time": 1000.5, "path": CHAT, "body": body},
        {"time": 1000.0, "path": CHAT, "body": body, "usage": {"prompt_tokens": 3, "completion_tokens": 17}},
    ]
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    first, second = sessions(f"trace={file}")
    assert (first.start, second.start) == (0.0, 0.5)
    assert first.requests[0].body == {**body, "max_tokens": 17, "ignore_eos": True}  # the recorded length
    assert second.requests[0].body == body
    assert sessions(f"trace:file={file},speed=2")[1].start == 0.25


def test_a_trace_of_hashes_keeps_shared_prefixes(tmp_path):
    lines = [
        {"timestamp": 0, "input_length": 1024, "output_length": 7, "hash_ids": [1, 2]},
        {"timestamp": 1000, "input_length": 1024, "output_length": 8, "hash_ids": [1, 3]},
    ]
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    one, two = (session.requests[0] for session in sessions(f"trace={file}"))
    words = [request.messages[0]["content"].split() for request in (one, two)]
    assert [len(each) for each in words] == [1024, 1024]
    assert words[0][:512] == words[1][:512] and words[0][512:] != words[1][512:]
    assert (one.max_tokens, two.max_tokens) == (7, 8)


@pytest.mark.parametrize(
    "spec, message",
    [
        ("uniqe", "There is no workload 'uniqe'. There are: agent, chat"),
        ("unique:size=3", "unique has no option 'size'. It has: input, output"),
        ("shared:groups=many", "groups=many: int is needed"),
        ("unique:input=x", "is not a length"),
        ("mixed:of=nothing", "There is no workload 'nothing'"),
    ],
)
def test_an_invalid_spec_is_refused_with_the_valid_choices(spec, message):
    with pytest.raises(InvalidRequest) as refused:
        sessions(spec)
    assert message in str(refused.value)
