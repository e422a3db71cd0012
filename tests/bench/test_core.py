"""`quire bench core` runs; its speed is not asserted."""

import pytest

from quire.bench import core

pytestmark = pytest.mark.pure


def test_every_figure_of_the_core_can_be_measured():
    figures = [
        core.plan_and_commit(num_requests=20, num_steps=20),
        core.match_prompt(num_blocks=1000, num_matches=20),
        core.million_blocks(num_blocks=2000, chain=8),
    ]
    assert all(figure.value >= 0 and figure.note for figure in figures)
    assert figures[0].value > 0 and figures[1].value > 0
