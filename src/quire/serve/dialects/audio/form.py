"""Reads bodies of the type multipart/form-data: fields, and one file."""

from __future__ import annotations

import re
from typing import NamedTuple

from quire.types.errors import InvalidRequest

MAX_PARTS, MAX_FIELD = 64, 1 << 16
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,200})"|([^\s;,]{1,200}))')
_NAME = re.compile(r';\s*name=(?:"([^"]{1,100})"|([^\s;,"]{1,100}))')
_FILE = re.compile(r";\s*filename\*?=")


class Form(NamedTuple):
    """The parts of a body."""

    fields: dict[str, list[str]]
    files: dict[str, bytes]


def read_form(content_type: str | None, body: bytes) -> Form:
    """Read the parts of a body. An error says what is wrong with it."""
    found = _BOUNDARY.search(content_type or "")
    if found is None or not (content_type or "").lower().startswith("multipart/form-data"):
        raise InvalidRequest(
            "Send the audio as multipart/form-data with a boundary: the file in `file`, the model's name in `model`.",
            field="file",
        )
    mark = b"--" + (found[1] or found[2]).encode("latin-1")
    pieces = (b"\r\n" + body).split(b"\r\n" + mark)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise InvalidRequest("The body ends before its last boundary: it is not whole.", field="file")
    if len(pieces) > MAX_PARTS + 2:
        raise InvalidRequest(f"The body has {len(pieces) - 2} parts; at most {MAX_PARTS} are allowed.", field="file")
    form = Form({}, {})
    for piece in pieces[1:-1]:
        head, separator, content = piece.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        headers = head.decode("utf-8", "replace")
        name = _NAME.search(headers)
        if not separator or name is None:
            raise InvalidRequest("A part of the body has no name.", field="file")
        _add(form, name[1] or name[2], content, is_file=_FILE.search(headers) is not None)
    return form


def _add(form: Form, name: str, content: bytes, *, is_file: bool) -> None:
    if is_file:
        if name in form.files:
            raise InvalidRequest(f"{name} was given twice.", field=name)
        form.files[name] = content
        return
    if len(content) > MAX_FIELD:
        raise InvalidRequest(f"{name} has {len(content)} bytes, {MAX_FIELD} is the limit.", field=name)
    try:
        form.fields.setdefault(name, []).append(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name} is not text in UTF-8.", field=name) from None
