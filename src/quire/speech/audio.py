"""Reads sound files: WAV, FLAC, MP3, OGG into float32 samples, one channel, 16 kHz. Needs the extra `audio`."""

from __future__ import annotations

import io
from importlib import import_module
from math import gcd
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.speech.mel import SAMPLE_RATE
from quire.types.errors import AudioUnavailable, InvalidRequest

Array = NDArray[Any]

MAX_SECONDS = 2 * 3600  # of one file: 460 MB of samples
LEAST_RATE, MOST_RATE = 1_000, 768_000  # samples a second
FORMATS = ("WAV", "FLAC", "MP3", "OGG")
TAPS = 24  # zero crossings on each side of the resampling filter
UNKNOWN_FRAMES = 1 << 62  # what libsndfile has, or more, for a file without a length; it cannot decode it in pieces
_PIECE = 1 << 20  # samples decoded at once
_IMAGES = {b"\x89PNG": "a PNG image", b"\xff\xd8\xff": "a JPEG image", b"GIF8": "a GIF image", b"BM": "a BMP image"}
_OTHERS = {b"%PDF": "a PDF document", b"PK\x03\x04": "a ZIP archive", b"{": "JSON", b"<": "markup"}


def read_audio(data: bytes, *, max_seconds: float = MAX_SECONDS, field: str = "file") -> Array:
    """Decode a sound file. Errors name `field`, what the data is, and what is accepted."""
    if not data:
        raise InvalidRequest("The audio file is empty: 0 bytes.", field=field)
    soundfile = _soundfile()
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            _check(file, max_seconds, field)
            pieces = [piece.mean(axis=1) for piece in file.blocks(_PIECE, dtype="float32", always_2d=True)]
            rate = int(file.samplerate)
    except soundfile.LibsndfileError as error:
        raise InvalidRequest(_why(data, str(error)), field=field) from None
    samples = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
    if not len(samples):
        raise InvalidRequest("The audio file has no samples.", field=field)
    return checked_samples(samples, rate, field=field)


def checked_samples(samples: Array, rate: int, *, field: str) -> Array:
    """Return samples of one channel at 16 kHz. Integers become numbers from -1 to 1, as in a sound file."""
    if samples.dtype.kind not in "if":
        raise InvalidRequest(f"The audio has samples of {samples.dtype}: give signed integers or floats.", field=field)
    _check_rate(rate, field)
    numbers = samples.astype(np.float32, copy=False)
    if samples.dtype.kind == "i":
        numbers = numbers * np.float32(0.5 ** (8 * samples.dtype.itemsize - 1))
    if not np.isfinite(numbers).all():
        raise InvalidRequest("The audio has samples that are not finite numbers.", field=field)
    return resample(numbers, rate)


def _check_rate(rate: int, field: str) -> None:
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise InvalidRequest(f"The audio has {rate} samples a second; accepted are {LEAST_RATE} to {MOST_RATE}.",
                             field=field)  # fmt: skip


def _check(file: Any, max_seconds: float, field: str) -> None:
    """Refuse a file by its header, before it is decoded."""
    rate, frames = int(file.samplerate), int(file.frames)
    if file.format not in FORMATS:
        raise InvalidRequest(f"The audio is {file.format}; accepted are {', '.join(FORMATS)}.", field=field)
    _check_rate(rate, field)
    if frames >= UNKNOWN_FRAMES:
        raise InvalidRequest(f"The {file.format} file does not say how long it is, as files written to a pipe do not. "
                             "Write it to a file, or send WAV, MP3 or OGG.", field=field)  # fmt: skip
    if frames > max_seconds * rate:
        raise InvalidRequest(
            f"The audio is {frames / rate:.0f} s long, {max_seconds:.0f} s is the limit. Send it in parts.", field=field
        )


def _why(data: bytes, error: str) -> str:
    """Say what data is that cannot be decoded."""
    known = next((what for start, what in {**_IMAGES, **_OTHERS}.items() if data.startswith(start)), None)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        known = "a WebP image"
    if known is not None:
        return f"The file is {known}, not audio. Send {', '.join(FORMATS[:-1])} or {FORMATS[-1]}."
    reason = error.rpartition(": ")[2].rstrip(".")
    return f"The audio cannot be decoded: {reason}. Accepted are {', '.join(FORMATS)}; the file may be damaged."


def resample(samples: Array, rate: int) -> Array:
    """Return the samples at 16 kHz: a windowed sinc filter, evaluated once for each phase of the two rates."""
    if rate == SAMPLE_RATE:
        return samples.astype(np.float32, copy=False)
    common = gcd(rate, SAMPLE_RATE)
    up, down = SAMPLE_RATE // common, rate // common
    cutoff = min(1.0, up / down)  # of the lower rate's band
    reach = int(np.ceil(TAPS / cutoff))
    padded = np.pad(samples.astype(np.float32, copy=False), (reach, reach + 1))
    count = -(-len(samples) * up // down)
    out = np.empty(count, np.float32)
    offsets = np.arange(-reach, reach + 1)
    views = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)
    for phase in range(min(up, count)):  # outputs phase, phase + up, …: the same fraction between two input samples
        first, remainder = divmod(phase * down, up)
        distance = offsets - remainder / up
        taper = np.cos(np.pi / 2 * np.clip(distance / (reach + 1), -1, 1)) ** 2
        kernel = (cutoff * np.sinc(cutoff * distance) * taper).astype(np.float32)
        num = len(range(phase, count, up))
        out[phase::up] = views[first : first + (num - 1) * down + 1 : down] @ kernel
    return out


def _soundfile() -> ModuleType:
    try:
        return import_module("soundfile")
    except (ImportError, OSError):
        raise AudioUnavailable from None
