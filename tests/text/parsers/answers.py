"""What answers with calls are made of."""

from __future__ import annotations

from quire.text.parsers.style import ArgumentsPiece, CallStart, Piece

NASTY = r'{"path": "a}b{\"c\\", "text": "]}\n<\/b> \u00e9 日本 👍", "deep": {"x": [[{}], {"y": null}]}, "n": -1.5e3}'


def call(name: str, arguments: str = "{}") -> list[Piece]:
    return [CallStart(name), ArgumentsPiece(arguments)]


def written(name: str, arguments: str = "{}", key: str = "arguments") -> str:
    """A call as an object."""
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def marked(*objects: str) -> str:
    """In Hermes's marks."""
    return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in objects)


PARIS, OSLO = '{"city": "Paris"}', '{"city": "Oslo"}'
QUOTED = '"{\\"city\\": \\"Oslo\\"}"'
SPREAD = '{\n    "city" : "Oslo"\n  }'
