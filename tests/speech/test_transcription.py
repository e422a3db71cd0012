"""A recording through `LLM.transcribe`: tokens are those of transformers, with its rules of timestamps."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import LLM, AsyncLLM
from quire.engine.transcription import _answer, as_request, samples_of
from quire.speech.alignment import end_times
from quire.speech.transcribe import _source, transcribe
from quire.types.errors import InvalidRequest
from quire.types.kinds import RequestKind
from quire.types.request import SamplingParams
from quire.types.speech import SpeechOptions, SpeechRequest
from quire.types.speech_rules import SpeechRules
from tests.speech.toy import HEADS, LANGUAGES, SUPPRESSED, SUPPRESSED_FIRST, make_speech_folder, spoken

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
    task, answer, written = transcribe(llm._model.model_text.needed_speech(()), samples, options), None, []
    try:
        while True:
            asked = task.send(answer)
            answer = None
            if isinstance(asked, SpeechRequest):
                answer = _answer(llm.client.stream(as_request(asked, f"t{len(written)}-{id(asked)}")))
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
        found = asked_tokens(
            llm, samples, SpeechOptions(language, temperature=0.0, has_times=has_times, max_tokens=44)
        )[0]
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
    (found,) = llm.transcribe((noise(7.0), 16000), language="en", temperature=0)
    assert found.duration == pytest.approx(7.0)
    times = [(each.start, each.end) for each in found.segments]
    assert all(0 <= start <= end <= 7.0 for start, end in times) and times == sorted(times)
    assert len({each.seek for each in found.segments}) >= 4
    assert found.text == "".join(each.text for each in found.segments).strip()
    assert llm.transcribe([(noise(7.0), 16000), (noise(3.0), 16000)], language="en", temperature=0)[0] == found


def test_a_prompt_and_translation_change_what_the_model_is_given(llm: LLM):
    plain, led, translated = (
        llm.transcribe((noise(2.0), 16000), language="de", temperature=0, **more)[0]
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


def test_tokens_of_a_text_end_at_the_times_of_transformers(llm: LLM, torch_model: Any):
    """The attention of the alignment heads, its filter and its path, of a text that the model is made to read."""
    import torch
    from transformers import WhisperFeatureExtractor

    samples, speech = samples_of(spoken())[:29000], llm._model.model_text.needed_speech(())
    prompt, written = (257, 258, 262), tuple(np.random.default_rng(4).integers(40, 250, 40).tolist())
    sampling = SamplingParams(temperature=0.0, max_tokens=1)
    asked = SpeechRequest(_source(speech, samples), prompt + written, sampling, SpeechRules(), RequestKind.ALIGN)
    answer = _answer(llm.client.stream(as_request(asked, "align")))
    found = end_times(answer.rows, len(prompt), len(written), 29000 // 320, speech)
    features = WhisperFeatureExtractor(chunk_length=2)(samples, sampling_rate=16000, return_tensors="pt")
    torch_model.set_attn_implementation("eager")
    ids = torch.tensor([prompt + written])
    with torch.no_grad():
        out = torch_model(features.input_features, decoder_input_ids=ids, output_attentions=True)
    made = Generated(cross_attentions=[out.cross_attentions], sequences=ids)
    expected = torch_model._extract_token_timestamps(made, HEADS, num_frames=2 * (29000 // 320), num_input_ids=3)
    assert found == pytest.approx(expected[0, 3:-1].tolist()) and len(set(found)) > 4  # its last one is repeated


def test_words_of_segments_have_times_in_order(llm: LLM):
    (found,) = llm.transcribe((noise(3.0, 2), 16000), language="en", temperature=0, words=True)
    words = [word for segment in found.segments for word in segment.words]
    assert words and all(segment.words for segment in found.segments)
    assert all(0 <= word.start <= word.end <= 3.0 for word in words)
    assert [word.start for word in words] == sorted(word.start for word in words)
    (plain,) = llm.transcribe((noise(3.0, 2), 16000), language="en", temperature=0)
    assert plain.text == found.text and not any(segment.words for segment in plain.segments)


def test_asyncio_has_the_same_transcript(llm: LLM, folder: Path):
    async def run() -> Any:
        async with AsyncLLM(folder, device="cpu", kv_dtype="f32", lowered_gb=0, in_process=True) as other:
            return await other.transcribe((noise(3.0, 2), 16000), language="en", temperature=0, words=True)

    assert asyncio.run(run()) == llm.transcribe((noise(3.0, 2), 16000), language="en", temperature=0, words=True)


class Generated(dict):  # type: ignore[type-arg]
    """Outputs of `generate`, as transformers reads them: by name, and as items."""

    def __getattr__(self, name: str) -> Any:
        return self[name]
