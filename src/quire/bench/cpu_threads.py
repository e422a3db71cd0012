"""`quire bench cpu-threads`: products and peak rates with 1, 2, 4, … threads, by every variant of the kernels.

It needs no model, no network and no other engine, and takes about a minute for each number of threads: for a machine
that can be used only for a short time. Shares are of the rates that were measured with as many threads.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from importlib import import_module
from pathlib import Path
from types import ModuleType

from quire.bench.machine.description import describe_machine
from quire.bench.page.text_table import align_columns
from quire.devices import base

MODULE = "quire.devices.cpu.time_products"
FORMATS = "q4_0,q4_1,q4_k,q6_k,q8_0,bf16"
HUGE_PAGES, NODES = Path("/sys/kernel/mm/transparent_hugepage/enabled"), Path("/sys/devices/system/node")


def main(arguments: Namespace) -> None:
    """Parse the rest of the command line, measure and print."""
    parser = ArgumentParser(prog="quire bench cpu-threads", description=__doc__)
    parser.add_argument("--threads", default="", help="numbers of threads, separated by commas; all that make sense")
    parser.add_argument("--formats", default=FORMATS, help="of weights, separated by commas")
    parser.add_argument("--mb", type=int, default=512, help="of weights of each format: more than the caches hold")
    options = parser.parse_args(arguments.rest)
    report = base.open("cpu").describe()
    if report.kernels is None:
        parser.error("there are no native kernels here to be measured")
    module = import_module(MODULE)
    print(describe_machine())
    print(f"kernels: {report.kernels}; features: {' '.join(report.features)}")
    nodes = len([each for each in NODES.glob("node*") if each.is_dir()]) or 1
    print(f"NUMA nodes: {nodes}; huge pages: {_line_of(HUGE_PAGES)}")
    counts = [int(each) for each in options.threads.split(",")] if options.threads else module.thread_counts()
    for num_threads in counts:
        print(f"\n{_table(module, num_threads, options.formats.split(','), options.mb << 20)}", flush=True)


def _table(module: ModuleType, num_threads: int, formats: list[str], num_bytes: int) -> str:
    """Return a table for one number of threads, below the peak rates."""
    peaks = module.peaks_with(num_threads)
    rates = f"{peaks.read_bytes / 1e9:.1f} GB/s read, {peaks.multiply_adds / 1e9:,.0f} G int8 multiply-adds/s"
    few, many = module.FEW_TOKENS, module.MANY_TOKENS
    heads = ["format", "kernels"]
    heads += [f"{count} tokens, GB/s" for count in few] + [f"{count} tokens, G/s" for count in many]
    rows = []
    for each in module.time_products(num_threads, formats, num_bytes):
        read = [f"{rate / 1e9:.1f} ({rate / peaks.read_bytes:.0%})" for rate in each.read_bytes.values()]
        products = [f"{rate / 1e9:.0f} ({rate / peaks.multiply_adds:.0%})" for rate in each.multiply_adds.values()]
        rows.append([each.format, each.variant, *read, *products])
    return f"{num_threads} threads: {rates} ({peaks.kernels})\n{align_columns(heads, rows)}"


def _line_of(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return "unknown"
