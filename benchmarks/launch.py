"""What a call of a µGraph costs the CPU beyond its kernels: microseconds of our own code for each launch.

    python benchmarks/launch.py [--library torch|cupy|none] [--json]

`none` needs no GPU: the driver is a stand-in, which leaves checking arguments, addresses and the loop over kernels. On a GPU
the time is taken while the stream is idle enough never to wait: launches are counted, not kernels. Programs have one to eight
kernels; the slope over their number is the cost of a launch, the intercept that of a call.
"""

import argparse
import ctypes
import json
import platform
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # the stand-ins are with the tests

from mirage_eg.backends.compile import loaded
from mirage_eg.backends.emit import emit
from mirage_eg.backends.emit_address import row_major
from mirage_eg.backends.library_cupy import Cupy
from mirage_eg.backends.library_torch import Torch
from mirage_eg.backends.runtime import Program
from mirage_eg.backends.runtime_driver import Driver, LaunchCall
from mirage_eg.backends.runtime_library import Layout, Library
from mirage_eg.backends.timing import gpu_available
from mirage_eg.ir.graph import Graph, node
from mirage_eg.ir.ops import Level
from mirage_eg.ir.shapes import Shape

SIZE = 256
LIMIT_US = 10.0  # of our own code, a kernel


def chain(kernels: int) -> Graph:
    """So many generated kernels of one tile each."""
    inner = Graph(
        (
            node("input", shape=(SIZE,), dtype="float16", imap=(-1,)),
            node("relu", 0),
            node("output", 1, omap=(-1,)),
        ),
        Level.BLOCK,
        (1,),
    )
    nodes = [node("input", shape=(SIZE,), dtype="float16", name="x")]
    nodes += [node("block", number, graph=inner) for number in range(kernels)]
    return Graph((*nodes, node("output", kernels, name="y")))


def measure(program: Program, library: Library, arrays: list[Any], out: list[Any], calls: int) -> list[float]:
    """Microseconds of each of some calls."""
    for _ in range(20):
        program(arrays, library, out)
    _wait(library)
    times = []
    for number in range(calls):
        start = perf_counter_ns()
        program(arrays, library, out)
        times.append((perf_counter_ns() - start) / 1000)
        if number % 50 == 49:
            _wait(library)  # the queue of launches must not fill
    return times


def _wait(library: Library) -> None:
    if isinstance(library, Torch):
        import torch

        torch.cuda.synchronize()
    elif isinstance(library, Cupy):
        import cupy

        cupy.cuda.runtime.deviceSynchronize()


def bare_launch_us(program: Program, library: Library, arrays: list[Any], out: list[Any]) -> float:
    """The driver's own part of a launch: the same foreign call, alone."""
    program(arrays, library, out)
    [lane] = program._lanes.values()
    launch = lane.launches[0]
    entered = program.driver.enter(0)
    times = []
    for number in range(1000):
        start = perf_counter_ns()
        launch()
        times.append((perf_counter_ns() - start) / 1000)
        if number % 50 == 49:
            _wait(library)
    if entered:
        program.driver.leave()
    return median(times)


def stand_in() -> tuple[Library, Driver]:
    """A library and a driver that do nothing."""
    from property_tests.runtime_fakes import FakeDriver, FakeLibrary

    class Nothing(FakeDriver):
        def prepare(
            self, function: int, grid: Shape, threads: int, shared: int, stream: int, parameters: "ctypes.Array[Any]"
        ) -> LaunchCall:
            return lambda: 0

    return FakeLibrary(), Nothing()


def _missing(library: str) -> str:
    """What this machine lacks for a library; empty where it has all."""
    if find_spec(library) is None:
        return f"--library {library}: it is not installed"
    return "" if gpu_available() else f"--library {library}: no CUDA GPU is usable here; --library none needs none"


def main() -> int:
    """Print a table, or a JSON line; exit code 2 where there is no GPU or no such library."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", choices=("torch", "cupy", "none"), default="none")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.library != "none" and (problem := _missing(options.library)):
        print(f"launch: {problem}", file=sys.stderr)
        return 2
    library: Library
    driver: Driver | None = None
    match options.library:
        case "torch":
            library = Torch()
        case "cupy":
            library = Cupy()
        case _:
            library, driver = stand_in()
    rows = {}
    bare = 0.0
    for kernels in (1, 2, 4, 8):
        graph = chain(kernels)
        with loaded(emit(graph)) as module:
            outputs = [Layout("y", (SIZE,), "float16", row_major((SIZE,)))]
            program = Program(module, ["x"], outputs, driver)
            arrays = [library.empty(layout, 0) for layout in program.plan.inputs]
            out = [library.empty(layout, 0) for layout in program.outputs]
            rows[kernels] = median(measure(program, library, arrays, out, options.calls))
            if kernels == 1 and driver is None:
                bare = bare_launch_us(program, library, arrays, out)
    slope = (rows[8] - rows[1]) / 7
    line = {
        "kind": "launch",
        "library": options.library,
        "call_us": rows,
        "launch_us": slope,
        "driver_launch_us": bare,
        "own_us_a_kernel": max(total / kernels for kernels, total in rows.items()) - bare,
        "limit_us": LIMIT_US,
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "triton": metadata.version("triton"),
    }
    if options.json:
        print(json.dumps(line))
    else:
        for kernels, total in rows.items():
            print(f"{kernels} kernels: {total:6.2f} µs a call, {total / kernels:5.2f} µs a kernel")
        print(f"a further kernel: {slope:.2f} µs, of which the driver's launch {bare:.2f} µs")
        print(f"own code, at most: {line['own_us_a_kernel']:.2f} µs a kernel (wanted: under {LIMIT_US:.0f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
