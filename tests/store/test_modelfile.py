"""Modelfiles as Ollama's users write them, and the errors for those that cannot be parsed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.store.modelfile import BadModelfile, Modelfile, parse_modelfile
from quire.types.errors import InvalidRequest
from quire.types.parameters import KINDS, REAL, WHOLE, check_parameters, known_parameters, sampling_of

pytestmark = pytest.mark.pure

WHOLE_FILE = '''# a teacher
FROM smollm2:135m

parameter temperature 0.2
PARAMETER stop "<|im_end|>"
Parameter  stop   \tUser:
PARAMETER num_ctx 4096
SYSTEM """
You are a "patient" teacher.
# not a comment
"""
TEMPLATE {{ .System }} {{ .Prompt }}
MESSAGE user What is 1+1?
message assistant """It is
2."""
LICENSE MIT
LICENSE "two
lines"
REQUIRES 0.5.0
'''


def test_every_command_is_parsed():
    assert parse_modelfile(WHOLE_FILE) == Modelfile(
        base="smollm2:135m",
        parameters={"temperature": 0.2, "stop": ["<|im_end|>", "User:"], "num_ctx": 4096},
        template="{{ .System }} {{ .Prompt }}",
        system='\nYou are a "patient" teacher.\n# not a comment\n',
        messages=(("user", "What is 1+1?"), ("assistant", "It is\n2.")),
        licences=("MIT", "two\nlines"),
        requires="0.5.0",
    )


def test_windows_line_ends_and_a_byte_order_mark_are_accepted():
    read = parse_modelfile("\ufeffFROM a\r\nSYSTEM Hello there \r\nPARAMETER top_k 3\r\n")
    assert read == Modelfile("a", {"top_k": 3}, system="Hello there")


@pytest.mark.parametrize(
    "text, line, problem",
    [
        ("", 1, "no FROM"),
        ("SYSTEM x", 1, "no FROM"),
        ("FROM a\nFROM b", 2, "second FROM"),
        ("FROM", 1, "no value"),
        ("FROM a\n\nFRMO b", 3, "'FRMO' is not a command"),
        ("FROM a\n{{ x", 2, "not a command"),
        ("FROM a\nPARAMETER", 2, "name and a value"),
        ("FROM a\nPARAMETER temperature", 2, "temperature has no value"),
        ("FROM a\nPARAMETER temperature hot", 2, "'hot'; it must be a number"),
        ("FROM a\nPARAMETER top_k many", 2, "whole number"),
        ("FROM a\nPARAMETER use_mmap perhaps", 2, "true or false"),
        ("FROM a\nPARAMETER temperature nan", 2, "a number"),
        ("FROM a\nPARAMETER repeat_penalty 0", 2, "from 1e-06"),
        ("FROM a\nPARAMETER presence_penalty 3", 2, "from -2 to 2"),
        ("FROM a\nPARAMETER warmth 1", 2, "no parameter 'warmth'"),
        ("FROM a\nPARAMETER mirostat 1", 2, "was dropped by Ollama"),
        ("FROM a\nMESSAGE tool 1", 2, "use one of system"),
        ("FROM a\nMESSAGE", 2, "use one of system"),
        ('FROM a\nSYSTEM """never\nclosed', 2, "not closed"),
        ('FROM a\nSYSTEM "', 2, "not closed"),
        ("FROM a\nRENDERER qwen3", 2, "RENDERER is not supported"),
        ("FROM a\nPARSER qwen3", 2, "PARSER is not supported"),
    ],
)
def test_an_error_has_the_line(text, line, problem):
    with pytest.raises(BadModelfile, match=f"Line {line} .*{problem}") as caught:
        parse_modelfile(text)
    assert caught.value.line == line and caught.value.status == 400


# What one of its lines cannot end with, no Modelfile can say.
texts = st.text(st.sampled_from("ab \"#{\n\t\r'")).filter(
    lambda text: not any(line.rstrip().endswith('"""') for line in text.split("\n")[:-1])
)
plain = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=8)
values = {
    **{name: st.integers(-(2**31), 2**31) for name in WHOLE},
    **{name: st.floats(-2, 2).map(lambda x: round(x, 3)).filter(bool) for name in REAL},
    "repeat_penalty": st.floats(0.001, 3),
    "use_mmap": st.booleans(),
    "stop": st.lists(texts.filter(bool), min_size=1, max_size=3),
    "pooling": st.sampled_from(["mean", "cls", "last", "weighted"]),
}


def test_the_strategy_has_every_parameter():
    assert set(values) == set(KINDS)


@given(
    st.builds(
        Modelfile,
        base=texts.filter(lambda text: text.strip() != ""),
        parameters=st.fixed_dictionaries({}, optional=values),
        template=texts,
        system=texts,
        adapters=st.lists(plain, max_size=2).map(tuple),
        licences=st.lists(texts, max_size=2).map(tuple),
        messages=st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), texts), max_size=3).map(tuple),
        requires=st.just("") | plain,
    )
)
def test_a_printed_modelfile_parses_to_an_equal_one(file):
    assert parse_modelfile(str(file)) == file


@given(st.text(st.sampled_from('FROM aSYTE"\n #\t\r'), max_size=60))
def test_any_text_is_parsed_or_refused_with_a_line(text):
    try:
        read = parse_modelfile(text)
    except BadModelfile:
        return
    assert parse_modelfile(str(read)) == read


def test_parameters_of_json_are_checked_too():
    assert check_parameters({"pooling": "last"}) == {"pooling": "last"}
    checked = check_parameters({"stop": "a", "top_k": 4.0, "temperature": 1, "use_mmap": True})
    assert checked == {"stop": ["a"], "top_k": 4, "temperature": 1.0, "use_mmap": True}
    for wrong in (
        {"stop": 1},
        {"stop": [1]},
        {"top_k": "4"},
        {"top_k": True},
        {"use_mmap": 1},
        {"x": 1},
        {"pooling": "max"},
    ):
        with pytest.raises(InvalidRequest, match=r"must be|no parameter"):
            check_parameters(wrong)


def test_known_parameters_of_other_programs_are_accepted():
    assert known_parameters({"mirostat": 1, "top_k": 3, "temperature": "hot"}) == {"top_k": 3}


def test_parameters_mean_what_llama_cpp_makes_of_them():
    sampling = sampling_of(
        {"num_predict": -1, "temperature": -1.0, "top_p": 0, "seed": -1, "stop": ["", "x"], "num_ctx": 5}
    )
    assert sampling == {"max_tokens": None, "temperature": 0.0, "top_p": 1e-6, "seed": None, "stop": ("x",)}
