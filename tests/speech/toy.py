"""A folder with a small Whisper: random weights, a vocabulary of bytes, windows of two seconds."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path

import numpy as np

LANGUAGES = ("en", "de", "fr")
SPECIAL = ("<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in LANGUAGES), "<|translate|>",
           "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")  # fmt: skip
WINDOW = 2  # seconds
TIMES = tuple(f"<|{step * 0.02:.2f}|>" for step in range(WINDOW * 50 + 1))
# as published files have it: also what begins a text, tasks, and silence
HEADS = [[0, 1], [1, 0], [1, 1]]  # layer and head, by whose attention words are found
SUPPRESSED, SUPPRESSED_FIRST = [5, 6, 7, 257, 261, 262, 263, 264, 265], [32, 256]


def make_speech_folder(folder: Path, seed: int = 0) -> Path:
    """Write the folder; return it."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in (*SPECIAL, *TIMES)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    first = len(letters)
    config = WhisperConfig(
        vocab_size=first + len(SPECIAL) + len(TIMES), d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=80,
        max_source_positions=WINDOW * 50, max_target_positions=96, eos_token_id=first, bos_token_id=first,
        pad_token_id=first, decoder_start_token_id=first + 1, suppress_tokens=SUPPRESSED,
        begin_suppress_tokens=SUPPRESSED_FIRST,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(config)
    for tensor in model.parameters():
        tensor.data = torch.randn_like(tensor) * 0.25 + (tensor.ndim == 1) * 0.2
    model.save_pretrained(folder, safe_serialization=True)
    files = {
        "preprocessor_config.json": {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 80,
                                     "chunk_length": WINDOW, "n_fft": 400, "hop_length": 160, "sampling_rate": 16000},
        "generation_config.json": {
            "lang_to_id": {f"<|{code}|>": first + 2 + at for at, code in enumerate(LANGUAGES)},
            "task_to_id": {"translate": first + 5, "transcribe": first + 6}, "is_multilingual": True,
            "no_timestamps_token_id": first + 10, "max_initial_timestamp_index": 50, "suppress_tokens": SUPPRESSED,
            "begin_suppress_tokens": SUPPRESSED_FIRST, "eos_token_id": first, "pad_token_id": first,
            "decoder_start_token_id": first + 1, "prev_sot_token_id": first + 8, "alignment_heads": HEADS,
        },
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"},
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@cache
def spoken(text: str = "the quick brown fox jumps over the lazy dog") -> bytes:
    """A WAV file of synthetic speech; of a chirp where the synthesizer is not installed."""
    import io

    import soundfile

    try:
        done = subprocess.run(["espeak-ng", "--stdout", text], capture_output=True, check=True)
        return done.stdout
    except (OSError, subprocess.CalledProcessError):
        times = np.arange(3 * 22050) / 22050
        sound = 0.4 * np.sin(2 * np.pi * (150 + 60 * times) * times) * (1 + np.sin(2 * np.pi * 4 * times))
        out = io.BytesIO()
        soundfile.write(out, sound, 22050, format="WAV")
        return out.getvalue()
