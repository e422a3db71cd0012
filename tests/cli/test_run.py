"""`quire run` as a process: prompts from arguments and pipes, flags, figures, errors, signals."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from tests.cli.conftest import install_default

pytestmark = pytest.mark.pure


def test_a_prompt_is_answered_on_standard_output_alone(quire):
    done = quire("run", quire.model, "Why", "is the sky blue?")
    assert (done.returncode, done.stdout) == (0, "You said: Why is the sky blue? \n")
    (asked,) = quire.told("stream")
    assert asked["prompt"] == [{"role": "user", "content": "Why is the sky blue?"}]
    assert asked["sampling"]["temperature"] == 0.7 and asked["sampling"]["top_p"] == 0.95
    assert quire.told("closed stream") and quire.told("closed")


def test_neither_torch_nor_numpy_is_imported_on_the_way_to_the_engine(quire):
    assert quire("run", quire.model, "hi").stderr == "\n"  # the stand-in prints what was imported


def test_a_pipe_is_the_prompt(quire):
    assert quire("run", quire.model, stdin="from a pipe\n").stdout == "You said: from a pipe \n"


def test_a_pipe_is_appended_to_the_prompt(quire):
    quire("run", quire.model, "Summarize:", stdin="a long text\n")
    assert quire.told("stream")[0]["prompt"][0]["content"] == "Summarize:\n\na long text"


def test_nothing_to_answer_is_an_error(quire):
    done = quire("run", quire.model)
    assert done.returncode == 2 and "there is nothing to answer" in done.stderr
    assert quire.told("open") == []


def test_flags_reach_the_sampler(quire):
    flags = "--temperature 0 --top-p 0.5 --top-k 4 --min-p 0.1 --seed 9 --max-tokens 5 --repetition-penalty 1.5"
    more = "--presence-penalty 1 --frequency-penalty -1 --stop END --stop FIN"
    assert quire("run", *flags.split(), *more.split(), "--system", "Be brief.", quire.model, "hi").returncode == 0
    (asked,) = quire.told("stream")
    wanted = {
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 4,
        "min_p": 0.1,
        "seed": 9,
        "max_tokens": 5,
        "stop": ["END", "FIN"],
    }
    wanted |= {"repetition_penalty": 1.5, "presence_penalty": 1, "frequency_penalty": -1}
    assert wanted.items() <= asked["sampling"].items()
    assert asked["prompt"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]


def test_engine_settings_are_flags_too(quire):
    quire("run", "--num-blocks", "64", "--max-context", "512", "--device", "cpu", quire.model, "hi")
    (opened,) = quire.told("open")
    assert opened["settings"] == {"num_blocks": "64", "max_context": "512"} and opened["device"] == "cpu"


def test_where_to_compute_is_left_to_the_engine_unless_it_is_said(quire):
    quire("run", quire.model, "hi")
    (opened,) = quire.told("open")
    assert opened["device"] == "auto"


def test_raw_sends_the_text_as_it_is(quire):
    quire("run", "--raw", quire.model, "Once upon")
    (asked,) = quire.told("stream")
    assert asked["prompt"] == "Once upon" and asked["sampling"]["temperature"] == 1.0


def test_a_model_without_a_template_continues_the_text_and_says_so(quire):
    model = quire.folder / "no-template.gguf"
    model.write_bytes(b"GGUF")
    done = quire("run", str(model), "Once upon")
    assert quire.told("stream")[0]["prompt"] == "Once upon" and "no chat template" in done.stderr


def test_verbose_prints_the_figures_on_standard_error(quire):
    done = quire("run", "--verbose", quire.model, "hi")
    assert done.stdout == "You said: hi \n"
    figures = dict(line.split(":", 1) for line in done.stderr.splitlines() if ":" in line)
    assert {name: value.strip() for name, value in figures.items() if name != "load time"} == {
        "prompt tokens": "7",
        "cached tokens": "3",
        "time to first token": "0.500 s",
        "output tokens": "11 in 2.50 s",
        "tokens per second": "5.0",
    }
    assert figures["load time"].strip().endswith(" s")


def test_the_recommendation_beside_the_weights_is_followed(quire):
    (quire.folder / "generation_config.json").write_text('{"temperature": 0.3, "top_k": 20, "eos_token_id": 2}')
    quire("run", quire.model, "hi")
    sampling = quire.told("stream")[0]["sampling"]
    assert (sampling["temperature"], sampling["top_k"], sampling["top_p"]) == (0.3, 20, 0.95)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["nothing.gguf", "hi"], "error: There is no file or folder nothing.gguf: check the path.\n"),
        (["unheard-of", "hi"], "error: unheard-of:latest is not here, and 127.0.0.1:1 cannot be reached"),
        (["Why is the sky blue?"], "the model comes first, quire run smollm2:135m 'Why is the sky blue?'"),
        (["--top-p", "7", "MODEL", "hi"], "error: top_p is 7.0; it must be above 0 and at most 1.\n"),
        (["--num-blocks", "0", "MODEL", "hi"], "error: num_blocks is 0; it must be at least 1.\n"),
        (["--num-blocks", "many", "MODEL", "hi"], "error: num_blocks is 'many'; it must be a whole number.\n"),
        (["MODEL", "fail"], "error: The engine is not in the mood: try again.\n"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(quire, arguments, said):
    done = quire("run", *(quire.model if each == "MODEL" else each for each in arguments))
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr


SCHEMA = '{"type": "object", "properties": {"city": {"type": "string"}}}'


@pytest.mark.parametrize("given", ["json", SCHEMA, "schema.json"])
def test_a_format_is_json_a_schema_or_a_file_with_one(quire, given):
    path = quire.folder / "schema.json"
    path.write_text(SCHEMA)
    given = str(path) if given == path.name else given
    assert quire("run", "--format", given, quire.model, "hi").returncode == 0
    (asked,) = quire.told("stream")
    wanted = ("json_object", "") if given == "json" else ("json_schema", SCHEMA)
    assert (asked["constraint"]["kind"], asked["constraint"]["text"]) == wanted


@pytest.mark.parametrize(
    "given, said",
    [
        ("yaml", "write json, a JSON schema, or the path of a file with a schema"),
        ('{"type": ', "--format is not JSON"),
        ("list.json", "holds list; a JSON schema is an object"),
    ],
)
def test_a_format_that_is_none_is_refused_before_the_model_is_loaded(quire, given, said):
    (quire.folder / "list.json").write_text("[1]")
    given = str(quire.folder / given) if given.endswith(".json") else given
    done = quire("run", "--format", given, quire.model, "hi")
    assert done.returncode == 1 and said in done.stderr and quire.told("open") == []


@pytest.mark.parametrize(
    "flags, variables",
    [
        ([], {}),
        (["--think"], {"enable_thinking": True, "thinking": True}),
        (["--no-think"], {"enable_thinking": False, "thinking": False}),
    ],
)
def test_a_template_is_told_whether_to_think(quire, flags, variables):
    model = quire.folder / "thinking.gguf"
    model.write_bytes(b"GGUF")
    done = quire("run", *flags, str(model), "hi")
    assert (done.returncode, done.stdout) == (0, "You said: hi \n"), done.stderr
    (asked,) = quire.told("stream")
    assert asked["variables"] == variables


@pytest.mark.parametrize(
    "model, flags, said",
    [
        ("toy.gguf", ["--think"], "This model does not think"),
        ("toy.gguf", ["--think", "high"], "takes no level of thinking, so not high: leave it out"),
        ("thinking.gguf", ["--think", "low"], "takes no level of thinking, so not low: use --think or --no-think"),
        ("thinking.gguf", ["--think", "--no-think"], "exclude each other"),
        ("thinking.gguf", ["--think=deep"], "write --think, --no-think, or --think low|medium|high"),
        ("thinking.gguf", ["--think", "--raw"], "--think needs a chat template"),
        ("toy.gguf", ["--keepalive", "5m"], "so the model runs in this process and is freed when it ends"),
        ("toy.gguf", ["--keepalive", "soon"], "is not a duration"),
    ],
)
def test_what_this_model_cannot_do_is_refused(quire, model, flags, said):
    (quire.folder / model).write_bytes(b"GGUF")
    done = quire("run", *flags, str(quire.folder / model), "hi")
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr
    assert quire.told("stream") == []


def test_an_unknown_flag_is_an_error(quire):
    done = quire("run", "--heat", "5", quire.model, "hi")
    assert done.returncode == 2 and "No such option" in done.stderr and "--heat" in done.stderr


def start(quire, *arguments):
    child = subprocess.Popen(
        quire.command(*arguments),
        env=quire.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 100
    while not quire.told("stream"):
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    return child


def test_an_interrupt_stops_the_answer_and_cancels_the_request(quire):
    child = start(quire, "run", quire.model, "forever")
    time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=100)
    assert child.returncode == 130 and out.startswith("You said: and on") and "Traceback" not in err
    assert quire.told("closed stream") and quire.told("closed")


def test_a_reader_who_leaves_is_no_error_to_speak_of(quire):
    child = start(quire, "run", quire.model, "forever")
    child.stdout.close()
    assert child.wait(timeout=100) == 141
    assert "Traceback" not in child.stderr.read()
    child.stderr.close()
    assert quire.told("closed")


def test_the_module_without_arguments_and_terminal_answers_one_question(quire):
    (quire.folder / "home").mkdir()
    # The default model is not in this store and pip may have no network: a file under its name will do.
    install_default(quire)
    process = subprocess.Popen(
        quire.command("-m"),
        env=quire.environment,
        stdin=subprocess.PIPE,  # never closed, as in some services: it must not be waited for
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.wait(timeout=100) == 0
    with process:
        assert process.stdout.read() == "You said: Why is the sky blue? \n"
        assert "tokens per second" in process.stderr.read()
    sampling = quire.told("stream")[0]["sampling"]
    assert (sampling["temperature"], sampling["max_tokens"]) == (0.2, 160)
