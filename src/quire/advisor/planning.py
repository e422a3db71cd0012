"""From what a user says to what is simulated: the model's files or its published sizes, and the machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from quire.advisor.advice import Advice, Planned, advise
from quire.advisor.compared import read_comparison
from quire.advisor.hardware import hardware_named
from quire.advisor.prompts import Marker
from quire.advisor.published import name_to_serve
from quire.advisor.roofline import Roofline
from quire.advisor.shape import DEFAULT_SHAPE, PUBLIC, Shape, public_shape, shape_of
from quire.advisor.workload import workload_of
from quire.config import Config
from quire.engine.model_files import read_model_text
from quire.report.trace import Trace
from quire.runner.memory import kv_dtype
from quire.store.store import Store
from quire.text.model_text import ModelText
from quire.types.errors import InvalidRequest, QuireError
from quire.weights.checkpoint import open_checkpoint

GPU_PRECISION, QUANTIZED = "fp8", ("--quantize fp8",)  # made of other weights when a GPU loads them
SERVED_AS = re.compile(r"[\w.:-]+")  # names that `quire serve NAME=MODEL` takes


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a user says; empty is what they leave to us."""

    model: str = ""
    on: str = "here"
    precision: str = ""
    compare: Path | None = None
    trace_file: str = ""  # where the requests are from, if that is a file


@dataclass(frozen=True, slots=True)
class _Model:
    name: str  # as a command names it
    shape: Shape
    model_text: ModelText | None = None
    notes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


def advise_on(
    trace: Trace, wanted: Wanted, config: Config, store: Store, server: Any = None, say: Callable[[str], Any] = print
) -> Advice:
    """Advice on a trace. `server` is what a running Quire says at /props, if the trace is from one."""
    hardware = hardware_named(wanted.on)
    config = replace(config, cache=replace(config.cache, kv_dtype=kv_dtype(config, hardware.kv_dtype)))
    if hardware.kind == "cpu" and wanted.precision == GPU_PRECISION:
        raise InvalidRequest("Weights become fp8 when a GPU loads them: on a CPU plan for q8_0.", field="precision")
    model = _model(trace, wanted, config, store)
    planned = Planned(
        model.name,
        Roofline(model.shape, hardware),
        config,
        None if wanted.compare is None else partial(read_comparison, wanted.compare),
        _served_blocks(trace, server),
        model.notes,
        {request.model: _spelled(request.model, store) for request in trace.requests if request.model},
        model.flags,
        wanted.trace_file,
    )
    say("counting tokens")
    return advise(workload_of(trace, Marker(model.model_text)), planned, say)


def _model(trace: Trace, wanted: Wanted, config: Config, store: Store) -> _Model:
    """The one that is named, or the trace's, as files if they are here, else by its published sizes."""
    named = [request.model for request in trace.requests if request.model]
    used = max(sorted(set(named)), key=named.count, default="")
    name, precision = wanted.model or used, wanted.precision
    path, shape = _find(store, name), public_shape(name)
    if path is not None:
        return _stored(name, path, precision, config)
    if shape is not None:
        return _published(name, shape.with_kv(kv_dtype(config)), precision)
    if wanted.model:
        known = ", ".join(PUBLIC)
        raise InvalidRequest(
            f"{wanted.model} is not here, and its sizes are not known: give a stored model, a path, or one of {known}.",
            field="model",
        )
    note = f"No model was given, and the trace's is not here: times and memory are those of {DEFAULT_SHAPE}."
    stands_in = _published(DEFAULT_SHAPE, PUBLIC[DEFAULT_SHAPE].with_kv(kv_dtype(config)), precision)
    # Clients go on asking for the name that they know.
    served = f"{used}={stands_in.name}" if SERVED_AS.fullmatch(used) else stands_in.name
    return replace(stands_in, name=served, notes=(note,))


def _stored(name: str, path: Path, precision: str, config: Config) -> _Model:
    """A model that is here."""
    shape, model_text = shape_of(path, config), read_model_text(open_checkpoint(path))
    if precision in ("", shape.precision):
        return _Model(name, shape, model_text)
    wanted = shape.in_precision(precision)
    if precision == GPU_PRECISION:
        return _Model(name, wanted, model_text, flags=QUANTIZED)
    note = f"{name} is here in {shape.precision}: to run it in {precision}, fetch or make such weights first."
    return _Model(name, wanted, model_text, (note,))


def _published(name: str, shape: Shape, precision: str) -> _Model:
    """A well-known model that is not here: the command names where it is fetched from."""
    shape = shape.in_precision(precision) if precision else shape
    flags = QUANTIZED if shape.precision == GPU_PRECISION else ()
    return _Model(name_to_serve(name, shape.precision) or name, shape, flags=flags)


def _spelled(name: str, store: Store) -> str:
    """The name for a command; empty if no source of the model is known."""
    return name if _find(store, name) is not None else name_to_serve(name, "bf16") or ""


def _find(store: Store, name: str) -> Path | None:
    if not name:
        return None
    try:
        return store.find(name)
    except QuireError:  # no name that a store could have, such as that of a service
        return None


def _served_blocks(trace: Trace, server: Any) -> int | None:
    """KV blocks of the model that most requests were for."""
    if server is None:
        return None
    named = [request.model for request in trace.requests]
    ready = server["models"].get(max(set(named), key=named.count))
    return None if ready is None else int(ready["num_blocks"])
