"""A script for vLLM runs, or gets an error with our name for its word."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.engine.llm import LLM
from quire.types.errors import InvalidRequest
from quire.types.request import SamplingParams
from quire.types.vllm_words import BY_PLACE, SERVE, answer_to_flag, translate, vllm_page
from quire.types.vllm_words import LLM as OPENS
from tests.architecture.sources import ROOT
from tests.runner.stand_in import InterpreterDevice

pytestmark = pytest.mark.pure

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def model(toy_folder: Path):
    words = {"max_model_len": 128, "gpu_memory_utilization": 0.5, "max_num_seqs": 8, "max_num_batched_tokens": 256}
    words |= {"tensor_parallel_size": 1, "enforce_eager": True, "dtype": "auto", "trust_remote_code": True}
    words |= {"seed": None, "quantization": None, "swap_space": 4.0, "enable_prefix_caching": True}
    with LLM(model=str(toy_folder), device=InterpreterDevice(), num_blocks=120, **words) as llm:
        yield llm


def test_settings_accept_vllms_names(model):
    assert (model.config.scheduler.max_context, model.config.scheduler.max_rows) == (128, 8)
    assert (model.config.cache.memory_share, model.config.scheduler.max_step_tokens) == (0.5, 256)
    assert model.config.device.captures is False and model.config.device.dtype is None


def test_the_loop_of_vllms_first_example_runs(model):
    outputs = model.generate(["Once upon", "Go"], sampling_params=GREEDY, use_tqdm=False)
    for output, prompt in zip(outputs, ("Once upon", "Go"), strict=True):
        assert output.prompt == prompt and output.prompt_token_ids == output.prompt_tokens
        assert output.outputs[0].text == output.text and output.outputs[0].token_ids == output.tokens
        assert output.outputs[0].finish_reason == "length"
    assert model.get_tokenizer().decode(outputs[0].prompt_token_ids) == "Once upon"
    assert model.get_default_sampling_params() == SamplingParams()


def test_prompts_may_be_vllms_dictionaries(model):
    ids = model.get_tokenizer().encode("Once upon")
    wanted = model.generate("Once upon", GREEDY)[0].tokens
    forms = {"prompt": "Once upon"}, {"prompt_token_ids": ids}, {"prompt": "Once upon", "prompt_token_ids": ids}
    assert [model.generate(form, GREEDY)[0].tokens for form in forms] == [wanted] * 3
    assert [each.tokens for each in model.generate(list(forms), GREEDY)] == [wanted] * 3
    assert model.generate({"prompt_token_ids": ids}, GREEDY)[0].prompt is None
    with pytest.raises(InvalidRequest, match="multi_modal_data"):
        model.generate({"prompt": "a", "multi_modal_data": {"image": 1}})


def test_chat_takes_vllms_words_too(model):
    wanted = model.chat([{"role": "user", "content": "Hi"}], GREEDY)
    assert model.chat("Hi", sampling_params=GREEDY, use_tqdm=True, add_generation_prompt=True)[0].text == wanted[0].text
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert model.chat(parts, GREEDY)[0].prompt == wanted[0].prompt
    assert wanted[0].prompt is not None and "Hi" in wanted[0].prompt
    given = {"chat_template_kwargs": {"enable_thinking": False}}
    assert model.chat("Hi", GREEDY, **given)[0].text == wanted[0].text
    assert "".join(each.text for each in model.stream(parts, GREEDY, **given)) == wanted[0].text
    for wrong in (5, {"messages": []}, {5: 1}):
        with pytest.raises(InvalidRequest, match="chat_template_kwargs"):
            model.chat("Hi", GREEDY, chat_template_kwargs=wrong)
    with pytest.raises(InvalidRequest, match="conversation"):
        next(model.stream("Hi", GREEDY, **given))


@pytest.mark.parametrize(
    "words, said",
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is 2.*one device"),
        ({"seed": 42}, r"SamplingParams\(seed"),
        ({"quantization": "awq"}, "recognized"),
        ({"enable_prefix_caching": False}, "always on"),
        ({"max_model_len": 64, "max_context": 64}, "give one of them"),
        ({"max_model_len": "long"}, "max_context is 'long'"),
        ({"max_model_len": 1}, "max_context is 1"),
        ({"max_rows": 2.5}, "max_rows is 2.5; it must be a whole number"),
        ({"captures": "maybe"}, "true or false"),
        ({"no_such_word": 1}, "no_such_word"),
    ],
)
def test_unsupported_values_are_refused_by_name(toy_folder, words, said):
    with pytest.raises(InvalidRequest, match=said):
        LLM(toy_folder, device=InterpreterDevice(), **words)


@pytest.mark.parametrize(
    "words, said",
    [
        ({"lora_request": object()}, "merge the adapter"),
        ({"chat_template": "{{ 1 }}"}, "quire create"),
        ({"samplng": GREEDY}, "samplng"),
        ({"temperature": 0}, r"SamplingParams\(temperature="),
        ({"sampling_params": GREEDY, "sampling": GREEDY}, "sampling was given twice"),
    ],
)
def test_arguments_of_calls_are_answered_too(model, words, said):
    with pytest.raises(InvalidRequest, match=said):
        model.generate("a", **words)


def test_flags_of_vllm_are_answered_with_ours():
    ours = {"--dtype", "--port"}
    assert "`--max-context`" in (answer_to_flag(["m", "--max-model-len", "4096"], ours) or "")
    assert "`--memory-share`" in (answer_to_flag(["--gpu-memory-utilization=0.9"], ours) or "")
    assert "NAME=MODEL" in (answer_to_flag(["--served-model-name", "x"], ours) or "")
    assert "one device" in (answer_to_flag(["--tensor-parallel-size", "2"], ours) or "")
    assert answer_to_flag(["--dtype", "bf16", "--port", "1", "--", "--max-model-len"], ours) is None


def test_every_vllm_name_maps_to_an_existing_setting_and_the_page_is_up_to_date():
    for place in (OPENS, SERVE):
        for word in BY_PLACE[place].values():
            assert word.ours or word.answer, word.name
    assert translate(OPENS, {"dtype": "bfloat16", "generation_config": "vllm"}) == {
        "dtype": "bf16",
        "sampling_defaults": "none",
    }
    page = (ROOT / "docs" / "VLLM.md").read_text()
    assert page == vllm_page(), "run: python -c 'from quire.types.vllm_words import *; print(vllm_page(), end=\"\")'"
