"""The sentences of /v1/cache/explain."""

from __future__ import annotations

import pytest

from quire.cache.explain import Cause
from quire.engine.messages import Explained
from quire.serve.admin.cache import ENDINGS, explanation

pytestmark = pytest.mark.pure


class Words:
    def decode(self, tokens: list[int]) -> str:
        return f"word {tokens[0]}"


def test_every_cause_has_a_sentence():
    assert set(ENDINGS) == set(Cause)


@pytest.mark.parametrize(
    "num_hit, cause, sentence",
    [
        (
            4096,
            "no_checkpoint",
            "904 more are in the prefix tree, but the last state that was kept is at position 4096.",
        ),
        (0, "no_checkpoint", "5000 more are in the prefix tree, but no state was kept there."),
        (4096, "window_evicted", "904 more are in the prefix tree, but blocks of a window before them were evicted."),
    ],
)
def test_a_model_with_states_or_windows_resumes_before_the_end_of_what_is_cached(num_hit, cause, sentence):
    reply = explanation(Explained(6000, num_hit, cause, 7, num_in_tree=5000), Words())
    assert reply["explanation"] == f"{num_hit} of 6000 tokens are cached; {sentence}"
    assert (reply["num_hit"], reply["num_in_tree"], reply["cause"], reply["given_token"]) == (num_hit, 5000, cause, 7)
