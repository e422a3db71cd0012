"""Runs a part of the benchmark in a process of its own, so that its memory is its own and nothing is warm from others.

The part is a function of one of this package's modules. Its arguments and its answer travel as JSON; dataclasses come
back as the type that the caller names.
"""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from quire.types.errors import QuireError

Answer = TypeVar("Answer")
KILOBYTE = 1024  # as /proc counts


class PartFailed(QuireError):
    """A part of the benchmark ended without an answer. Its own words are on standard error."""

    code = "part_failed"


class _Order(msgspec.Struct):
    module: str
    name: str
    arguments: list[msgspec.Raw]


class _Report(msgspec.Struct):
    answer: msgspec.Raw
    peak_bytes: int | None


def run_part(part: Callable[..., Any], answer: type[Answer], *arguments: Any) -> tuple[Answer, int | None]:
    """What the part answers, and the most memory that its process had; None where the system does not tell."""
    order = _Order(part.__module__, part.__name__, [msgspec.Raw(msgspec.json.encode(each)) for each in arguments])
    command = [sys.executable, "-m", "quire.bench.child"]
    done = subprocess.run(command, input=msgspec.json.encode(order), stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise PartFailed(f"{part.__module__}.{part.__name__} ended with exit status {done.returncode}.")
    report = msgspec.json.decode(done.stdout, type=_Report)
    return msgspec.json.decode(report.answer, type=answer), report.peak_bytes


def peak_bytes(process: int | None = None) -> int | None:
    """Peak resident memory of a process, None: of this one. The count of `getrusage` begins with the parent's."""
    try:
        lines = Path(f"/proc/{process or 'self'}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * KILOBYTE for line in lines if line.startswith("VmHWM:")), None)


def main() -> None:
    """In the child: take the order, do it, report."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=_Order)
    part = getattr(import_module(order.module), order.name)
    kinds = [each.annotation for each in inspect.signature(part, eval_str=True).parameters.values()]
    arguments = [msgspec.json.decode(each, type=kind) for each, kind in zip(order.arguments, kinds, strict=True)]
    answer = asyncio.run(part(*arguments)) if inspect.iscoroutinefunction(part) else part(*arguments)
    report = _Report(msgspec.Raw(msgspec.json.encode(answer)), peak_bytes())
    sys.stdout.buffer.write(msgspec.json.encode(report))


if __name__ == "__main__":
    main()
