"""A recording through `LLM.transcribe`: tokens are those of transformers, with its rules of timestamps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import LLM
from quire.engine.transcription import as_request, samples_of
from quire.speech.transcribe import transcribe
from quire.types.errors import InvalidRequest
from quire.types.speech import SpeechOptions, SpeechRequest
from tests.speech.toy import LANGUAGES, SUPPRESSED, SUPPRESSED_FIRST, make_speech_folder, spoken

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_speech_folder(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def llm(folder: Path):
    with LLM(folder, device="cpu", kv_dtype="f32", lowered_gb=0) as llm:
        yield llm


@pytest.fixture(scope="module")
def torch_model(folder: Path) -> Any:
    import torch
    from transformers import WhisperForConditionalGeneration

    torch.set_num_threads(1)
    return WhisperForConditionalGeneration.from_pretrained(folder).eval()


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    return (0.1 * np.random.default_rng(seed).standard_normal(int(16000 * seconds))).astype(np.float32)


def asked_tokens(llm: LLM, samples: np.ndarray, options: SpeechOptions) -> list[list[int]]:
    """The tokens that the model wrote, for each request for text."""
    task, answer, written = transcribe(llm._model.model_text.needed_speech(), samples, options), None, []
    drive = __import__("quire.engine.transcription", fromlist=["_answer"])
    try:
        while True:
            asked = task.send(answer)
            answer = None
            if isinstance(asked, SpeechRequest):
                answer = drive._answer(llm.client.stream(as_request(asked, f"t{len(written)}-{id(asked)}")))
                if asked.sampling.allowed_token_ids is None:
                    written.append(list(answer.tokens))
    except StopIteration:
        return written


def transformers_tokens(model: Any, samples: np.ndarray, prompt: list[int], has_times: bool, count: int) -> list[int]:
    """Greedy tokens of transformers' model, with its own processors of logits."""
    import torch
    from transformers import WhisperFeatureExtractor
    from transformers.generation import SuppressTokensAtBeginLogitsProcessor, SuppressTokensLogitsProcessor
    from transformers.generation import WhisperTimeStampLogitsProcessor as TimeStamps

    features = WhisperFeatureExtractor(chunk_length=2)(samples, sampling_rate=16000, return_tensors="pt")
    begin, config = len(prompt), model.generation_config
    processors = [SuppressTokensAtBeginLogitsProcessor(SUPPRESSED_FIRST, begin, device="cpu"),
                  SuppressTokensLogitsProcessor(SUPPRESSED, device="cpu")]  # fmt: skip
    processors += [TimeStamps(config, begin_index=begin)] if has_times else []
    tokens = list(prompt)
    with torch.no_grad():
        hidden = model.get_encoder()(features.input_features)
        while len(tokens) < begin + count and (len(tokens) == begin or tokens[-1] != config.eos_token_id):
            ids = torch.tensor([tokens])
            scores = model(encoder_outputs=hidden, decoder_input_ids=ids).logits[:, -1].float()
            for process in processors:
                scores = process(ids, scores)
            tokens.append(int(scores[0].argmax()))
    return tokens[begin:]


@pytest.mark.parametrize("has_times", [True, False])
@pytest.mark.parametrize("language", ["en", "de"])
def test_tokens_of_a_window_are_those_of_transformers(llm: LLM, torch_model: Any, language: str, has_times: bool):
    prompt = [257, 258 + LANGUAGES.index(language), 262, *([] if has_times else [266])]
    for samples in (samples_of(spoken())[:32000], noise(2.0), noise(0.7, 1)):
        found = asked_tokens(llm, samples, SpeechOptions(language, has_times=has_times, max_tokens=44))[0]
        right = transformers_tokens(torch_model, samples, prompt, has_times, 44)
        assert found == right and len(found) > 4


def test_language_is_the_likeliest_one_of_the_first_token(llm: LLM, torch_model: Any):
    from transformers import WhisperFeatureExtractor

    samples = noise(1.5, 3)
    features = WhisperFeatureExtractor(chunk_length=2)(samples, sampling_rate=16000, return_tensors="pt")
    detected = torch_model.detect_language(features.input_features)[0]
    (found,) = llm.transcribe((samples, 16000))
    assert found.language == LANGUAGES[int(detected) - 258]


def test_long_audio_is_read_in_windows_that_begin_where_segments_end(llm: LLM):
    (found,) = llm.transcribe((noise(7.0), 16000), language="en")
    assert found.duration == pytest.approx(7.0)
    times = [(each.start, each.end) for each in found.segments]
    assert all(0 <= start <= end <= 7.0 for start, end in times) and times == sorted(times)
    assert len({each.seek for each in found.segments}) >= 4
    assert found.text == "".join(each.text for each in found.segments).strip()
    assert llm.transcribe([(noise(7.0), 16000), (noise(3.0), 16000)], language="en")[0] == found


def test_a_prompt_and_translation_change_what_the_model_is_given(llm: LLM):
    plain, led, translated = (
        llm.transcribe((noise(2.0), 16000), language="de", **more)[0]
        for more in ({}, {"prompt": "Quire"}, {"translate": True})
    )
    assert plain.task == "transcribe" and translated.task == "translate"
    assert len({plain.segments, led.segments, translated.segments}) == 3


def test_bad_requests_are_refused_by_field(llm: LLM):
    with pytest.raises(InvalidRequest, match="knows de, en, fr") as error:
        llm.transcribe((noise(1.0), 16000), language="xx")
    assert error.value.field == "language"
    with pytest.raises(InvalidRequest, match="no audio file"):
        llm.transcribe("/nowhere.wav")
    with pytest.raises(InvalidRequest, match="must be a path"):
        llm.transcribe(3)
