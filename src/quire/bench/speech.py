"""`quire bench speech`: a Whisper of random weights transcribes a minute of sound, beside faster-whisper.

`python -m quire.bench speech [--size tiny] [--seconds 60] [--tokens 64] [--runs 3]` writes a model of this size with
random weights, and has both engines write exactly so many tokens for each window of 30 s, in float32, one recording at
a time, on all cores. Random weights never end a text by themselves, so the number of tokens is fixed in both engines.
"""

from __future__ import annotations

import json
import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np

from quire.bench.page.text_table import align_columns
from quire.engine.llm import LLM
from quire.engine.transcription import drive
from quire.models.config import read_config
from quire.models.names import stored_shapes
from quire.models.registry import all_architectures
from quire.speech.transcribe import transcribe
from quire.types.speech import SpeechOptions

NAME = "WhisperForConditionalGeneration"
SIZES = {"tiny": (384, 4, 6, 1536), "base": (512, 6, 8, 2048), "small": (768, 12, 12, 3072)}
GOAL = 1.5  # times as fast as the other engine
PEER = "faster-whisper"


def main(arguments: Namespace) -> None:
    """Parse the rest of the command line, measure and print a table."""
    parser = ArgumentParser(prog="quire bench speech", description=__doc__)
    parser.add_argument("--size", choices=tuple(SIZES), default="tiny")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--model", default="", help="a folder with a model made before; default: a new one")
    options = parser.parse_args(arguments.rest)
    rng = np.random.default_rng(0)
    samples = (0.1 * rng.standard_normal(16_000 * options.seconds)).astype(np.float32)
    with TemporaryDirectory() as folder:
        path = Path(options.model) if options.model else write_model(Path(folder), options.size)
        times = {"quire": _measure(lambda: _ours(path, samples, options.tokens), options.runs)}
        try:
            times[PEER] = _measure(lambda: _theirs(path, samples, options.tokens), options.runs)
        except ImportError as error:
            print(
                f"{PEER} is not installed ({error.name}): pip install faster-whisper; its converter needs transformers"
            )
    rows = [[name, f"{seconds:.2f}", f"{options.seconds / seconds:.1f}"] for name, seconds in times.items()]
    print(align_columns(["engine", "s", "times real time"], rows))
    if PEER in times:
        print(f"{times[PEER] / times['quire']:.2f} times as fast as {PEER}; the goal is {GOAL}")


def _measure(prepare: Callable[[], Callable[[], int]], runs: int) -> float:
    """The median time of a run, after one that is not counted."""
    run, found = prepare(), []
    run()
    for _ in range(runs):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return median(found)


def _ours(path: Path, samples: Any, tokens: int) -> Callable[[], int]:
    llm = LLM(path, device="cpu", lowered_gb=0)
    model = llm._model.model_text.needed_speech(llm.client.ready.kinds)
    options = SpeechOptions("en", temperature=0.0, has_times=False, max_tokens=tokens, ignore_end=True)
    window = model.front_end.window_samples
    pieces = [samples[at : at + window] for at in range(0, len(samples), window)]

    def run() -> int:
        salted = (piece + np.float32(time.perf_counter() % 1 * 1e-6) for piece in pieces)  # no hit in the cache
        return sum(drive(llm.client, transcribe(model, piece, options)).num_tokens for piece in salted)

    return run


def _theirs(path: Path, samples: Any, tokens: int) -> Callable[[], int]:
    ctranslate2 = import_module("ctranslate2")
    extractor_class = import_module("faster_whisper.feature_extractor").FeatureExtractor
    target = path / "ctranslate2"
    if not target.is_dir():
        ctranslate2.converters.TransformersConverter(str(path)).convert(str(target), quantization="float32")
    model = ctranslate2.models.Whisper(str(target), device="cpu", intra_threads=os.cpu_count() or 1)
    extract = extractor_class()
    special = json.loads((path / "special.json").read_text())
    prompt = [special[name] for name in ("start", "en", "transcribe", "notimestamps")]
    window = 480_000

    def run() -> int:
        count = 0
        for at in range(0, len(samples), window):
            features = extract(samples[at : at + window], padding=0)[:, :3000]
            padded = np.pad(features, ((0, 0), (0, 3000 - features.shape[1])))
            view = ctranslate2.StorageView.from_array(np.ascontiguousarray(padded[None], np.float32))
            (found,) = model.generate(
                view, [prompt], beam_size=1, max_length=2 * (len(prompt) + tokens), suppress_tokens=[special["end"]],
                suppress_blank=False,
            )  # fmt: skip
            count += len(found.sequences_ids[0])
        return count

    return run


def write_model(folder: Path, size: str) -> Path:
    """Write a multilingual Whisper with random weights."""
    width, layers, heads, ffn = SIZES[size]
    sizes = {"layers": layers, "attention_heads": heads, "ffn_dim": ffn}
    sides = {f"{side}_{name}": each for side in ("encoder", "decoder") for name, each in sizes.items()}
    config = {"architectures": [NAME], "model_type": "whisper", "is_encoder_decoder": True, "vocab_size": 51865,
              "d_model": width, "activation_function": "gelu", "num_mel_bins": 80, "max_source_positions": 1500,
              "max_target_positions": 448, "decoder_start_token_id": 50258, "eos_token_id": 50257,
              "bos_token_id": 50257, "pad_token_id": 50257,
              **sides}  # fmt: skip
    generation = {"is_multilingual": True, "lang_to_id": {"<|en|>": 50259}}
    front_end = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 80, "chunk_length": 30,
                 "n_fft": 400, "hop_length": 160, "sampling_rate": 16000}  # fmt: skip
    special = {"start": 50258, "en": 50259, "transcribe": 50359, "notimestamps": 50363, "end": 50257}
    files = {"config": config, "generation_config": generation, "preprocessor_config": front_end, "special": special}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    save = import_module("safetensors.numpy").save_file
    save(_random_weights(config), folder / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(folder)
    return folder


def _random_weights(config: dict[str, Any]) -> dict[str, Any]:
    """The tensors that a checkpoint with this configuration has: norms of 1, small numbers elsewhere."""
    arch = next(each for each in all_architectures() if each.name == NAME)
    assert arch.source is not None
    checkpoint: Any = SimpleNamespace(container="safetensors", metadata=config, tensors={})
    numbers, rng = read_config(checkpoint, arch.keys, arch.config), np.random.default_rng(0)
    shapes = stored_shapes("safetensors", numbers, arch.names)
    shapes |= stored_shapes("safetensors", arch.source.config(numbers), arch.source.names)
    shapes |= stored_shapes("safetensors", numbers, arch.source.pairs)
    return {
        name: np.ones(shape, np.float32)
        if name.endswith("norm.weight")
        else rng.standard_normal(shape, np.float32) * np.float32(0.02)
        for name, shape in shapes.items()
    }


def _write_tokenizer(folder: Path) -> None:
    """A vocabulary of the size and with the special tokens of Whisper's; its words are numbers."""
    tokenizers = import_module("tokenizers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *(f"w{number}" for number in range(50257 - len(letters)))]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({word: at for at, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    codes = ["en", *(f"l{number}" for number in range(98))]
    tasks = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")
    names = ["endoftext", "startoftranscript", *codes, *tasks, *(f"{step * 0.02:.2f}" for step in range(1501))]
    tokenizer.add_special_tokens([tokenizers.AddedToken(f"<|{name}|>", special=True) for name in names])
    tokenizer.save(str(folder / "tokenizer.json"))
