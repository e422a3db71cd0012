"""A model's way in: checkpoint, graph, device, memory, then an engine that can run it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from quire import __version__
from quire.cache.kv_cache import KVCache
from quire.config import BadSetting, Config, home_folder
from quire.devices import base as devices
from quire.devices.base import Device, HasMemory, KeptWeights, Limits, LoweringOptions, NamesKernels, Program
from quire.engine.core import EngineCore
from quire.engine.grammars import Grammars
from quire.engine.messages import Ready
from quire.grammar.compiler import Compiler
from quire.grammar.grammar import Words, open_backend
from quire.models.config import CheckpointSource
from quire.models.draw import Model, draw
from quire.runner.memory import HOST_KV, DeviceFacts, block_bytes, host_bytes, kv_dtype, plan_blocks, used_bytes
from quire.runner.runner import Runner
from quire.scheduler.scheduler import Scheduler
from quire.types.lowered import FOLDER
from quire.weights.checkpoint import Checkpoint, open_checkpoint
from quire.weights.lowered import LoweredStore

TUNED = "tuned"  # a folder below QUIRE_HOME
Progress = Callable[[str, float], None]  # what is being done, and seconds since the start


@dataclass(frozen=True, slots=True)
class Loaded:
    """An engine, and what it says of itself."""

    core: EngineCore
    ready: Ready


def load(
    path: str | Path, device: str | Device, config: Config, progress: Progress = lambda stage, seconds: None
) -> Loaded:
    """Open the checkpoint at `path` and make an engine of it on this device."""
    began = time.monotonic()
    progress("opening the checkpoint", 0.0)
    checkpoint = open_checkpoint(path, config.weights.load_format)
    return build(checkpoint, device, config, lambda stage: progress(stage, time.monotonic() - began))


def build(
    checkpoint: CheckpointSource,
    device: str | Device,
    config: Config,
    progress: Callable[[str], None] = lambda stage: None,
) -> Loaded:
    """An engine of an open checkpoint."""
    began = time.monotonic()
    progress("drawing the graph")
    model = draw(checkpoint)
    place = devices.open(device) if isinstance(device, str) else device
    config = replace(config, cache=replace(config.cache, kv_dtype=kv_dtype_for(place, config)))
    config = bound(config, model) if isinstance(place, HasMemory) else fit(config, model)
    progress(f"lowering for {place.name}")
    program, limits = lower(place, model, limits_of(config), kept_weights(checkpoint, model, config), config)
    if isinstance(checkpoint, Checkpoint):
        checkpoint.let_go()
    vocab_size = model.config.vocab_size
    runner = Runner(program, limits, vocab_size)
    cache = KVCache(limits.num_blocks, limits.block_tokens, config.cache.session_ttl)
    scheduler = Scheduler(cache, config.scheduler)
    cache.resize(max(config.cache.num_blocks or limits.num_blocks, scheduler.fewest_blocks), 0.0)
    compiler = Compiler(
        lambda: open_backend(words_of(checkpoint, vocab_size), config.grammar.open_objects), config.grammar
    )
    grammars = Grammars(scheduler, compiler, config, vocab_size)
    core = EngineCore(scheduler, cache, runner, grammars, vocab_size, depth=runner.depth)
    core.checks = config.observe.log_level == "debug"
    ready = Ready(
        device=place.name,
        architecture=model.architecture,
        vocab_size=vocab_size,
        max_context=config.scheduler.max_context,
        num_blocks=cache.num_blocks,
        block_tokens=limits.block_tokens,
        seconds=time.monotonic() - began,
        most_blocks=cache.most_blocks,
        block_bytes=block_bytes(model.graph, config),
        weight_bytes=used_bytes(model.weights, vocab_size, config),
        kernels=program.kernels if isinstance(program, NamesKernels) else {},
    )
    return Loaded(core, ready)


def kv_dtype_for(place: Device, config: Config) -> str:
    """How this device stores K and V: as set, if it can, or as it prefers."""
    of_gpus = isinstance(place, HasMemory)
    found = kv_dtype(config, place.kv_dtype if isinstance(place, HasMemory) else HOST_KV)
    instead = {"q8_0": "f8_e4m3"} if of_gpus else {"f8_e4m3": "q8_0"}
    if found in instead:
        message = (
            f"kv_dtype is {found!r}, which the device {place.name!r} does not have. For 8 bits choose {instead[found]}."
        )
        raise BadSetting(message, field="kv_dtype")
    return found


def lower(
    place: Device, model: Model, limits: Limits, kept: KeptWeights | None, config: Config
) -> tuple[Program, Limits]:
    """The program, and the limits with the blocks that it has: a device with memory of its own decides how many fit."""
    if not isinstance(place, HasMemory):
        if config.weights.quantize is not None:
            raise BadSetting(
                f"quantize is {config.weights.quantize!r}, and the device {place.name!r} takes weights as they are. "
                "Run on cuda, or get the model in a smaller format, such as a GGUF file.",
                field="quantize",
            )
        return place.lower(model.graph, model.weights, limits, kept), limits
    wishes = LoweringOptions(
        dtype=config.device.dtype,
        quantize=config.weights.quantize,
        deterministic=config.device.deterministic,
        captures=config.device.captures,
        tuned=home_folder(config) / TUNED,
        tune=config.device.tune,
        memory_share=config.cache.memory_share,
    )
    limits = replace(limits, num_blocks=config.cache.num_blocks or 0)
    program = place.lower(model.graph, model.weights, limits, kept, **wishes)
    return program, replace(limits, num_blocks=program.num_blocks)


def bound(config: Config, model: Model) -> Config:
    """The settings, bounded by what the model can do."""
    max_context = min(config.scheduler.max_context, model.config.max_context)
    return replace(config, scheduler=replace(config.scheduler, max_context=max_context))


def fit(config: Config, model: Model) -> Config:
    """The settings, bounded by what the model can do and what the memory holds."""
    config = bound(config, model)
    facts = DeviceFacts(
        total_bytes=host_bytes(),
        used_bytes=used_bytes(model.weights, model.config.vocab_size, config),
        block_bytes=block_bytes(model.graph, config),
    )
    return plan_blocks(config, facts)


def words_of(checkpoint: CheckpointSource, vocab_size: int) -> Words | None:
    """The model's words, for grammars. None: it came without a tokenizer."""
    if not isinstance(checkpoint, Checkpoint):
        return None
    files = import_module("quire.engine.model_files")  # here, because most engines need no tokenizer of their own
    model_text = files.read_model_text(checkpoint)
    ends = tuple(token for token in model_text.eos_ids if token < vocab_size)
    return None if model_text.tokenizer is None else Words(model_text.tokenizer, vocab_size, ends)


def kept_weights(checkpoint: CheckpointSource, model: Model, config: Config) -> KeptWeights | None:
    """Where devices keep what they make of this model's weights. None: nowhere, as set, or because no file has them."""
    max_bytes = int(config.weights.lowered_gb * 1e9)
    if max_bytes == 0 or not isinstance(checkpoint, Checkpoint) or checkpoint.container == "dummy":
        return None
    store = LoweredStore(home_folder(config) / FOLDER, max_bytes)
    return store.of(checkpoint.digest(), model.graph.digest(), __version__, file=checkpoint.files[0].file.path)


def limits_of(config: Config) -> Limits:
    """The most that a step may hold, so that a device can plan its buffers once."""
    num_blocks = config.cache.most_blocks or config.cache.num_blocks or 0
    blocks_of_context = -(-config.scheduler.max_context // config.cache.block_tokens)
    return Limits(
        max_tokens=config.scheduler.max_step_tokens,
        max_rows=config.scheduler.max_rows,
        max_logits=config.scheduler.max_rows + config.scheduler.max_scored_tokens,
        max_blocks=min(blocks_of_context, num_blocks) if num_blocks else blocks_of_context,
        num_blocks=num_blocks,
        block_tokens=config.cache.block_tokens,
        kv_dtype=kv_dtype(config),
    )
