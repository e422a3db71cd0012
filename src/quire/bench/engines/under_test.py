"""The engines that a user names on the command line: each is a URL, or a command that starts a server."""

from __future__ import annotations

from dataclasses import dataclass

from quire.types.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class EngineUnderTest:
    """A URL or a command. With both, the command starts the server at the URL."""

    name: str
    url: str = ""
    command: str = ""
    model: str = ""

    @property
    def source(self) -> str:
        """The command or the URL, for reports."""
        return self.command or self.url


def parse_engine(text: str) -> EngineUnderTest:
    """Parse NAME=URL, NAME=URL#MODEL or NAME=COMMAND."""
    name, equals, source = text.partition("=")
    if not equals or not name or not source or " " in name or "://" in name:
        raise InvalidRequest(f"{text!r} is not an engine: write NAME=URL or NAME='COMMAND'.", field="engine")
    if source.startswith(("http://", "https://")):
        url, _, model = source.partition("#")
        return EngineUnderTest(name, url=url, model=model)
    return EngineUnderTest(name, command=source)
