"""Sound files become samples of 16 kHz; what is no sound is refused with what it is."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile

from quire.speech.audio import checked_samples, read_audio, resample
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure


def tone(rate: int, hertz: float, seconds: float = 1.0) -> np.ndarray:
    return np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate).astype(np.float32)


@pytest.mark.parametrize("rate", [8000, 22_050, 44_100, 48_000, 11_025])
def test_resampling_keeps_what_16_khz_can_hold(rate: int):
    found, right = resample(tone(rate, 440.0), rate), tone(16_000, 440.0)
    assert len(found) == 16_000
    assert np.abs(found - right)[200:-200].max() < 1e-4


def test_resampling_removes_what_16_khz_cannot_hold():
    assert np.abs(resample(tone(44_100, 12_000.0), 44_100))[200:-200].max() < 1e-3


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3"])
def test_two_channels_become_their_mean(kind: str):
    left, right = tone(16_000, 300.0), tone(16_000, 700.0)
    out = io.BytesIO()
    soundfile.write(out, np.stack([left, right], 1), 16_000, format=kind)
    found, mean = read_audio(out.getvalue()), (left + right) / 2
    assert np.corrcoef(found[2000:12000], mean[2000:12000])[0, 1] > 0.99


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "0 bytes"),
        (b"\x89PNG\r\n", "a PNG image"),
        (b"\xff\xd8\xff\xe0", "a JPEG image"),
        (b"RIFF\x00\x00\x00\x00WEBP", "a WebP image"),
        (b"%PDF-1.7", "a PDF document"),
        (b"not a sound at all" * 20, "cannot be decoded"),
    ],
)
def test_what_is_no_sound_is_refused(data: bytes, text: str):
    with pytest.raises(InvalidRequest, match=text) as error:
        read_audio(data)
    assert error.value.field == "file"


def test_a_file_that_is_too_long_is_refused_with_both_numbers():
    out = io.BytesIO()
    soundfile.write(out, np.zeros(32_000, np.int16), 16_000, format="WAV")
    with pytest.raises(InvalidRequest, match="2 s long, 1 s is the limit"):
        read_audio(out.getvalue(), max_seconds=1.0)


def test_formats_beside_the_four_are_refused():
    out = io.BytesIO()
    soundfile.write(out, np.zeros(1000, np.int16), 16_000, format="AU")
    with pytest.raises(InvalidRequest, match="accepted are WAV, FLAC, MP3, OGG"):
        read_audio(out.getvalue())


def test_a_flac_file_without_its_length_is_refused_with_what_to_do():
    out = io.BytesIO()
    soundfile.write(out, np.zeros(32_000, np.int16), 16_000, format="FLAC")
    data = bytearray(out.getvalue())
    data[21] &= 0xF0  # the lower 36 bits of bytes 21 to 25: how many samples there are; 0: it is not known
    data[22:26] = bytes(4)
    with pytest.raises(InvalidRequest, match="does not say how long it is") as error:
        read_audio(bytes(data))
    assert error.value.field == "file"


def test_integers_are_numbers_up_to_one():
    whole = (tone(16_000, 440.0) * 32_000).astype(np.int16)
    found = checked_samples(whole, 16_000, field="audio")
    assert found.dtype == np.float32 and np.array_equal(found, whole / np.float32(32_768))


@pytest.mark.parametrize(
    "samples, rate, text",
    [
        (np.zeros(9, np.float32), 0, "0 samples a second; accepted are"),
        (np.zeros(9, np.uint8), 16_000, "samples of uint8"),
        (np.full(9, np.nan), 16_000, "not finite"),
    ],
)
def test_samples_that_are_no_sound_are_refused(samples: np.ndarray, rate: int, text: str):
    with pytest.raises(InvalidRequest, match=text):
        checked_samples(samples, rate, field="audio")
