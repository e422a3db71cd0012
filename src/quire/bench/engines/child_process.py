"""Run a function in a child process, so that its memory is measured alone and nothing is warm from other functions.

The function is one of this package's modules. Arguments and result are passed as JSON; dataclasses are decoded to the
function's annotations and to the result type that the caller names.
"""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

import msgspec

from quire.bench.machine.processes import peak_bytes
from quire.types.errors import QuireError

Result = TypeVar("Result")


class ChildFailed(QuireError):
    """The child ended without a result. Its error is on standard error."""

    code = "child_failed"


class _Call(msgspec.Struct):
    module: str
    function: str
    arguments: list[msgspec.Raw]


class _Reply(msgspec.Struct):
    result: msgspec.Raw
    peak_bytes: int | None


def run_in_child(function: Callable[..., Any], result_type: type[Result], *arguments: Any) -> tuple[Result, int | None]:
    """Return the function's result, and the child's peak memory in bytes. None: unknown."""
    encoded = [msgspec.Raw(msgspec.json.encode(each)) for each in arguments]
    call = _Call(function.__module__, function.__name__, encoded)
    command = [sys.executable, "-m", "quire.bench.engines.child_process"]
    done = subprocess.run(command, input=msgspec.json.encode(call), stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise ChildFailed(f"{function.__module__}.{function.__name__} ended with exit status {done.returncode}.")
    reply = msgspec.json.decode(done.stdout, type=_Reply)
    return msgspec.json.decode(reply.result, type=result_type), reply.peak_bytes


def main() -> None:
    """Run in the child: read the call, make it, and write the reply."""
    call = msgspec.json.decode(sys.stdin.buffer.read(), type=_Call)
    function = getattr(import_module(call.module), call.function)
    types = [each.annotation for each in inspect.signature(function, eval_str=True).parameters.values()]
    arguments = [msgspec.json.decode(each, type=type_) for each, type_ in zip(call.arguments, types, strict=True)]
    is_async = inspect.iscoroutinefunction(function)
    result = asyncio.run(function(*arguments)) if is_async else function(*arguments)
    reply = _Reply(msgspec.Raw(msgspec.json.encode(result)), peak_bytes())
    sys.stdout.buffer.write(msgspec.json.encode(reply))


if __name__ == "__main__":
    main()
