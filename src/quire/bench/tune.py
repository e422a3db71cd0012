"""`quire bench tune`: find the fastest matrix products for a model on this GPU.

`python -m quire.bench tune [MODEL] [--shape llama8b] [--fp8]` times every kernel for each shape of the model's matrices
and keeps the fastest on disk, in the folder `tuned` below QUIRE_HOME, for all models with such matrices. Without MODEL
the weights are random, in the shape of a public model. Needs torch, triton and numpy, no server.
"""

from __future__ import annotations

import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from quire.bench.engines.random_models import LOAD_FORMAT, SHAPES, write_config
from quire.config import home_folder, load
from quire.devices import base as devices
from quire.devices.base import Device, Tunable
from quire.devices.facts import DeviceUnavailable
from quire.engine.load import TUNED, fit_config, lower
from quire.models.draw import draw
from quire.runner.memory import limits_of
from quire.weights.checkpoint import open_checkpoint

SMALL = {"max_rows": 64, "max_step_tokens": 256, "max_context": 512, "num_blocks": 64}  # tuning needs only the weights


def main(arguments: Namespace) -> None:
    """Parse the rest of the command line and tune."""
    parser = ArgumentParser(prog="quire bench tune", description=__doc__)
    parser.add_argument("model", nargs="?", default=arguments.model, help="a name, a file or a folder")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama8b", help="the shape of the random model")
    parser.add_argument("--fp8", action="store_true", help="weights and activations as FP8")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the engine")
    options = parser.parse_args(arguments.rest)
    settings: dict[str, Any] = dict(each.split("=", 1) for each in options.set)
    settings |= {"quantize": "fp8"} if options.fp8 else {}
    with tempfile.TemporaryDirectory() as folder:
        if options.model:
            path = _path(options.model)
        else:
            path, settings["load_format"] = Path(folder), LOAD_FORMAT
            write_config(path, options.shape)
        for line in tune_model(path, options.device, settings):
            print(line, flush=True)


def tune_model(path: Path, device: str | Device, settings: Mapping[str, Any]) -> Iterator[str]:
    """Load the model on the device and tune it. Yield lines of progress."""
    began = time.monotonic()
    opened = devices.open(device) if isinstance(device, str) else device
    config = load(SMALL | dict(settings))
    model = draw(open_checkpoint(path, config.weights.load_format))
    config, plan = fit_config(config, model, opened.facts())
    program, _ = lower(opened, model, limits_of(config, plan), None, config)
    if not isinstance(program, Tunable):
        raise DeviceUnavailable(f"The device {opened.name!r} has nothing to tune.")
    yield f"the model is loaded: {time.monotonic() - began:.1f} s"
    yield from program.tune()
    yield f"kept in {home_folder(config) / TUNED}: {time.monotonic() - began:.1f} s in all"


def _path(name: str) -> Path:
    """Return the path of a file, folder or name. Names need the store, which is imported only for them."""
    path: Path = Path(name) if Path(name).exists() else import_module("quire.bench.engines.model_path").model_path(name)
    return path
