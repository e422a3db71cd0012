"""Log-mel features of 16 kHz audio, as Whisper was trained on: the numbers of transformers' WhisperFeatureExtractor."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.types.errors import InvalidRequest

Array = NDArray[Any]

SAMPLE_RATE = 16_000
FLOOR, RANGE = 1e-10, 8.0  # of powers; of their decimal logarithms below the loudest one
_FIXED = {"sampling_rate": SAMPLE_RATE, "padding_value": 0.0, "dither": 0.0, "return_attention_mask": False}


@dataclass(frozen=True, slots=True)
class MelFrontEnd:
    """The front end of one model. A window is as many samples as its encoder takes at once."""

    num_mels: int = 80
    window_seconds: int = 30
    fft_size: int = 400
    hop: int = 160
    filters: Array = field(init=False, repr=False, compare=False)  # float32 [fft_size // 2 + 1, num_mels]

    def __post_init__(self) -> None:
        object.__setattr__(self, "filters", mel_filters(self.num_mels, self.fft_size))

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> MelFrontEnd:
        """Read the content of preprocessor_config.json. A value that this front end does not honour is refused."""
        for key, value in _FIXED.items():
            if given.get(key, value) != value:
                raise InvalidRequest(f"preprocessor_config.json has {key} = {given[key]}; only {value} is supported.")
        sizes = [int(given.get(key, default)) for key, default in
                 (("feature_size", 80), ("chunk_length", 30), ("n_fft", 400), ("hop_length", 160))]  # fmt: skip
        return cls(*sizes)

    @property
    def window_samples(self) -> int:
        """Samples of one window."""
        return self.window_seconds * SAMPLE_RATE

    @property
    def window_frames(self) -> int:
        """Frames of one window."""
        return self.window_samples // self.hop

    def features(self, samples: Array) -> Array:
        """Return the features of one window, float32 [frames, num_mels]. Shorter audio is followed by silence."""
        if len(samples) > self.window_samples:
            raise ValueError(f"{len(samples)} samples are more than a window of {self.window_samples}")
        half = self.fft_size // 2
        padded = np.zeros(self.window_samples + 2 * half, np.float32)
        padded[half : half + len(samples)] = samples
        padded[:half] = padded[2 * half : half : -1]  # a mirror at both ends
        padded[-half:] = padded[-half - 2 : -2 * half - 2 : -1]
        frames = np.lib.stride_tricks.sliding_window_view(padded, self.fft_size)[:: self.hop][: self.window_frames]
        # Frames of silence alone need no transform: their power is 0.
        heard = min(self.window_frames, (len(samples) + half) // self.hop + 1)
        power = np.zeros((self.window_frames, half + 1), np.float32)
        power[:heard] = _power(frames[:heard], _hann(self.fft_size))
        if heard < self.window_frames:
            power[-2:] = _power(frames[-2:], _hann(self.fft_size))
        logs = np.log10(np.maximum(power @ self.filters, FLOOR))
        scaled: Array = (np.maximum(logs, logs.max() - RANGE) + 4.0) / 4.0
        return scaled.astype(np.float32, copy=False)


def _power(frames: Array, window: Array) -> Array:
    spectrum = np.fft.rfft(frames * window)
    power: Array = spectrum.real**2 + spectrum.imag**2
    return power


def features_digest(features: Array) -> str:
    """Return a hash of the features: equal recordings share what is computed from them."""
    return hashlib.blake2b(np.ascontiguousarray(features).tobytes(), digest_size=16).hexdigest()


@cache
def _hann(size: int) -> Array:
    """The periodic Hann window."""
    window: Array = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)).astype(np.float32)
    return window


@cache
def mel_filters(num_mels: int, fft_size: int) -> Array:
    """Return triangular filters of equal area on Slaney's mel scale from 0 to 8 kHz, [fft_size // 2 + 1, num_mels]."""
    edges = _hertz(np.linspace(_mel(0.0), _mel(SAMPLE_RATE / 2), num_mels + 2))
    slopes = edges[None, :] - np.linspace(0, SAMPLE_RATE / 2, fft_size // 2 + 1)[:, None]  # [bins, num_mels + 2]
    widths = np.diff(edges)
    rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    filters: Array = np.maximum(0, np.minimum(rising, falling)) * (2.0 / (edges[2:] - edges[:-2]))
    return filters.astype(np.float32)


# Slaney's scale: 3 mels for each 200 Hz up to 1 kHz, then 27 mels for each factor of 6.4.
_KNEE_HERTZ, _KNEE_MELS, _MELS_PER_LOG = 1000.0, 15.0, 27.0 / np.log(6.4)


def _mel(hertz: float) -> float:
    if hertz < _KNEE_HERTZ:
        return 3.0 * hertz / 200.0
    return float(_KNEE_MELS + np.log(hertz / _KNEE_HERTZ) * _MELS_PER_LOG)


def _hertz(mels: Array) -> Array:
    above = _KNEE_HERTZ * np.exp((mels - _KNEE_MELS) / _MELS_PER_LOG)
    hertz: Array = np.where(mels < _KNEE_MELS, 200.0 * mels / 3.0, above)
    return hertz
