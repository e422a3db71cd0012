"""The jinja2 environment for chat templates: the same language as `transformers` gives them, inside bounds.

A template comes with a model's file, so it is not trusted. The sandbox keeps it from reaching Python; the budget limits
its time and memory: steps are counted where generated code calls the environment, and operators and calls that can make
big values out of small ones are checked first.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_TEXT = 32 * 1024 * 1024  # characters: some 8 M tokens, more than any context
MAX_STEPS = 2_000_000  # some seconds; a conversation of 1,000 messages takes 10,000 to 50,000
MAX_COUNT = 100_000  # the largest number that a call may be given: a width, a repeat, the end of a range

_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(?:\d{5}|\*)|:[^}]*(?:\d{5}|\{)")


class TemplateTooBig(Exception):
    """The template ran past its budget."""


class TemplateRefusal(jinja2.TemplateError):
    """The template called `raise_exception`. The message is for the sender of the conversation."""


class _Steps(threading.local):
    """Steps of the current rendering in this thread; templates are shared between threads."""

    count = 0


class _Checked(CodeGenerator):
    """Compiles `a ~ b` to a call of the environment, so that its size is checked."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.join((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training. It is replaced by its content."""

    tags = {"generation"}  # noqa: RUF012 (so the base class declares it)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _PlainNamespace(Namespace):
    """`namespace()` without names that give access to Python's internals."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__()
        for name, value in dict(*args, **named).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace has no attribute {name!r}")
        super().__setitem__(name, value)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """One for the process. Call `begin` before each rendering."""

    code_generator_class = _Checked
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self._steps = _Steps()
        self.filters["tojson"] = _tojson
        for name in ("center", "indent", "format"):
            self.filters[name] = _narrow(self.filters[name])
        del self.globals["lipsum"]  # writes any amount of filler
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "namespace": _PlainNamespace,
            "dict": lambda *args, **named: dict(*args, **named),  # noqa: PLW0108 (the type itself has attributes)
            "range": self._range,
        }

    def begin(self) -> None:
        self._steps.count = 0

    def spend(self, steps: int = 1) -> None:
        self._steps.count += steps
        if self._steps.count > MAX_STEPS:
            raise TemplateTooBig(f"it takes more than {MAX_STEPS:,} steps")

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Lists may get one element more or less: templates for Kimi-K2 do that, and their lists are copies."""
        return super().is_safe_attribute(obj, attr, value) or (type(obj) is list and attr in ("append", "pop"))

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.spend()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.spend()
        return super().getitem(obj, argument)

    def call(self, __context: Any, __obj: Any, *args: Any, **named: Any) -> Any:
        self.spend()
        text = getattr(__obj, "__self__", None)
        if isinstance(text, (str, bytes)):
            _check_counts((*args, *named.values()))
            if getattr(__obj, "__name__", "") == "replace" and len(args) >= 2:
                _check_size(len(text) + text.count(args[0]) * len(args[1]))
        return super().call(__context, __obj, *args, **named)

    def wrap_str_format(self, value: Any) -> Any:
        """Called by jinja2 before `str.format`."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(str(value.__self__))
        return wrapped

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self.spend()
        if operator == "*":
            for many, count in ((left, right), (right, left)):
                if isinstance(many, (str, bytes, list, tuple)) and isinstance(count, int):
                    _check_size(len(many) * count)
            if isinstance(left, int) and isinstance(right, int):
                _check_size(left.bit_length() * right.bit_length())
        elif operator == "+" and isinstance(left, (str, bytes, list, tuple)) and hasattr(right, "__len__"):
            _check_size(len(left) + len(right))
        elif operator == "**":
            _check_counts((left, right))
        elif operator == "%" and isinstance(left, (str, bytes)):
            _check_format(str(left))
        return super().call_binop(context, operator, left, right)

    def join(self, parts: Iterable[Any]) -> str:
        """The `~` operator."""
        self.spend()
        texts = [str(part) for part in parts]
        _check_size(sum(map(len, texts)))
        return "".join(texts)

    def _range(self, *bounds: int) -> range:
        numbers = range(*bounds)
        if len(numbers) > MAX_COUNT:
            raise TemplateTooBig(f"it makes a range of {len(numbers):,} numbers")
        self.spend(len(numbers))
        return numbers


def _check_size(size: int) -> None:
    if size > MAX_TEXT:
        raise TemplateTooBig(f"it makes a value of {size:,} elements")


def _check_counts(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_COUNT:
            raise TemplateTooBig(f"it calls with the number {value:,}")


def _check_format(template: str) -> None:
    """Refuse wide formats: they make text of any size."""
    if _WIDE_FORMAT.search(template):
        raise TemplateTooBig("it formats with a width that is too large or not written out")


def _narrow(function: Any) -> Any:
    """Wrap a filter: refuse large numbers and wide formats."""

    @functools.wraps(function)  # keeps jinja2's mark of the filter's extra arguments
    def bounded(*args: Any, **named: Any) -> Any:
        _check_counts((*args, *named.values()))
        if function.__name__ == "do_format":
            _check_format(str(args[0]))
        return function(*args, **named)

    return bounded


def _raise_exception(message: str) -> None:
    raise TemplateRefusal(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Plain JSON. jinja2's own filter escapes for HTML, which no model was trained on."""
    if isinstance(indent, int):
        _check_counts((indent,))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
