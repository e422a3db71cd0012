"""Tunes a GPU for a model, now: `python -m quire.bench tune [MODEL] [--shape llama8b] [--fp8]`.

Every way to multiply is timed for each of the model's matrices, and the fastest are kept on disk, in the folder `tuned`
below QUIRE_HOME, for all models with such matrices that start after this. Without a MODEL it has random weights, in the
shape of a public one. Needs torch, triton and numpy, no server.
"""

from __future__ import annotations

import json
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from quire.bench.gpu import MODELS, SHAPE
from quire.config import home_folder, load
from quire.devices import base as devices
from quire.devices.base import Device, Tunable
from quire.devices.facts import DeviceUnavailable
from quire.engine.load import TUNED, fit_config, limits_of, lower
from quire.models.draw import draw
from quire.weights.checkpoint import open_checkpoint

SMALL = {"max_rows": 64, "max_step_tokens": 256, "max_context": 512, "num_blocks": 64}  # products are all that counts


def main(given: Namespace) -> None:
    """What `python -m quire.bench tune` does."""
    parser = ArgumentParser(prog="quire bench tune", description=__doc__)
    parser.add_argument("model", nargs="?", default=given.model, help="a name, a file or a folder")
    parser.add_argument("--shape", choices=sorted(MODELS), default="llama8b", help="of the random model")
    parser.add_argument("--fp8", action="store_true", help="weights and activations as FP8")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the engine")
    asked = parser.parse_args(given.rest)
    settings: dict[str, Any] = dict(each.split("=", 1) for each in asked.set)
    settings |= {"quantize": "fp8"} if asked.fp8 else {}
    with tempfile.TemporaryDirectory() as folder:
        if asked.model:
            path = _path(asked.model)
        else:
            path, settings["load_format"] = Path(folder), "dummy"
            Path(folder, "config.json").write_text(json.dumps(SHAPE | MODELS[asked.shape]))
        for line in tuned(path, asked.device, settings):
            print(line, flush=True)


def tuned(path: Path, device: str | Device, settings: Mapping[str, Any]) -> Iterator[str]:
    """Place the model, then time its products; what was done, line by line."""
    began = time.monotonic()
    place = devices.open(device) if isinstance(device, str) else device
    config = load(SMALL | dict(settings))
    model = draw(open_checkpoint(path, config.weights.load_format))
    config = fit_config(config, model, place.facts())
    program, _ = lower(place, model, limits_of(config), None, config)
    if not isinstance(program, Tunable):
        raise DeviceUnavailable(f"The device {place.name!r} has nothing to tune.")
    yield f"the model is placed: {time.monotonic() - began:.1f} s"
    yield from program.tune()
    yield f"kept in {home_folder(config) / TUNED}: {time.monotonic() - began:.1f} s in all"


def _path(name: str) -> Path:
    """Of a file or folder; a name is looked up by what is imported here, since a bare machine does without."""
    path: Path = Path(name) if Path(name).exists() else import_module("quire.bench.located").located(name)
    return path
