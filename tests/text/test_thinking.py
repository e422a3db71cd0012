"""Which switches for thinking a chat template reads."""

from __future__ import annotations

import pytest

from quire.text.thinking import thinking_switches

pytestmark = pytest.mark.pure

MESSAGES = "{% for message in messages %}{{ message.content }}{{ message.thinking }}{% endfor %}"


@pytest.mark.parametrize(
    "source, switches",
    [
        (MESSAGES, (False, False)),
        (
            MESSAGES + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}",
            (True, False),
        ),
        (MESSAGES + "{% if thinking %}<think>{% endif %}", (True, False)),
        ("{% set reasoning_effort = reasoning_effort or 'medium' %}{{ reasoning_effort }}" + MESSAGES, (False, True)),
        ("{% set enable_thinking = true %}{{ enable_thinking }}" + MESSAGES, (False, False)),
        ("{{ range .Messages }}{{ .Thinking }}{{ end }}", (False, False)),
        ("{{ range .Messages }}{{ .Content }}{{ end }}{{ if and $.IsThinkSet $.Think }}/think{{ end }}", (True, False)),
        ("{{ .Prompt }}{{ .ThinkLevel }}", (False, True)),
        ("{% if %}", (False, False)),
        ("", (False, False)),
    ],
)
def test_a_template_is_read_for_its_switches(source, switches):
    assert thinking_switches(source) == switches
