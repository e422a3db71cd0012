"""Loading a model: open the checkpoint, draw the graph, lower it for the device, size the KV cache, make the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path

from quire import __version__
from quire.cache.checkpoints import CheckpointSpacing
from quire.cache.kv_cache import KVCache
from quire.config import Config, home_folder
from quire.devices import base as devices
from quire.devices.base import Device, Limits, LoweringOptions, Program, ReportsKernels, WeightCache
from quire.devices.facts import DeviceFacts
from quire.engine.context import context_limit
from quire.engine.core import EngineCore
from quire.engine.drafting import PlannedDraft, find_draft, plan_draft
from quire.engine.grammars import Grammars
from quire.engine.messages import Ready, WindowCache
from quire.grammar.compiler import Compiler
from quire.grammar.grammar import GrammarVocabulary, open_backend
from quire.models.config import CheckpointSource
from quire.models.draw import DrawnModel, draw
from quire.runner.cache_plan import CachePlan, cache_bytes, plan_own
from quire.runner.memory import ModelMemory, buffer_bytes, fit_cache, fixed_bytes, limits_of, with_kv_format
from quire.runner.runner import Runner
from quire.scheduler.overlapped import OverlappedSpeculation
from quire.scheduler.proposals import MAX_DRAFTS, DraftLimits, ProposesByModel, ProposesDrafts
from quire.scheduler.request_state import RequestState
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.speculation import Speculation
from quire.spec.prediction import PredictionDrafter
from quire.spec.suffix import SuffixDrafter
from quire.spec.tree import TreeDrafter
from quire.types.lowered import FOLDER
from quire.types.sampling_values import OFF
from quire.weights.checkpoint import Checkpoint, open_checkpoint
from quire.weights.lowered import LoweredStore

TUNED = "tuned"  # a folder below QUIRE_HOME
Progress = Callable[[str, float], None]  # the stage, and seconds since the start


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine, and the message that announces it."""

    core: EngineCore
    ready: Ready


def load_engine(
    path: str | Path, device: str | Device, config: Config, progress: Progress = lambda stage, seconds: None
) -> LoadedEngine:
    """Open the checkpoint at `path` and build its engine on this device."""
    began = time.monotonic()
    progress("opening the checkpoint", 0.0)
    checkpoint = open_checkpoint(path, config.weights.load_format)
    return build_engine(checkpoint, device, config, lambda stage: progress(stage, time.monotonic() - began))


def build_engine(
    checkpoint: CheckpointSource,
    device: str | Device,
    config: Config,
    progress: Callable[[str], None] = lambda stage: None,
    drafters: Sequence[ProposesDrafts] | None = None,
    draft: CheckpointSource | None = None,
) -> LoadedEngine:
    """An engine for an open checkpoint. `drafters`, `draft`: instead of what every model has, or the settings name."""
    began = time.monotonic()
    progress("drawing the graph")
    model = draw(checkpoint, partial(context_limit, config))
    opened = devices.open(device) if isinstance(device, str) else device
    facts = opened.facts()
    config = with_kv_format(config, facts)
    drafting = plan_draft(draft or find_draft(config), model, config, facts, checkpoint)
    model = model if drafting is None else drafting.target
    config, plan = fit_config(config, model, facts, 0 if drafting is None else drafting.num_bytes)
    progress(f"lowering for {opened.name}")
    drafter = None if drafting is None else _open_draft(drafting, opened)  # first: the KV cache takes what is left
    program, limits = lower(opened, model, limits_of(config, plan), kept_weights(checkpoint, model, config), config)
    if isinstance(checkpoint, Checkpoint):
        checkpoint.release_pages()
    vocab_size = model.config.vocab_size
    hidden = None if drafting is None else drafting.hidden
    runner = Runner(program, limits, vocab_size, config.cache.check_states, hidden)
    cache = KVCache(
        limits.num_blocks,
        limits.block_tokens,
        config.cache.session_ttl,
        windows=limits.windows,
        num_states=limits.num_states,
        spacing=_spacing(config, facts),
    )
    drafters = _drafters(cache) if drafters is None else drafters
    scheduler = Scheduler(cache, config.scheduler, _speculation(drafters, drafter, runner, config))
    cache.resizing.start(max(config.cache.num_blocks or limits.num_blocks, scheduler.fewest_blocks), 0.0)
    grammars = Grammars(scheduler, _compiler(checkpoint, vocab_size, config), config, vocab_size)
    core = EngineCore(scheduler, cache, runner, grammars, vocab_size, depth=runner.depth)
    core.seeds_requests = drafter is not None
    core.checks_when_idle = config.observe.log_level == "debug"
    windows = zip(plan.windows, plan.sizes.windows, strict=True)
    ready = Ready(
        device=opened.name,
        architecture=model.architecture,
        vocab_size=vocab_size,
        max_context=config.scheduler.max_context,
        num_blocks=cache.num_blocks,
        block_tokens=limits.block_tokens,
        seconds=time.monotonic() - began,
        most_blocks=cache.most_blocks,
        block_bytes=plan.sizes.tokens,
        weight_bytes=fixed_bytes(model.weights, vocab_size, config, facts),
        kernels=program.kernels if isinstance(program, ReportsKernels) else {},
        windows=tuple(WindowCache(*group, size.block) for group, size in windows),
        num_states=plan.num_states,
        state_bytes=plan.sizes.state,
    )
    return LoadedEngine(core, ready)


def _compiler(checkpoint: CheckpointSource, vocab_size: int, config: Config) -> Compiler:
    return Compiler(
        lambda: open_backend(grammar_vocabulary(checkpoint, vocab_size), config.grammar.open_objects), config.grammar
    )


def _drafters(cache: KVCache) -> tuple[ProposesDrafts, ...]:
    """The drafters that every model has."""

    def continued(state: RequestState, limit: int) -> Sequence[int]:
        return () if state.lease is None else cache.continuation(state.lease, state.tokens, limit)

    def predicted(state: RequestState) -> tuple[Sequence[int], int]:
        return state.request.predicted, state.num_prompt

    return TreeDrafter(continued), PredictionDrafter(predicted), SuffixDrafter()


def _open_draft(drafting: PlannedDraft, device: Device) -> ProposesByModel:
    kept = kept_weights(drafting.checkpoint, drafting.model, drafting.config)
    drafter = drafting.open(device, _lowering_options(drafting.config, device, kept))
    if isinstance(drafting.checkpoint, Checkpoint):
        drafting.checkpoint.release_pages()
    return drafter


def _speculation(
    drafters: Sequence[ProposesDrafts], model: ProposesByModel | None, runner: Runner, config: Config
) -> Speculation | None:
    """Speculation with these drafters. None: it is off, or the device is slow at drafts."""
    capacity = runner.draft_capacity
    if config.speculation.speculate == OFF or capacity is None:
        return None
    limits = DraftLimits(min(capacity.row_drafts, MAX_DRAFTS), config.scheduler.max_scored_tokens, capacity.step_tokens)
    return (Speculation if runner.depth == 1 else OverlappedSpeculation)(drafters, limits, model)


def lower(
    device: Device, model: DrawnModel, limits: Limits, kept: WeightCache | None, config: Config
) -> tuple[Program, Limits]:
    """The program, and the limits with the KV blocks that it has: a device with its own memory decides how many fit."""
    if device.facts().has_own_memory:
        limits = replace(limits, num_blocks=config.cache.num_blocks or 0)
    program = device.lower(model.graph, model.weights, limits, _lowering_options(config, device, kept))
    return program, replace(limits, num_blocks=program.num_blocks)


def _lowering_options(config: Config, device: Device, kept: WeightCache | None) -> LoweringOptions:
    return LoweringOptions(
        dtype=config.device.dtype,
        quantize=config.weights.quantize,
        fuse=config.device.fuse,
        deterministic=config.device.deterministic,
        captures=config.device.captures,
        tuned=home_folder(config) / TUNED,
        tune=config.device.tune,
        memory_share=config.cache.memory_share,
        experts_on_host=device.facts().expert_bytes_on_host(config.weights.experts_on_host),
        kept=kept,
    )


def fit_config(config: Config, model: DrawnModel, facts: DeviceFacts, other_bytes: int = 0) -> tuple[Config, CachePlan]:
    """The settings, limited to what the model can do, what the device has, and what its memory holds; the cache.

    `other_bytes`: of a model that drafts.
    """
    config = replace(config, scheduler=replace(config.scheduler, max_context=model.context))
    config = with_kv_format(config, facts)
    sizes, total = cache_bytes(model.graph.caches, config, facts.frees_windows), facts.memory.total_bytes
    if facts.has_own_memory:  # how many blocks fit is known when the program is made
        room = None
        if total is not None and (sizes.state or sizes.windows):
            room = int(total * config.cache.memory_share) - other_bytes - _fixed_bytes(model, config, facts)
        plan = plan_own(sizes, config, room, facts.steps_in_flight)
        return replace(config, cache=replace(config.cache, num_blocks=plan.num_blocks or None)), plan
    if total is None:
        sized = config.cache.num_blocks is not None
        return fit_cache(config, ModelMemory(0, 0, sizes)) if sized else (config, CachePlan(sizes.within(0), 0))
    return fit_cache(config, ModelMemory(total, other_bytes + _fixed_bytes(model, config, facts), sizes))


def _fixed_bytes(model: DrawnModel, config: Config, facts: DeviceFacts) -> int:
    weights = fixed_bytes(model.weights, model.config.vocab_size, config, facts)
    return weights + buffer_bytes(model.graph, model.weights, config, facts)


def _spacing(config: Config, facts: DeviceFacts) -> CheckpointSpacing:
    """Where recurrent layers store checkpoints inside a prompt."""
    every = config.cache.checkpoint_every or config.scheduler.max_context  # no prompt is longer
    return CheckpointSpacing(every, facts.checkpoint_grain(config.device.deterministic))


def grammar_vocabulary(checkpoint: CheckpointSource, vocab_size: int) -> GrammarVocabulary | None:
    """The model's tokens, for grammars. None: it has no tokenizer."""
    if not isinstance(checkpoint, Checkpoint):
        return None
    files = import_module("quire.engine.model_files")  # here, because most engines need no tokenizer of their own
    model_text = files.read_model_text(checkpoint)
    ends = tuple(token for token in model_text.eos_ids if token < vocab_size)
    return None if model_text.tokenizer is None else GrammarVocabulary(model_text.tokenizer, vocab_size, ends)


def kept_weights(checkpoint: CheckpointSource, model: DrawnModel, config: Config) -> WeightCache | None:
    """Where devices keep this model's weights as they lower them. None: switched off, or no file has the weights."""
    max_bytes = int(config.weights.lowered_gb * 1e9)
    if max_bytes == 0 or not isinstance(checkpoint, Checkpoint) or checkpoint.container == "dummy":
        return None
    store = LoweredStore(home_folder(config) / FOLDER, max_bytes)
    return store.for_model(checkpoint.digest(), model.graph.digest(), __version__, file=checkpoint.files[0].file.path)
