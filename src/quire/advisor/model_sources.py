"""Repositories of well-known models, so that a recommended command names a model that can be pulled."""

from __future__ import annotations

import re

from quire.advisor.model_shape import SAME_SHAPES, published_shape

HUB = "hf.co/"
# By the name of a shape: the repository with the original weights, and the one with GGUF files.
REPOSITORIES = {
    "smollm2-135m": ("HuggingFaceTB/SmolLM2-135M-Instruct", "bartowski/SmolLM2-135M-Instruct-GGUF"),
    "llama-3.2-1b": ("meta-llama/Llama-3.2-1B-Instruct", "bartowski/Llama-3.2-1B-Instruct-GGUF"),
    "llama-3.2-3b": ("meta-llama/Llama-3.2-3B-Instruct", "bartowski/Llama-3.2-3B-Instruct-GGUF"),
    "llama-3.1-8b": ("meta-llama/Llama-3.1-8B-Instruct", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"),
    "llama-3.3-70b": ("meta-llama/Llama-3.3-70B-Instruct", "bartowski/Llama-3.3-70B-Instruct-GGUF"),
    "llama-3-8b": ("meta-llama/Meta-Llama-3-8B-Instruct", "bartowski/Meta-Llama-3-8B-Instruct-GGUF"),
    "llama-3-70b": ("meta-llama/Meta-Llama-3-70B-Instruct", "bartowski/Meta-Llama-3-70B-Instruct-GGUF"),
    "llama-3.1-70b": ("meta-llama/Llama-3.1-70B-Instruct", "bartowski/Meta-Llama-3.1-70B-Instruct-GGUF"),
    "mistral-7b": ("mistralai/Mistral-7B-Instruct-v0.3", "bartowski/Mistral-7B-Instruct-v0.3-GGUF"),
    "qwen2.5-7b": ("Qwen/Qwen2.5-7B-Instruct", "bartowski/Qwen2.5-7B-Instruct-GGUF"),
    "qwen2.5-32b": ("Qwen/Qwen2.5-32B-Instruct", "bartowski/Qwen2.5-32B-Instruct-GGUF"),
    "qwen3-8b": ("Qwen/Qwen3-8B", "bartowski/Qwen_Qwen3-8B-GGUF"),
    "qwen3-32b": ("Qwen/Qwen3-32B", "bartowski/Qwen_Qwen3-32B-GGUF"),
    "gemma-3-27b": ("google/gemma-3-27b-it", "bartowski/google_gemma-3-27b-it-GGUF"),
}
BUNDLED = {("smollm2-135m", "q4_1"): "smollm2:135m"}  # pulled from the package index
QUANTS = {  # precisions with a file in the GGUF repository; others are made from the original weights
    "q8_0": "Q8_0", "q6_k": "Q6_K", "q5_k": "Q5_K_M", "q4_k": "Q4_K_M", "q4_0": "Q4_0", "q4_1": "Q4_1",
    "q3_k": "Q3_K_M", "int8": "Q8_0", "int4": "Q4_K_M",
}  # fmt: skip
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def name_to_serve(name: str, precision: str) -> str | None:
    """Return a name that `quire serve` can pull, with weights in this precision. None: no source is known.

    A name that contains its source (hf.co/…, a registry's name:tag) is returned unchanged.
    """
    if name.startswith(HUB) or (":" in name and "/" not in name):
        return name
    shape = published_shape(name)
    if shape is None:
        return None
    if precision not in QUANTS and REPOSITORY.fullmatch(name):
        return HUB + name
    known = next((key for key in SAME_SHAPES if name.lower().startswith(key)), shape.name)
    if (known, precision) in BUNDLED:
        return BUNDLED[known, precision]
    weights, gguf = REPOSITORIES[known]
    return f"{HUB}{gguf}:{QUANTS[precision]}" if precision in QUANTS else HUB + weights
