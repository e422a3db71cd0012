"""Writes responses: the events of a stream, or the whole object.

An answer is a row of items: thoughts, text, calls. At most one is open; it is closed when another kind begins or the
answer ends. Every event is numbered, and the last ones of an item repeat all of it, so its pieces are remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from quire.serve.dialects.contract import Reply
from quire.serve.dialects.openai.replies import EVENT_STREAM, encode, scores
from quire.serve.dialects.responses import response_object as objects
from quire.serve.dialects.responses.response_object import ResponseForm, Status
from quire.types.answer import Usage
from quire.types.chat import Answered, Ending, Event, Finish, ReasoningDelta, ScoredToken, TextDelta, ToolDelta
from quire.types.errors import QuireError

Kind = Literal["message", "reasoning", "function_call"]
_PREFIXES: dict[Kind, str] = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_DELTAS: dict[Kind, str] = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
}


@dataclass(slots=True)
class _Open:
    """The current item. Only the writer changes it."""

    kind: Kind
    id: str
    index: int  # its place in the output
    call: tuple[str, str] = ("", "")  # id and name
    pieces: list[str] = field(default_factory=list)
    scored: list[ScoredToken] = field(default_factory=list)
    head: bytes = b""  # of an event with more of it, up to the text

    @property
    def place(self) -> dict[str, Any]:
        """Its position, as its events have it."""
        where = {"item_id": self.id, "output_index": self.index}
        return where if self.kind == "function_call" else {**where, "content_index": 0}

    @property
    def part(self) -> dict[str, Any]:
        """Its content so far."""
        text = "".join(self.pieces)
        return objects.output_text_part(text, self.scored) if self.kind == "message" else objects.thought_part(text)

    def item(self, status: Status) -> dict[str, Any]:
        """The whole item."""
        if self.kind == "function_call":
            return objects.call_item(self.id, status, self.call, "".join(self.pieces))
        content = () if status == "in_progress" else (self.part,)
        made = objects.message_item if self.kind == "message" else objects.reasoning_item
        return made(self.id, status, content)


class ResponseWriter:
    """Writes one answer."""

    content_type = EVENT_STREAM

    def __init__(self, form: ResponseForm, reply: Reply) -> None:
        self._form = form
        self._reply = reply
        self._next = 0  # the number of the next event
        self._output: list[dict[str, Any]] = []  # items that are whole
        self._open: _Open | None = None
        self._ending = Ending.CANCELLED

    def open(self, usage: Usage) -> bytes:
        """Two events with the object, without output."""
        whole = objects.response_object(self._form, self._reply, "in_progress", ())
        return self._say("response.created", response=whole) + self._say("response.in_progress", response=whole)

    def write(self, events: Sequence[Event]) -> bytes:
        """The events of items that begin, continue or end."""
        return self._event(events[0]) if len(events) == 1 else b"".join(map(self._event, events))

    def close(self, usage: Usage) -> bytes:
        """The whole object, in an event whose name says how it ended."""
        whole = objects.finished_object(self._whole(), self._ending, usage)
        name = "completed" if whole["status"] == "completed" else "incomplete"
        return self._say(f"response.{name}", response=whole)

    def fail(self, error: QuireError) -> bytes:
        """The object so far, with the error."""
        if self._open is not None:
            self._output.append(self._open.item("incomplete"))
        return self._say("response.failed", response=objects.failed_object(self._whole(), error))

    def whole(self, answered: Answered) -> bytes:
        """The answer as one object."""
        choice = answered.choices[0]
        items = list(objects.output_items(choice, self._reply, self._form.logprobs))
        whole = objects.response_object(self._form, self._reply, "in_progress", items)
        return encode(objects.finished_object(whole, choice.ending, answered.usage))

    def _event(self, event: Event) -> bytes:
        match event:
            case TextDelta(_, text, _, scored):
                scored = scored if self._form.logprobs else ()
                return self._begun("message") + self._more(text, scored) if text or scored else b""
            case ReasoningDelta(_, text):
                return self._begun("reasoning") + self._more(text) if text else b""
            case ToolDelta(_, _, arguments, call_id, name):
                begun = b"" if name is None else self._begin("function_call", (call_id or "", name))
                return begun + self._more(arguments) if arguments else begun
            case Finish(_, ending):
                self._ending = ending
                begun = b"" if self._output or self._open else self._begin("message")
                return begun + self._end(objects.item_status(ending))
        return b""

    def _begun(self, kind: Kind) -> bytes:
        """Nothing, if an item of this kind is open."""
        return b"" if self._open is not None and self._open.kind == kind else self._begin(kind)

    def _begin(self, kind: Kind, call: tuple[str, str] = ("", "")) -> bytes:
        written = self._end("completed")
        index = len(self._output)
        self._open = item = _Open(kind, f"{_PREFIXES[kind]}_{self._reply.id}_{index}", index, call)
        delta = f"{_DELTAS[kind]}.delta"
        fixed = {"type": delta, **item.place} | ({"logprobs": ()} if kind == "message" else {})
        item.head = b"event: %b\ndata: %b" % (delta.encode(), encode(fixed)[:-1])
        added = self._say("response.output_item.added", output_index=index, item=item.item("in_progress"))
        if kind != "function_call":
            added += self._say("response.content_part.added", **item.place, part=item.part)
        return written + added

    def _more(self, text: str, scored: Sequence[ScoredToken] = ()) -> bytes:
        item = self._open
        if item is None:
            return b""
        item.pieces.append(text)
        if scored:
            item.scored.extend(scored)
            return self._say(f"{_DELTAS[item.kind]}.delta", **item.place, logprobs=scores(scored), delta=text)
        number, self._next = self._next, self._next + 1
        return b'%b,"delta":%b,"sequence_number":%d}\n\n' % (item.head, encode(text), number)

    def _end(self, status: Status) -> bytes:
        """Close the open item, if there is one."""
        item, self._open = self._open, None
        if item is None:
            return b""
        whole = item.item(status)
        self._output.append(whole)
        name = f"{_DELTAS[item.kind]}.done"
        if item.kind == "function_call":
            done = self._say(name, **item.place, name=item.call[1], arguments=whole["arguments"])
        else:
            part = whole["content"][0]
            more = {"logprobs": part["logprobs"]} if item.kind == "message" else {}
            done = self._say(name, **item.place, text=part["text"], **more)
            done += self._say("response.content_part.done", **item.place, part=part)
        return done + self._say("response.output_item.done", output_index=item.index, item=whole)

    def _whole(self) -> dict[str, Any]:
        return objects.response_object(self._form, self._reply, "in_progress", self._output)

    def _say(self, name: str, /, **fields: Any) -> bytes:
        number, self._next = self._next, self._next + 1
        data = encode({"type": name, "sequence_number": number, **fields})
        return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
