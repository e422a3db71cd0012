"""Streamed text wrapped at words."""

from __future__ import annotations

import pyte
import pytest

from quire.cli.terminal.word_wrap import WordWrap, char_width, text_width

pytestmark = pytest.mark.pure

PROSE = "The quick brown fox jumps over the lazy dog, and the dog (who is asleep) does not notice it at all.\n\nSo."


def shown(text: str, columns: int, step: int) -> list[str]:
    """Return the lines on a terminal for a text that is written `step` characters at a time."""
    screen, wrap = pyte.Screen(columns, 40), WordWrap(lambda: columns)
    stream = pyte.Stream(screen)
    for start in range(0, len(text), step):
        stream.feed(wrap.push(text[start : start + step]).replace("\n", "\r\n"))
    return [line.rstrip() for line in "\n".join(screen.display).rstrip().split("\n")]


@pytest.mark.parametrize("columns", [21, 30, 79])
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_lines_break_between_words_wherever_the_pieces_are_cut(columns, step):
    lines = shown(PROSE, columns, step)
    assert max(map(text_width, lines)) < columns
    assert " ".join(" ".join(lines).split()) == " ".join(PROSE.split())
    assert all(word in PROSE.split() for line in lines for word in line.split())


def test_a_word_longer_than_the_line_is_cut_at_the_margin():
    link = "https://example.com/" + "a" * 50
    assert "".join(shown(f"See {link} now", 30, 2)).replace(" ", "") == f"See{link}now"


def test_wide_characters_count_twice_and_break_anywhere():
    lines = shown("春眠不覺曉處處聞啼鳥夜來風雨聲花落知多少", 21, 1)
    assert max(len(line.replace(" ", "")) for line in lines) <= 10
    assert [char_width(each) for each in "a春e\u0301\u200d"] == [1, 2, 1, 0, 0]


def test_code_keeps_its_lines():
    code = "x = " + " + ".join(str(number) for number in range(20))
    wrap = WordWrap(lambda: 30)
    assert f"\n{code}\n" in wrap.push(f"Look:\n```python\n{code}\n```\n")
    assert "\n" in wrap.push("and here is a line of prose that is too long")


def test_a_wider_terminal_is_used_at_once():
    widths = iter([30, 100, 100])
    wrap = WordWrap(lambda: next(widths))
    assert wrap.push("five words in a row").count("\n") == 0
    assert wrap.push(" and five words more in a row").count("\n") == 0
