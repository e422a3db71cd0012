"""One word, one meaning: a public class or function name is defined in one module, or means the same in all of them.

A device's kernel may have the name of its op.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable

import pytest

from tests.architecture.sources import Source, all_sources

pytestmark = pytest.mark.pure

# Names that several modules define because each fulfils the same contract.
SHARED = {
    "main": "the entry point of a process or a command",
    "make": "gateway/balancers: makes a balancer",
    "read": "gateway/policies: reads a condition from the rules file",
    "knows": "text/parsers: recognises a chat template",
    "parser": "text/parsers: makes the parser of an answer",
    "prepare": "text/parsers: prepares messages and tools for the template",
    "rules": "text/parsers: the grammar of a required call",
    "error_body": "serve/dialects: encodes an error",
    "encode_model": "serve/dialects: encodes a model of the list",
    "encode_count": "serve/dialects: encodes a number of tokens",
    "decode": "bytes to the request or message that they encode",
    "decode_chat": "serve/dialects: decodes a chat request",
    "decode_count": "serve/dialects: decodes a request to count tokens",
    "read_conversation": "serve/dialects: messages of the dialect into ours",
    "read_vocabulary": "text: the vocabulary of a container",
    "usage_fields": "serve/dialects: token counts in OpenAI's fields",
    "receiving": "transfer/transports: opens the end that takes bytes",
    "sending": "transfer/transports: opens the end that sends bytes",
    "suits": "transfer/transports: is it for `auto`?",
    "unavailable": "transfer/transports: why it cannot be used on this machine",
    "attend": "attention: the block of a model's layer, and the kernel",
}


def definitions(sources: Iterable[Source]) -> dict[str, list[str]]:
    """The modules that define each public top-level name."""
    found: dict[str, list[str]] = defaultdict(list)
    for source in sources:
        for node in source.tree.body:
            is_definition = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if is_definition and not node.name.startswith("_"):
                found[node.name].append(str(source))
    return found


def repeated(sources: Iterable[Source]) -> list[str]:
    """Names that are defined more than once and are not listed as shared."""
    found = {name: without_kernels(where) for name, where in definitions(sources).items()}
    return [f"{name}: {', '.join(where)}" for name, where in found.items() if len(where) > 1 and name not in SHARED]


def without_kernels(modules: list[str]) -> list[str]:
    """The modules of a name; of an op, without those of its kernels."""
    is_op = any(module.startswith("quire.ops.") for module in modules)
    return [module for module in modules if not (is_op and module.startswith("quire.devices."))]


def test_a_public_name_has_one_meaning():
    assert repeated(all_sources()) == []


def test_every_shared_name_is_defined_more_than_once():
    found = definitions(all_sources())
    assert [name for name in SHARED if len(found[name]) < 2] == []


def test_a_repeated_name_is_found():
    text = "class Place:\n    pass\n\n\ndef main():\n    pass\n\n\ndef _place():\n    pass\n"
    assert repeated([Source("one", text), Source("two", text)]) == ["Place: quire.one, quire.two"]


def test_a_kernel_may_have_the_name_of_its_op_and_nothing_else_may():
    text = "def embed():\n    pass\n"
    op, kernel = Source("ops.embed", text), Source("devices._triton.embed", text)
    assert repeated([op, kernel]) == []
    assert repeated([op, kernel, Source("models.embed", text)]) == ["embed: quire.ops.embed, quire.models.embed"]
