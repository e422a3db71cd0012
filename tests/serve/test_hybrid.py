"""A server with a hybrid model: usage, the explanation of a hit, and its memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quire.serve.http.app import all_dialects
from tests.devices.cpu.programs import HAS_NATIVE
from tests.engine.spelled import save_spelled
from tests.models.toys import make_toy
from tests.serve.running import Running, running

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")]

PREFIX = "A quire is four sheets of paper, folded once, so that they make eight leaves. "


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = save_spelled(make_toy("lfm2").torch_model, tmp_path_factory.mktemp("lfm2"))
    with running(folder, all_dialects(), num_blocks=60, max_context=512) as started:
        yield started


def complete(server: Running, prompt: str) -> tuple[str, int]:
    """The text of a greedy answer, and how many tokens of its prompt were cached."""
    body = {"model": "toy", "prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    answer = server.http.post("/v1/completions", json=body).json()
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_usage_and_explanation_tell_where_a_prompt_resumes(server: Running) -> None:
    def explain(prompt: str) -> dict[str, object]:
        answer: dict[str, object] = server.http.post("/v1/cache/explain", json={"prompt": prompt}).json()
        return answer

    first, second, third = (PREFIX + ending for ending in ("one", "two", "!!!"))
    text, cached = complete(server, first)
    assert cached == 0 and complete(server, first) == (text, len(first) - 1)
    where = explain(second)  # the tree has the prefix, but no state was kept where the prompts part
    assert (where["num_hit"], where["num_in_tree"], where["cause"]) == (0, len(PREFIX), "no_checkpoint")
    assert complete(server, second)[1] == 0  # it keeps one
    where = explain(third)
    assert where["num_hit"] == where["num_in_tree"] == len(PREFIX)
    assert complete(server, third)[1] == len(PREFIX)


def test_a_server_tells_the_states_of_its_model(server: Running) -> None:
    model = server.http.get("/props").json()["models"]["toy"]
    assert model["num_states"] > 16 and model["state_bytes"] == 768 and model["windows"] == []
    counts = server.http.get("/v1/cache").json()["models"]["toy"]
    assert counts["num_states"] == model["num_states"] and counts["num_checkpoints"] > 0
    assert 'quire_states{model="toy",state="checkpoint"}' in server.http.get("/metrics").text
    (listed,) = server.http.get("/api/ps").json()["models"]
    assert 0 < listed["size_used"] <= listed["size"]
