"""`quire run` as a process: prompts from arguments and pipes, flags, timings, errors, signals."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from tests.cli.conftest import store_default_model

pytestmark = pytest.mark.pure


def test_a_prompt_is_answered_on_standard_output_alone(quire):
    done = quire("run", quire.model, "Why", "is the sky blue?")
    assert (done.returncode, done.stdout) == (0, "You said: Why is the sky blue? \n")
    (call,) = quire.logged("stream")
    assert call["prompt"] == [{"role": "user", "content": "Why is the sky blue?"}]
    assert call["sampling"]["temperature"] == 0.7 and call["sampling"]["top_p"] == 0.95
    assert quire.logged("closed stream") and quire.logged("closed")


def test_neither_torch_nor_numpy_is_imported_on_the_way_to_the_engine(quire):
    assert quire("run", quire.model, "hi").stderr == "\n"  # the stand-in prints which of them were imported


def test_a_pipe_is_the_prompt(quire):
    assert quire("run", quire.model, stdin="from a pipe\n").stdout == "You said: from a pipe \n"


def test_a_pipe_is_appended_to_the_prompt(quire):
    quire("run", quire.model, "Summarize:", stdin="a long text\n")
    assert quire.logged("stream")[0]["prompt"][0]["content"] == "Summarize:\n\na long text"


def test_a_missing_prompt_is_an_error(quire):
    done = quire("run", quire.model)
    assert done.returncode == 2 and "no prompt: give a PROMPT" in done.stderr
    assert quire.logged("open") == []


def test_flags_reach_the_sampler(quire):
    flags = "--temperature 0 --top-p 0.5 --top-k 4 --min-p 0.1 --seed 9 --max-tokens 5 --repetition-penalty 1.5"
    more = "--presence-penalty 1 --frequency-penalty -1 --stop END --stop FIN"
    assert quire("run", *flags.split(), *more.split(), "--system", "Be brief.", quire.model, "hi").returncode == 0
    (call,) = quire.logged("stream")
    expected = {
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 4,
        "min_p": 0.1,
        "seed": 9,
        "max_tokens": 5,
        "stop": ["END", "FIN"],
    }
    expected |= {"repetition_penalty": 1.5, "presence_penalty": 1, "frequency_penalty": -1}
    assert expected.items() <= call["sampling"].items()
    assert call["prompt"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]


def test_engine_settings_are_flags_too(quire):
    quire("run", "--num-blocks", "64", "--max-context", "512", "--device", "cpu", quire.model, "hi")
    (opened,) = quire.logged("open")
    assert opened["settings"] == {"num_blocks": "64", "max_context": "512"} and opened["device"] == "cpu"


def test_the_engine_chooses_the_device_by_default(quire):
    quire("run", quire.model, "hi")
    (opened,) = quire.logged("open")
    assert opened["device"] == "auto"


def test_raw_sends_the_text_unchanged(quire):
    quire("run", "--raw", quire.model, "Once upon")
    (call,) = quire.logged("stream")
    assert call["prompt"] == "Once upon" and call["sampling"]["temperature"] == 1.0


def test_a_model_without_a_template_continues_the_text_with_a_notice(quire):
    model = quire.folder / "no-template.gguf"
    model.write_bytes(b"GGUF")
    done = quire("run", str(model), "Once upon")
    assert quire.logged("stream")[0]["prompt"] == "Once upon" and "no chat template" in done.stderr


def test_verbose_prints_timings_on_standard_error(quire):
    done = quire("run", "--verbose", quire.model, "hi")
    assert done.stdout == "You said: hi \n"
    figures = dict(line.split(":", 1) for line in done.stderr.splitlines() if ":" in line)
    assert {name: value.strip() for name, value in figures.items() if name != "load time"} == {
        "prompt tokens": "7",
        "cached tokens": "3",
        "time to first token": "0.500 s",
        "output tokens": "11 in 2.50 s",
        "drafted tokens": "6, of which 4 were accepted (suffix 4 of 6)",
        "tokens per second": "5.0",
    }
    assert figures["load time"].strip().endswith(" s")


def test_generation_config_sets_the_sampling_defaults(quire):
    (quire.folder / "generation_config.json").write_text('{"temperature": 0.3, "top_k": 20, "eos_token_id": 2}')
    quire("run", quire.model, "hi")
    sampling = quire.logged("stream")[0]["sampling"]
    assert (sampling["temperature"], sampling["top_k"], sampling["top_p"]) == (0.3, 20, 0.95)


@pytest.mark.parametrize(
    "arguments, error",
    [
        (["nothing.gguf", "hi"], "error: There is no file or folder nothing.gguf: check the path.\n"),
        (["unheard-of", "hi"], "error: unheard-of:latest is not here, and 127.0.0.1:1 cannot be reached"),
        (["Why is the sky blue?"], "the model comes first: quire run smollm2:135m 'Why is the sky blue?'"),
        (["--top-p", "7", "MODEL", "hi"], "error: top_p is 7.0; it must be above 0 and at most 1.\n"),
        (["--num-blocks", "0", "MODEL", "hi"], "error: num_blocks is 0; it must be at least 1.\n"),
        (["--num-blocks", "many", "MODEL", "hi"], "error: num_blocks is 'many'; it must be a whole number.\n"),
        (["MODEL", "fail"], "error: The engine failed: try again.\n"),
    ],
)
def test_an_error_is_one_line(quire, arguments, error):
    done = quire("run", *(quire.model if each == "MODEL" else each for each in arguments))
    assert done.returncode == 1 and error in done.stderr and "Traceback" not in done.stderr


SCHEMA = '{"type": "object", "properties": {"city": {"type": "string"}}}'


@pytest.mark.parametrize("value", ["json", SCHEMA, "schema.json"])
def test_a_format_is_json_a_schema_or_a_file_with_one(quire, value):
    path = quire.folder / "schema.json"
    path.write_text(SCHEMA)
    value = str(path) if value == path.name else value
    assert quire("run", "--format", value, quire.model, "hi").returncode == 0
    (call,) = quire.logged("stream")
    expected = ("json_object", "") if value == "json" else ("json_schema", SCHEMA)
    assert (call["constraint"]["kind"], call["constraint"]["text"]) == expected


@pytest.mark.parametrize(
    "value, error",
    [
        ("yaml", "Use json, a JSON schema, or the path of a file with a JSON schema."),
        ('{"type": ', "--format is not JSON"),
        ("list.json", "is a JSON list; a JSON schema is an object"),
    ],
)
def test_an_invalid_format_is_refused_before_the_model_is_loaded(quire, value, error):
    (quire.folder / "list.json").write_text("[1]")
    value = str(quire.folder / value) if value.endswith(".json") else value
    done = quire("run", "--format", value, quire.model, "hi")
    assert done.returncode == 1 and error in done.stderr and quire.logged("open") == []


@pytest.mark.parametrize(
    "flags, variables",
    [
        ([], {}),
        (["--think"], {"enable_thinking": True, "thinking": True}),
        (["--no-think"], {"enable_thinking": False, "thinking": False}),
    ],
)
def test_think_flags_become_template_variables(quire, flags, variables):
    model = quire.folder / "thinking.gguf"
    model.write_bytes(b"GGUF")
    done = quire("run", *flags, str(model), "hi")
    assert (done.returncode, done.stdout) == (0, "You said: hi \n"), done.stderr
    (call,) = quire.logged("stream")
    assert call["variables"] == variables


@pytest.mark.parametrize(
    "model, flags, error",
    [
        ("toy.gguf", ["--think"], "This model does not think"),
        ("toy.gguf", ["--think", "high"], "has no thinking levels, so --think high has no effect. Remove --think."),
        ("thinking.gguf", ["--think", "low"], "so --think low has no effect. Use --think or --no-think."),
        ("thinking.gguf", ["--think", "--no-think"], "--think and --no-think were both given"),
        ("thinking.gguf", ["--think=deep"], "use --think, --no-think, or --think low|medium|high"),
        ("thinking.gguf", ["--think", "--raw"], "--think needs a chat template"),
        ("toy.gguf", ["--keepalive", "5m"], "so the model runs in this process and is freed at exit"),
        ("toy.gguf", ["--keepalive", "soon"], "is not a duration"),
    ],
)
def test_an_unsupported_option_is_refused(quire, model, flags, error):
    (quire.folder / model).write_bytes(b"GGUF")
    done = quire("run", *flags, str(quire.folder / model), "hi")
    assert done.returncode == 1 and error in done.stderr and "Traceback" not in done.stderr
    assert quire.logged("stream") == []


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
    while not quire.logged("stream"):
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    return child


def test_an_interrupt_stops_the_answer_and_cancels_the_request(quire):
    child = start(quire, "run", quire.model, "forever")
    time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=100)
    assert child.returncode == 130 and out.startswith("You said: and on") and "Traceback" not in err
    assert quire.logged("closed stream") and quire.logged("closed")


def test_a_closed_pipe_is_not_an_error(quire):
    child = start(quire, "run", quire.model, "forever")
    child.stdout.close()
    assert child.wait(timeout=100) == 141
    assert "Traceback" not in child.stderr.read()
    child.stderr.close()
    assert quire.logged("closed")


def test_the_module_without_arguments_and_terminal_answers_one_question(quire):
    (quire.folder / "home").mkdir()
    # A file under the default model's name: the test must not download it.
    store_default_model(quire)
    process = subprocess.Popen(
        quire.command("-m"),
        env=quire.environment,
        stdin=subprocess.PIPE,  # never closed, as in some services: reading it would hang
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.wait(timeout=100) == 0
    with process:
        assert process.stdout.read() == "You said: Why is the sky blue? \n"
        assert "tokens per second" in process.stderr.read()
    sampling = quire.logged("stream")[0]["sampling"]
    assert (sampling["temperature"], sampling["max_tokens"]) == (0.2, 160)
