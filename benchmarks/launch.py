"""What a call of a µGraph costs the CPU beyond its kernels: microseconds of our own code for each launch.

    python benchmarks/launch.py [--library torch|cupy|none] [--arguments N] [--json]

Timed is `mugraph(*arrays, out=buffer)`, and `mugraph(*arrays)` beside what the library itself takes for a new array. `none`
needs no GPU: arrays and driver are stand-ins, which leaves our own code behind `mugraph`. On a GPU the time is taken while the
stream is idle enough never to wait: launches are counted, not kernels. Programs have one to eight kernels; the slope over their
number is the cost of a launch, the intercept that of a call.
"""

import argparse
import ctypes
import json
import platform
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # the stand-ins are with the tests

from mirage_eg.api import MuGraph
from mirage_eg.backends.measure.timing import gpu_available
from mirage_eg.backends.runtime.array_library import ArrayLayout, Library
from mirage_eg.backends.runtime.cuda_driver import Driver, Function, LaunchCall
from mirage_eg.backends.runtime.cupy_arrays import Cupy
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.runtime.torch_arrays import Torch
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import node
from mirage_eg.ir.ops import Level
from mirage_eg.ir.shapes import Shape, row_major

SIZE = 256
LIMIT_US = 10.0  # of our own code, a kernel


def chain(kernels: int, arguments: int = 1) -> Graph:
    """So many generated kernels of one tile each; the first takes all arguments."""
    nodes = [node("input", shape=(SIZE,), dtype="float16", name=f"x{number}") for number in range(arguments)]
    nodes += [node("block", *range(arguments), graph=_tile(arguments))]
    nodes += [node("block", arguments + number, graph=_tile(1)) for number in range(kernels - 1)]
    return Graph((*nodes, node("output", arguments + kernels - 1, name="y")))


def _tile(arguments: int) -> Graph:
    """The sum of the arguments, its negative part cut off."""
    nodes = [node("input", shape=(SIZE,), dtype="float16", imap=(-1,)) for _ in range(arguments)]
    nodes += [node("add", max(0, arguments + number - 1), number + 1) for number in range(arguments - 1)]
    last = len(nodes) - 1
    return Graph((*nodes, node("relu", last), node("output", last + 1, omap=(-1,))), Level.BLOCK, (1,))


def measure(call: Callable[[], Any], library: Library, calls: int) -> float:
    """Microseconds of a call, the median of some."""
    for _ in range(20):
        call()
    _wait(library)
    times = []
    for number in range(calls):
        start = perf_counter_ns()
        call()
        times.append((perf_counter_ns() - start) / 1000)
        if number % 50 == 49:
            _wait(library)  # the queue of launches must not fill
    return median(times)


def _wait(library: Library) -> None:
    if isinstance(library, Torch):
        import torch

        torch.cuda.synchronize()
    elif isinstance(library, Cupy):
        import cupy

        cupy.cuda.runtime.deviceSynchronize()


def bare_launch_us(program: RunningProgram, library: Library, calls: int) -> float:
    """The driver's own part of a launch: the same foreign call, alone."""
    [state] = program._stream_states.values()
    entered = program.driver.enter(0)
    taken = measure(state.launches[0], library, calls)
    if entered:
        program.driver.leave()
    return taken


def stand_in() -> tuple[Library, Driver]:
    """A library and a driver that do nothing."""
    from property_tests.support.fake_driver import FakeDriver, FakeLibrary

    class Nothing(FakeDriver):
        def prepare(self, function: Function, grid: Shape, stream: int, parameters: "ctypes.Array[Any]") -> LaunchCall:
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
    parser.add_argument("--arguments", type=int, default=1, help="arrays that the program takes")
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
    rows, new = {}, {}
    bare = alone = 0.0
    for kernels in (1, 2, 4, 8):
        graph = chain(kernels, options.arguments)
        with ExitStack() as resources:
            if driver is None:
                mugraph = MuGraph(SimpleNamespace(graph=graph, source=emit(graph)))  # type: ignore[arg-type]
                program = mugraph._program()
            else:
                outputs = [ArrayLayout("y", (SIZE,), "float16", row_major((SIZE,)))]
                program = RunningProgram(resources.enter_context(loaded(emit(graph))), graph.input_names, outputs, driver)
            arrays = [library.allocator(layout, 0)() for layout in program.plan.inputs]
            [buffer] = [library.allocator(layout, 0)() for layout in program.outputs]
            if driver is None:
                with_buffer, without = partial(mugraph, *arrays, out=buffer), partial(mugraph, *arrays)
            else:
                with_buffer, without = partial(program, arrays, library, [buffer]), partial(program, arrays, library)
            rows[kernels] = measure(with_buffer, library, options.calls)
            new[kernels] = measure(without, library, options.calls)
            if kernels == 1 and driver is None:
                bare = bare_launch_us(program, library, options.calls)
                alone = measure(library.allocator(program.outputs[0], 0), library, options.calls)
    slope = (rows[8] - rows[1]) / 7
    line = {
        "kind": "launch",
        "library": options.library,
        "arguments": options.arguments,
        "call_us": rows,
        "new_output_call_us": new,
        "launch_us": slope,
        "driver_launch_us": bare,
        "library_array_us": alone,
        "own_us_a_kernel": max(total / kernels - bare for kernels, total in rows.items()),
        "own_us_a_kernel_new_output": max((total - alone) / kernels - bare for kernels, total in new.items()),
        "limit_us": LIMIT_US,
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "triton": metadata.version("triton"),
    }
    if options.json:
        print(json.dumps(line))
    else:
        for kernels, total in rows.items():
            each = f"{total:6.2f} µs a call, {total / kernels:5.2f} µs a kernel"
            print(f"{kernels} kernels: {each}; with a new output {new[kernels]:.2f} µs a call")
        print(f"a further kernel: {slope:.2f} µs, of which the driver's launch {bare:.2f} µs; a new array: {alone:.2f} µs")
        own, own_new = line["own_us_a_kernel"], line["own_us_a_kernel_new_output"]
        print(f"own code, at most: {own:.2f} µs a kernel, output new: {own_new:.2f} µs (wanted: under {LIMIT_US:.0f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
