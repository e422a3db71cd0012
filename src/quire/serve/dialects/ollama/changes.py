"""Ollama's endpoints that change the stored models: create, copy, delete, pull, push.

Known fields that are not supported are refused; as everywhere in this dialect, unknown ones are ignored.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from quire.serve.dialects.body import DOTS, read_body
from quire.serve.dialects.contract import DecodedChange
from quire.serve.dialects.ollama.body import Loose, MessageBody
from quire.types.errors import InvalidRequest
from quire.types.library import Copy, Create, Delete, Pull, Push, Step
from quire.types.message import Message
from quire.types.parameters import check_parameters
from quire.types.preset import Preset

NDJSON = "application/x-ndjson"
SUCCESS = b'{"status":"success"}'
ROLES = {"system": "system", "user": "user", "assistant": "assistant"}
DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")


class NamedBody(Loose):
    """/api/delete, /api/pull, /api/push."""

    model: str | None = None
    name: str | None = None  # older clients' name
    stream: bool | None = None
    insecure: bool | None = None  # the name's scheme says how its registry is spoken to


class CopyBody(Loose):
    """/api/copy."""

    source: str
    destination: str


class CreateBody(NamedBody):
    """/api/create."""

    from_: str | None = msgspec.field(default=None, name="from")
    files: dict[str, str] | None = None
    adapters: dict[str, str] | None = None
    template: str | None = None
    system: str | None = None
    license: str | list[str] | None = None
    parameters: dict[str, Any] | None = None
    messages: list[MessageBody] | None = None
    quantize: str | None = None
    modelfile: str | None = None
    renderer: str | None = None
    parser: str | None = None


_REFUSED = {
    "quantize": "Weights are kept as they are.",
    "modelfile": "Say what is in it: from, system, template, parameters, messages, license.",
    "renderer": "It names code inside Ollama; give a template.",
    "parser": "It names code inside Ollama; calls are found by the template's marks.",
}


def decode_create(body: bytes) -> DecodedChange:
    """Decode a request to create a model."""
    request = read_body(body, CreateBody, spelling=DOTS)
    for name, instead in _REFUSED.items():
        if getattr(request, name):
            raise InvalidRequest(f"{name}: Not supported. {instead}", field=name)
    if not request.from_ and not request.files:
        raise InvalidRequest("from: Give it, or files", field="from")
    given = request.parameters or {}
    licences = [request.license] if isinstance(request.license, str) else request.license or []
    preset = Preset(
        template=request.template or "",
        system=request.system or "",
        parameters=check_parameters({name: value for name, value in given.items() if value is not None}),
        messages=tuple(_message(message, f"messages.{place}") for place, message in enumerate(request.messages or ())),
        licences=tuple(filter(None, licences)),
    )
    files = {name: _digest(given, f"files.{name[:64]}") for name, given in (request.files or {}).items()}
    create = Create(_name(request), request.from_ or "", files, preset, has_adapters=bool(request.adapters))
    return _with_progress(create, request)


def decode_copy(body: bytes) -> DecodedChange:
    """Decode a request for a second name."""
    request = read_body(body, CopyBody, spelling=DOTS)
    return DecodedChange(Copy(request.source, request.destination))


def decode_delete(body: bytes) -> DecodedChange:
    """Decode a request to delete a model."""
    return DecodedChange(Delete(_name(read_body(body, NamedBody, spelling=DOTS))))


def decode_pull(body: bytes) -> DecodedChange:
    """Decode a request to fetch a model."""
    request = read_body(body, NamedBody, spelling=DOTS)
    return _with_progress(Pull(_name(request)), request)


def decode_push(body: bytes) -> DecodedChange:
    """Decode a request to send a model to a registry."""
    request = read_body(body, NamedBody, spelling=DOTS)
    return _with_progress(Push(_name(request)), request)


def _with_progress(change: Create | Pull | Push, request: NamedBody) -> DecodedChange:
    if request.stream is False:
        return DecodedChange(change, done=SUCCESS)
    return DecodedChange(change, True, _line, SUCCESS + b"\n", NDJSON)


def _line(step: Step) -> bytes:
    if step.num_bytes is None:
        return msgspec.json.encode({"status": step.what}) + b"\n"
    fields = {"status": step.what, "digest": f"sha256:{step.digest}" if step.digest else ""}
    return msgspec.json.encode(fields | {"total": step.num_bytes, "completed": step.num_done}) + b"\n"


def _name(request: NamedBody) -> str:
    if not (name := request.model or request.name):
        raise InvalidRequest("model: Field required", field="model")
    return name


def _message(given: MessageBody, at: str) -> Message:
    role = given.role.lower()
    if role not in ROLES:
        raise InvalidRequest(f"{at}.role: Must be one of {', '.join(ROLES)}", field=f"{at}.role")
    if given.images or given.tool_calls:
        raise InvalidRequest(f"{at}: A model brings messages of text alone", field=at)
    return Message(role, given.content or "")  # type: ignore[arg-type]


def _digest(given: str, at: str) -> str:
    found = DIGEST.fullmatch(given)
    if found is None:
        raise InvalidRequest(f"{at}: {given[:80]!r} is no digest, sha256: and 64 hex digits", field=at)
    return found[1]
