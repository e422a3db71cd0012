"""What `open("cpu")` answers: it lowers a graph to native kernels, or to the references where there are none."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from quire.devices.base import Limits, Program
from quire.graph.graph import Graph
from quire.graph.weight import Weights

from .bindings import native
from .lower import NoKernel, lower_graph
from .pack import Precision
from .program import ReferenceProgram
from .threads import pool_for

logger = logging.getLogger("quire.devices.cpu")


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """This machine's processors."""

    name: str = "cpu"

    def lower(
        self,
        graph: Graph,
        weights: Weights,
        limits: Limits,
        *,
        precision: Precision = "native",
        num_threads: int | None = None,
        variant: str | None = None,
    ) -> Program:
        """A program that runs a whole step in one native call.

        precision    "native": weights stay in the format of their file, and quantized ones are multiplied with
                     activations of 8 bits. "float": everything is float32, as the references compute.
        num_threads  None: as many as this process may use; never more than that.
        variant      None: the fastest kernels that this machine can run.
        """
        module = native()
        if module is None:
            return ReferenceProgram(graph, weights, limits)
        program = module.Program(variant or module.variants()[0], pool_for(module, num_threads), _sizes(limits))
        try:
            return lower_graph(program, graph, weights, limits, precision)
        except NoKernel as missing:
            logger.warning("%s Every op runs on its numpy reference: correct, but many times slower.", missing)
            return ReferenceProgram(graph, weights, limits)


def _sizes(limits: Limits) -> list[int]:
    rows = (limits.max_tokens, limits.max_rows, limits.max_logits)
    return [*rows, limits.max_blocks, limits.num_blocks, limits.block_tokens]


DEVICE = CpuDevice()
