"""Loading models, several models, and too many requests for one."""

from __future__ import annotations

import threading
import time

import pytest

from quire.serve.residency.shelf import ModelEntry
from tests.serve.running import Running, link_or_copy, running

pytestmark = pytest.mark.e2e

BODY = {"prompts": ["Once upon a time"], "max_tokens": 3, "temperature": 0}


def complete(server: Running, **more):
    return server.http.post("/plain/complete", json=BODY | more)


def test_requests_wait_for_a_loading_model_while_the_server_answers(model_file):
    may_load = threading.Event()

    def locate():
        assert may_load.wait(60)
        return model_file

    with running([ModelEntry("toy", locate)], waits=False, load_patience=60) as server:
        assert server.http.get("/health").status_code == 200
        early = server.http.get("/ready")
        assert early.status_code == 503 and int(early.headers["retry-after"]) >= 1
        assert server.http.get("/plain/models").json() == {"models": ["toy"]}
        assert server.http.get("/plain/loaded").json() == {"models": []}
        assert complete(server, model="nobody").status_code == 404
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(complete(server)))
        waiting.start()
        time.sleep(0.2)
        assert not answers
        may_load.set()
        waiting.join()
        assert answers[0].status_code == 200 and server.http.get("/ready").status_code == 200


def test_a_model_that_loads_too_slowly_is_refused_with_retry_after(model_file):
    may_load = threading.Event()

    def locate():
        assert may_load.wait(60)
        return model_file

    with running([ModelEntry("toy", locate)], waits=False, load_patience=0.1) as server:
        refused = complete(server)
        assert (refused.status_code, refused.json()["plain_error"]) == (503, "model_loading")
        assert int(refused.headers["retry-after"]) >= 1
        may_load.set()


def test_two_models_are_distinguished_by_their_names(model_file, tmp_path):
    other = tmp_path / "other.gguf"
    link_or_copy(model_file, other)
    wanted = [ModelEntry("one", lambda: model_file, ("both", "first")), ModelEntry("two", lambda: other, ("both",))]
    with running(wanted, num_blocks=50) as server:
        assert server.http.get("/plain/models").json() == {"models": ["one", "two"]}
        for name, model in (("one", "one"), ("first", "one"), ("two", "two")):
            server.records.clear()
            assert complete(server, model=name).status_code == 200
            assert [record.model for record in server.records] == [model]
        for name in ("", "both", "three"):
            refused = complete(server, model=name)
            assert refused.status_code == 404 and "one or two" in refused.json()["message"]
        text = server.http.get("/metrics").text
        assert 'vllm:generation_tokens_total{model_name="one"} 6.0' in text
        assert 'vllm:generation_tokens_total{model_name="two"} 3.0' in text


def test_requests_beyond_the_queue_are_refused_with_retry_after(model_file):
    with running(model_file, max_rows=1, max_waiting=1) as server:
        statuses: list[int] = []
        retries: list[str | None] = []

        def ask() -> None:
            response = complete(server, max_tokens=60, ignore_eos=True, stream=True)
            statuses.append(response.status_code)
            retries.append(response.headers.get("retry-after"))

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) == {200, 503}
        assert all((status == 503) == (retry is not None) for status, retry in zip(statuses, retries, strict=True))
        assert complete(server).status_code == 200
