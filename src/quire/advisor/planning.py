"""Finds the model and the hardware to simulate: the model's files, or its published sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from quire.advisor.advice import Advice, AdvicePlan, advise_on_workload
from quire.advisor.comparison import read_comparison
from quire.advisor.hardware import find_hardware
from quire.advisor.model_shape import DEFAULT_SHAPE, PUBLISHED, ModelShape, checkpoint_shape, published_shape
from quire.advisor.model_sources import name_to_serve
from quire.advisor.prompt_marks import PromptMarker
from quire.advisor.roofline import Roofline
from quire.advisor.workload import workload_of
from quire.config import Config
from quire.devices.facts import DeviceFacts
from quire.engine.model_files import read_model_text
from quire.report.trace import Trace
from quire.runner.memory import with_kv_format
from quire.store.store import Store
from quire.text.model_text import ModelText
from quire.types.errors import InvalidRequest, QuireError
from quire.types.formats import CONVERSIONS
from quire.weights.checkpoint import open_checkpoint

SERVED_AS = re.compile(r"[\w.:-]+")  # a NAME of `quire serve NAME=MODEL`


@dataclass(frozen=True, slots=True)
class AdviceRequest:
    """The options of `quire advise`. Empty: chosen by the advisor."""

    model: str = ""
    on: str = "here"
    precision: str = ""
    compare: Path | None = None
    trace_file: str = ""  # empty: the trace is not a file


@dataclass(frozen=True, slots=True)
class _PlannedModel:
    name: str  # as commands name it
    shape: ModelShape
    model_text: ModelText | None = None
    notes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


def advise_on_trace(
    trace: Trace,
    request: AdviceRequest,
    config: Config,
    store: Store,
    server: Any = None,
    show_status: Callable[[str], Any] = print,
) -> Advice:
    """Return advice on a trace. `server`: /props of the running Quire that the trace is from, if it is from one."""
    hardware = find_hardware(request.on)
    config = with_kv_format(config, hardware.facts)
    if request.precision in CONVERSIONS and request.precision not in hardware.facts.conversions:
        raise InvalidRequest(
            f"{request.precision} weights need a GPU. On a CPU use --precision q8_0.", field="precision"
        )
    model = _model(trace, request, config, store, hardware.facts)
    plan = AdvicePlan(
        model.name,
        Roofline(model.shape, hardware),
        config,
        None if request.compare is None else partial(read_comparison, request.compare),
        _served_blocks(trace, server),
        model.notes,
        {each.model: _command_name(each.model, store) for each in trace.requests if each.model},
        model.flags,
        request.trace_file,
    )
    show_status("counting tokens")
    return advise_on_workload(workload_of(trace, PromptMarker(model.model_text)), plan, show_status)


def _model(trace: Trace, request: AdviceRequest, config: Config, store: Store, facts: DeviceFacts) -> _PlannedModel:
    """Return the model of --model or of most requests, from files on this disk or from published sizes."""
    names = [each.model for each in trace.requests if each.model]
    most_used = max(sorted(set(names)), key=names.count, default="")
    name, precision = request.model or most_used, request.precision
    path, shape = _find(store, name), published_shape(name)
    if path is not None:
        return _stored(name, path, precision, config, facts)
    if shape is not None:
        return _published(name, shape.with_kv(config.cache.kv_dtype).on(facts), precision)
    if request.model:
        known = ", ".join(PUBLISHED)
        raise InvalidRequest(
            f"{request.model} is not stored, and its sizes are unknown. Use a stored model, a path, or one of {known}.",
            field="model",
        )
    note = f"The sizes of the trace's model are unknown: times and memory are those of {DEFAULT_SHAPE}. Use --model."
    substitute = _published(DEFAULT_SHAPE, PUBLISHED[DEFAULT_SHAPE].with_kv(config.cache.kv_dtype).on(facts), precision)
    # Served under the name that clients use.
    served = f"{most_used}={substitute.name}" if SERVED_AS.fullmatch(most_used) else substitute.name
    return replace(substitute, name=served, notes=(note,))


def _stored(name: str, path: Path, precision: str, config: Config, facts: DeviceFacts) -> _PlannedModel:
    """Plan for a model on this disk."""
    shape, model_text = checkpoint_shape(path, config, facts), read_model_text(open_checkpoint(path))
    if precision in ("", shape.precision):
        return _PlannedModel(name, shape, model_text)
    other = shape.in_precision(precision)
    if precision in CONVERSIONS:
        return _PlannedModel(name, other, model_text, flags=_flags(precision))
    note = f"{name} is stored in {shape.precision}. To run it in {precision}, pull or create such weights first."
    return _PlannedModel(name, other, model_text, (note,))


def _published(name: str, shape: ModelShape, precision: str) -> _PlannedModel:
    """Plan for a well-known model that is not on this disk: the command names its source."""
    shape = shape.in_precision(precision) if precision else shape
    return _PlannedModel(name_to_serve(name, shape.precision) or name, shape, flags=_flags(shape.precision))


def _flags(precision: str) -> tuple[str, ...]:
    """Return the flags of `quire serve` for weights that the device converts when it loads them."""
    return (f"--quantize {precision}",) if precision in CONVERSIONS else ()


def _command_name(name: str, store: Store) -> str:
    """Return the name of a model for a command; empty if no source is known."""
    return name if _find(store, name) is not None else name_to_serve(name, "bf16") or ""


def _find(store: Store, name: str) -> Path | None:
    if not name:
        return None
    try:
        return store.find(name)
    except QuireError:  # not a valid name for a store, such as that of a hosted service
        return None


def _served_blocks(trace: Trace, server: Any) -> int | None:
    """Return the KV blocks of the server's most used model."""
    if server is None:
        return None
    names = [request.model for request in trace.requests]
    model = server["models"].get(max(set(names), key=names.count))
    return None if model is None else int(model["num_blocks"])
