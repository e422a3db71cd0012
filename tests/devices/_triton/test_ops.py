"""Every op that the device lowers, against the op's reference on the op's examples.

all but the ops below                                                   here
attention            test_attention.py (items of work), test_attend_few.py (with rope and the KV write, of few rows)
attention_latent                                                        test_latent.py
ops of recurrent layers                                                 test_states.py
steps fused into a product, FP8                                         test_stream.py, test_around_products.py
products with 4-bit weights                                             test_int4.py
sampling, which is not an op: against the host's filters                test_sample.py
attention_work.py, which only plans: every token sees each key once     test_attention_work.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quire.devices._triton.norm import Rounded
from quire.devices._triton.rope import TokenPlacement
from quire.devices.cuda.caches import Caches
from quire.devices.cuda.instructions import Run
from quire.devices.cuda.lower import EMIT, Lowering
from quire.devices.cuda.tiles import Tiles
from quire.devices.cuda.weights import Placer
from quire.graph.graph import Graph, Node, Value
from quire.graph.weight import Weight
from quire.ops.registry import Args, Op, all_ops, find_op, relative_error
from tests.devices.interpreted import in_interpreter
from tests.ops.encoded_tensor import EncodedTensor

pytestmark = pytest.mark.device

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
ELSEWHERE = {"attention", "attention_shared", "attention_latent", "attention_bidirectional", "qkv_attention"}
ELSEWHERE |= {"short_conv", "delta_rule", "state_scan", "activated_short_conv", "gated_delta_rule"}
ELSEWHERE |= {"features"}  # of a whole program: tests/devices/cuda/test_model_drafts.py
ELSEWHERE |= {"attention_source", "shift_tokens"}  # tests/devices/cuda/test_sources.py
ROUTED = {"weights": torch.float32, "chosen": torch.int32}  # inputs that route makes, in any number format
NUM_POSITIONS = 4096
MAX_INTERPRETED = 8  # tokens of an example in the interpreter
# Attributes that examples may leave out.
DEFAULTS = {"rms_norm": {"group": 0}, "layer_norm": {"group": 0}, "normed_linear": {"kind": ""}}


class OneOp:
    """A graph of one node with an example's arguments, lowered and run."""

    def __init__(self, op: Op, args: Args, dtype: str, place: str) -> None:
        self.op, self.args, self.dtype, self.place = op, args, DTYPES[dtype], place
        self.weights: dict[str, Weight] = {}
        bound = {parameter: self._bind(parameter, args[parameter]) for parameter in op.weights}
        rows = "logits" if "head" in op.name else "tokens"
        self.inputs = [Value(i, (rows, args[name].shape[1])) for i, name in enumerate(op.inputs)]
        attrs = {**DEFAULTS.get(op.name, {}), **{name: args[name] for name in op.attrs if name in args}}
        expected = op(**args)
        self.expected: list[np.ndarray] = list(expected) if isinstance(expected, tuple) else [expected]
        self.outputs = [
            Value(len(self.inputs) + i, ("tokens", array.shape[1])) for i, array in enumerate(self.expected)
        ]
        self.graph = Graph.over(self.weights)
        self.graph.nodes.append(Node(op, tuple(self.inputs), bound, attrs, tuple(self.outputs)))
        if "head" in op.name:
            self.graph.outputs["logits"] = self.outputs[0]

    def _bind(self, parameter: str, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, tuple):
            return tuple(self._bind(f"{parameter}{i}", each) for i, each in enumerate(value))
        tensor = EncodedTensor.of(parameter, value, "f32")
        self.weights[parameter] = Weight(parameter, tensor.shape, tensor.format, tensor)
        return parameter

    def run(self, is_fixed: bool = False) -> list[np.ndarray]:
        """Run it as few tokens, which are streamed where that is possible; return its outputs."""
        placer = Placer(self.weights, torch.device(self.place), self.dtype, Tiles(4, is_fixed))
        caches = Caches((), 16, self.dtype, placer.device, 0)
        lowering = Lowering(self.graph, placer, caches, NUM_POSITIONS, None)
        run = self._step()
        with np.errstate(over="ignore"):  # the interpreter computes exp of large numbers with numpy
            for instruction in lowering.walk():
                instruction(run)
        return [self._read(run, value.id) for value in self.outputs]

    def _read(self, run: Run, value: int) -> np.ndarray:
        out = run.values[value]
        if isinstance(out, Rounded):
            out = out.values.float() * out.scale[:, None]
        elif value in run.pending:
            out = run.whole(value)
        return out.float().cpu().numpy()

    def _step(self) -> Run:
        none = torch.zeros(0, dtype=torch.int32, device=self.place)
        given = {name: torch.from_numpy(self.args[name]).to(self.place) for name in self.op.reads}
        where = TokenPlacement(given.get("positions", none), none)
        run = Run(given.get("token_ids", none), where, none, {}, none, given.get("logits_at"))
        run.pools, run.token_types = given.get("pools"), given.get("token_types")
        for value, name in zip(self.inputs, self.op.inputs, strict=True):
            dtype = ROUTED.get(name, self.dtype)
            run.values[value.id] = torch.from_numpy(self.args[name].copy()).to(self.place, dtype)
        return run


def examples(op: Op, dtype: str, place: str) -> list[Args]:
    """Return the examples to run. The interpreter skips those of many tokens; an accelerator, which compiles kernels
    for each size, runs the largest and the last one."""
    arrays = (*op.inputs, *op.reads)
    found = [(max(len(args[name]) for name in arrays), args) for args in op.example_args(dtype)]
    if place == "cuda":
        return [max(found, key=lambda each: each[0])[1], found[-1][1]]
    return [args for num_tokens, args in found if num_tokens <= MAX_INTERPRETED or op.name == "select"]


@pytest.mark.parametrize("dtype", ["bf16", *in_interpreter("f32", "f16")])
@pytest.mark.parametrize("name", sorted(EMIT.keys() - ELSEWHERE))
def test_an_instruction_matches_the_reference_of_its_op(name, dtype, place):
    op = find_op(name)
    for args in examples(op, dtype, place):
        one = OneOp(op, args, dtype, place)
        for found, expected in zip(one.run(), one.expected, strict=True):
            error = relative_error(found, expected)
            assert error <= op.tolerance[dtype], [f"{k}={v}" for k, v in args.items() if not isinstance(v, np.ndarray)]


def test_every_op_has_an_instruction():
    assert {op.name for op in all_ops()} == EMIT.keys() | ELSEWHERE
