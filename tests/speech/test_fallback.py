"""A window whose text is repetitive or unlikely is written again at a higher temperature."""

from __future__ import annotations

from typing import Any

import pytest

from quire.speech.mel import MelFrontEnd
from quire.speech.model import SpeechModel
from quire.speech.transcribe import Heard, _Task, hear, transcribe
from quire.types.source import EncoderInput
from quire.types.speech import SpeechAnswer, SpeechOptions, SpeechRequest

pytestmark = pytest.mark.pure
SPECIAL = {"<|startoftranscript|>": 101, "<|endoftext|>": 100, "<|nospeech|>": 102, "<|notimestamps|>": 119}
LIKELY, UNLIKELY = -0.2, -1.6
GOOD, LOOP = tuple(range(40, 60)), (33,) * 90


class Letters:
    """Tokens are letters."""

    def decode(self, tokens: Any, skip_special: bool = True) -> str:
        return "".join(map(chr, tokens))


def run(written: list[tuple[tuple[int, ...], float]], *, silence: float = -3.0, **options: Any) -> tuple[Heard, list]:
    """Give the answers one after the other; return what was heard, and the temperatures of the requests."""
    model = SpeechModel(MelFrontEnd(), Letters(), SPECIAL, {}, (), (), 50, 448)  # type: ignore[arg-type]
    task = _Task.of(model, SpeechOptions(**options), is_long=False)
    hearing, answers, asked = hear(task, EncoderInput.of_features(b"\0" * 640, 1), "en"), iter(written), []
    answer: SpeechAnswer | None = None
    try:
        while True:
            request: SpeechRequest = hearing.send(answer)
            if request.sampling.allowed_token_ids is not None:
                answer = SpeechAnswer((102,), (silence,))
                continue
            asked.append((request.sampling.temperature, request.sampling.seed))
            tokens, mean = next(answers)
            answer = SpeechAnswer(tokens, (mean,) * len(tokens))
    except StopIteration as ended:
        return ended.value, asked


def test_a_good_text_is_written_once():
    heard, asked = run([(GOOD, LIKELY)])
    assert asked == [(0.0, None)] and heard.answer.tokens == GOOD and not heard.is_silent


def test_repetitive_and_unlikely_texts_are_written_again_until_one_is_good():
    heard, asked = run([(LOOP, LIKELY), (GOOD, UNLIKELY), (GOOD, LIKELY)])
    assert [temperature for temperature, _ in asked] == [0.0, 0.2, 0.4] and asked[1][1] is not None
    assert (heard.temperature, heard.num_tokens) == (0.4, 130)


def test_of_six_poor_texts_the_likeliest_that_is_not_repetitive_is_taken():
    poor = [(LOOP, -0.1), (GOOD, -2.0), (GOOD, -1.5), (GOOD, -1.8), (LOOP, -0.2), (GOOD, -3.0)]
    heard, asked = run(poor)
    assert len(asked) == 6 and (heard.temperature, heard.mean) == (0.4, pytest.approx(-1.5))


def test_silence_is_not_tried_again_and_has_no_text():
    heard, asked = run([(GOOD, UNLIKELY)], silence=-0.1)
    assert len(asked) == 1 and heard.is_silent
    assert not run([(GOOD, LIKELY)], silence=-0.1)[0].is_silent


def test_a_temperature_that_is_asked_for_is_the_only_one():
    heard, asked = run([(LOOP, UNLIKELY)], silence=-0.1, temperature=0.3)
    assert asked == [(0.3, 0)] and not heard.is_silent


def test_a_model_without_alignment_heads_is_refused_before_the_first_request():
    import numpy as np

    from quire.types.errors import InvalidRequest

    model = SpeechModel(MelFrontEnd(), Letters(), SPECIAL, {}, (), (), 50, 448)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="alignment_heads") as error:
        next(transcribe(model, np.zeros(16000, np.float32), SpeechOptions(has_words=True)))
    assert error.value.field == "timestamp_granularities"
