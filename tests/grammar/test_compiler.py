"""Compiling in threads: once for equal constraints, within limits, and without endangering the process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("llguidance")

from quire.config import GrammarConfig
from quire.grammar.compiler import NUM_THREADS, Compiler, Job
from quire.grammar.grammar import Backend, Grammar, GrammarUnavailable
from quire.types.errors import InvalidRequest, Overloaded, QuireError
from quire.types.request import Constraint, ConstraintKind
from tests.grammar.schemas import cases

pytestmark = pytest.mark.pure

CONFIG = GrammarConfig()


def regex(text: str) -> Constraint:
    return Constraint(ConstraintKind.REGEX, text)


class Held:
    """A backend that compiles a constraint when it is let go on, and counts."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.compiled: list[str] = []

    def compile(self, constraint: Constraint) -> Any:
        if constraint.text.startswith("slow"):
            self.let_go.wait(60)
        if constraint.text == "broken":
            raise ZeroDivisionError
        self.compiled.append(constraint.text)
        return constraint.text


@pytest.fixture
def held() -> Iterator[Held]:
    backend = Held()
    yield backend
    backend.let_go.set()


@pytest.fixture
def make() -> Iterator[Callable[..., Compiler]]:
    made: list[Compiler] = []

    def compiler_of(backend: Backend, **settings: Any) -> Compiler:
        made.append(Compiler(lambda: backend, replace(CONFIG, **settings)))
        return made[-1]

    yield compiler_of
    for each in made:
        each.close()


def result(compiler: Compiler, job: Job, seconds: float = 60.0) -> Grammar | QuireError:
    deadline = time.monotonic() + seconds
    while (outcome := compiler.poll(job, time.monotonic())) is None:
        assert time.monotonic() < deadline, "the job does not end"
        time.sleep(0.001)
    return outcome


def test_equal_constraints_are_compiled_once(make: Any, held: Held) -> None:
    compiler = make(held)
    first = compiler.submit(regex("a"))
    assert result(compiler, first) == "a"
    assert compiler.submit(regex("a")) is first and compiler.submit(regex("b")) is not first
    result(compiler, compiler.submit(regex("b")))
    assert held.compiled == ["a", "b"]


def test_the_least_recently_used_grammar_is_evicted(make: Any, held: Held) -> None:
    compiler = make(held, cached_grammars=2)
    for text in "abac":  # a is used again before c
        result(compiler, compiler.submit(regex(text)))
    for text in "acb":
        result(compiler, compiler.submit(regex(text)))
    assert held.compiled == ["a", "b", "c", "b"]


def test_a_constraint_that_is_too_large_is_refused_with_both_numbers(make: Any, held: Held) -> None:
    compiler = make(held, max_grammar_bytes=10)
    with pytest.raises(InvalidRequest, match="12 bytes; max_grammar_bytes allows 10"):
        compiler.submit(regex("é" * 6))
    with pytest.raises(InvalidRequest, match="12 bytes"):
        compiler.submit(Constraint(ConstraintKind.CHOICE, choices=("abcdef", "ghijkl")))
    assert held.compiled == []


def test_a_job_that_takes_too_long_is_abandoned_and_others_continue(make: Any, held: Held) -> None:
    compiler = make(held, max_grammar_seconds=0.05)
    slow = compiler.submit(regex("slow"))
    error = result(compiler, slow)
    assert isinstance(error, InvalidRequest) and "longer than 0.05 s" in error.public
    assert result(compiler, compiler.submit(regex("quick"))) == "quick"
    held.let_go.set()
    assert isinstance(compiler.poll(slow, time.monotonic()), InvalidRequest | str)


def test_while_all_threads_are_in_abandoned_jobs_others_are_refused(make: Any, held: Held) -> None:
    compiler = make(held, max_grammar_seconds=0.05)
    lost = [compiler.submit(regex(f"slow {number}")) for number in range(NUM_THREADS)]
    assert all(isinstance(result(compiler, job), InvalidRequest) for job in lost)
    waiting = compiler.submit(regex("quick"))
    error = result(compiler, waiting)
    assert isinstance(error, Overloaded) and error.retry_after > 0
    held.let_go.set()
    deadline = time.monotonic() + 60
    while compiler.poll(waiting, time.monotonic()) != "quick":
        assert time.monotonic() < deadline, "a thread that is free again does not continue"
        time.sleep(0.001)


def test_a_failing_compilation_affects_its_constraint_alone(make: Any, held: Held, caplog: Any) -> None:
    compiler = make(held)
    error = result(compiler, compiler.submit(regex("broken")))
    assert isinstance(error, InvalidRequest) and "ZeroDivisionError" in error.public
    assert "compiling a constraint of kind regex failed" in caplog.text
    assert result(compiler, compiler.submit(regex("fine"))) == "fine"


def test_the_error_of_opening_the_backend_is_the_result() -> None:
    def opens() -> Backend:
        raise GrammarUnavailable("Not here.")

    compiler = Compiler(opens, CONFIG)
    assert isinstance(result(compiler, compiler.submit(regex("a"))), GrammarUnavailable)
    compiler.close()


def test_threads_end_when_the_compiler_is_closed(held: Held) -> None:
    before = set(threading.enumerate())
    compiler = Compiler(lambda: held, CONFIG)  # type: ignore[arg-type, return-value]
    result(compiler, compiler.submit(regex("a")))
    threads = set(threading.enumerate()) - before
    compiler.close()
    for thread in threads:
        thread.join(60)
    assert threads and not any(thread.is_alive() for thread in threads)


def test_every_schema_of_the_collection_compiles(backend: Backend, make: Any) -> None:
    compiler, all_cases = make(backend, cached_grammars=1000), cases()
    jobs = [compiler.submit(Constraint(ConstraintKind.SCHEMA, json.dumps(case.schema))) for case in all_cases]
    refused = [outcome for job in jobs if isinstance(outcome := result(compiler, job), QuireError)]
    assert refused == [] and len(jobs) >= 300


LONGEST = """
import json, sys, time
from quire.config import GrammarConfig
from quire.grammar.compiler import Compiler
from quire.grammar.grammar import GrammarVocabulary, open_backend
from quire.text.tokenizer import Tokenizer
from quire.types.request import Constraint, ConstraintKind
names = ["<unk>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
keys = {"model": "llama", "tokens": names, "token_type": [2, 3] + [6] * 256, "scores": [0.0] * 258}
tokenizer = Tokenizer.from_gguf({f"tokenizer.ggml.{key}": value for key, value in keys.items()})
config = GrammarConfig()
kind, text = sys.argv[1], sys.stdin.read()
compiler = Compiler(lambda: open_backend(GrammarVocabulary(tokenizer, 258, (1,))), config)
job = compiler.submit(Constraint(ConstraintKind(kind), text))
while (outcome := compiler.poll(job, time.monotonic())) is None:
    time.sleep(0.01)
print(type(outcome).__name__, len(text))
"""


def rules(line: str, last: str, first: str) -> str:
    """As many rules, each of which needs the next, as the limit on a grammar's size lets through."""
    lines, number = [first], 0
    room = CONFIG.max_grammar_bytes - len(first) - 60
    while room > 0:
        lines.append(line.format(number, number + 1))
        room -= len(lines[-1])
        number += 1
    return "".join(lines) + last.format(number)


@pytest.mark.parametrize(
    "kind, text",
    [
        ("lark", rules("a{}: a{}\n", 'a{}: "x"\n', "start: a0\n")),
        ("lark", rules("A{}:A{}\n", 'A{}: "x"\n', "start: A0\n")),
        ("ebnf", rules("r{} ::= r{}\n", 'r{} ::= "x"\n', "root ::= r0\n")),
        (
            "json_schema",
            rules(
                '"{}": {{"items": {{"$ref": "#/$defs/{}"}}}}, ', '"{}": {{}}}}}}', '{"$ref": "#/$defs/0", "$defs": {'
            ),
        ),
        ("regex", "(" * 60000 + "a" + ")" * 60000),
        ("lark", "start: " + "(" * 60000 + '"a"' + ")" * 60000),
    ],
    ids=["rules", "tokens", "ebnf", "references", "groups of a regex", "groups of a rule"],
)
def test_no_grammar_within_the_limit_ends_the_process(kind: str, text: str) -> None:
    """Compilers recurse: the deepest grammars get an answer, whatever it is, and no segmentation fault."""
    command = [sys.executable, "-c", LONGEST, kind]
    child = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
    assert child.returncode == 0, child.stderr[-500:]
    assert child.stdout.split()[0] in ("GuidanceGrammar", "InvalidRequest"), child.stdout
