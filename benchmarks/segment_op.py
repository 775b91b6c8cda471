"""What a call of a segment costs the CPU besides its kernels, in microseconds: our code, and torch's dispatcher in front of it.

    python benchmarks/segment_op.py [--json]

Needs no GPU: arrays, library and driver are stand-ins. *Kernels* is the call of a running program of one kernel
(`benchmarks/launch.py`), *segment* the same as Inductor's code calls it; the difference is our own cost. *Mixed* is a segment
of three kernels and two products of torch between them, without what torch itself takes for these. *Direct* and *dispatched*
are calls of kernels that do nothing, by our function and by the op `mirage_eg::segment` under torch.no_grad().
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent.parent))  # the stand-ins are with the tests

import torch

from benchmarks.launch import chain, stand_in
from mirage_eg.backends.runtime.array_library import ArrayLayout, Check
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.runtime.torch_arrays import Torch
from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import node
from mirage_eg.ir.ops import Level
from mirage_eg.torch_compile import calls, segment_call
from mirage_eg.torch_compile.operator import segment_op
from property_tests.support.fake_driver import FakeArray, FakeLibrary

KEY = "benchmark"
ARGUMENTS = 3


class CudaArray(FakeArray):
    """An array that says that it is on a GPU."""

    is_cuda = True

    def is_contiguous(self) -> bool:
        return True

    def untyped_storage(self) -> Any:
        return SimpleNamespace(data_ptr=lambda: self.pointer)


class CudaLibrary(FakeLibrary):
    """Allocates such arrays."""

    def empty(self, layout: ArrayLayout, device: int) -> FakeArray:
        return CudaArray(layout.shape, layout.dtype, layout.strides, device)


def microseconds(call: Callable[[], object], times: int = 100, rounds: int = 200) -> float:
    """The least over short rounds of the mean time of a call: other work on the machine makes a round longer only."""
    means = []
    for _ in range(rounds):
        begin = perf_counter_ns()
        for _ in range(times):
            call()
        means.append((perf_counter_ns() - begin) / times / 1e3)
    return min(means)


class HostTorch(Torch):
    """Tensors of the CPU that say they are on a GPU."""

    def stream(self, device: int) -> int:
        return 7

    def allocator(self, layout: ArrayLayout, device: int) -> Callable[[], Any]:
        return partial(torch.empty_strided, layout.shape, layout.strides, dtype=getattr(torch, layout.dtype))

    def memory(self, nbytes: int, device: int) -> Any:
        return torch.empty(nbytes, dtype=torch.uint8)

    def checker(self, layouts: Sequence[ArrayLayout]) -> Check:
        guards: list[Any] = []

        def check(arrays: Sequence[Any]) -> tuple[list[int], int] | None:
            guards[:] = guards or [self._guard(*arrays)]
            return (list(map(self.address, arrays)), 0) if guards[0](*arrays) else None

        return check


def mixed() -> Graph:
    """Kernels of one argument with products of torch between them."""
    tile = Graph(
        (node("input", shape=(16, 16), dtype="float32", imap=(0,)), node("relu", 0), node("output", 1, omap=(0,))),
        Level.BLOCK,
        (1,),
    )
    nodes = [node("input", shape=(16, 16), dtype="float32", name=f"x{place}") for place in range(ARGUMENTS)]
    last = 0
    for step in range(5):
        nodes.append(node("matmul", last, 1) if step % 2 else node("block", last, graph=tile))
        last = len(nodes) - 1
    return Graph((*nodes, node("output", last, name="y")))


def mixed_us() -> float:
    """Microseconds of a call of its segment without the products."""
    (_, driver), graph = stand_in(), mixed()
    found: Any = SimpleNamespace(key=KEY, program=graph, candidate=SimpleNamespace(source=emit(graph)))
    arrays = [torch.randn(16, 16) for _ in range(ARGUMENTS)]
    with (
        patch.object(segment_call, "RunningProgram", partial(RunningProgram, driver=driver)),
        patch.object(segment_call, "torch_library", cache(HostTorch)),
        torch.no_grad(),
    ):
        run = segment_call.SegmentCall(found).run_on_gpu
        return microseconds(lambda: run(arrays)) - 2 * microseconds(lambda: torch.matmul(arrays[0], arrays[1]))


def measured() -> dict[str, float]:
    """Microseconds by name."""
    library, (_, driver), graph = CudaLibrary(), stand_in(), chain(1, ARGUMENTS)
    found: Any = SimpleNamespace(key=KEY, program=graph, candidate=SimpleNamespace(source=emit(graph)))
    figures = {}
    with (
        patch.object(segment_call, "RunningProgram", partial(RunningProgram, driver=driver)),
        patch.object(segment_call, "torch_library", lambda: library),
    ):
        call = segment_call.SegmentCall(found)
        calls.add_call(call)
        shape, dtype = call.inputs_at({})[0]
        arrays = [library.empty(ArrayLayout("x", shape, dtype, (1,)), 0) for _ in range(ARGUMENTS)]
        calls.run_segment(arrays, KEY)
        [(running, *_)] = call._running.values()
        figures["kernels"] = microseconds(lambda: running(arrays, library))
        figures["segment"] = microseconds(lambda: calls.run_segment(arrays, KEY))
    figures["own"] = figures["segment"] - figures["kernels"]
    figures["mixed"] = mixed_us()
    result = [torch.empty(8)]
    calls._RUNNING[KEY] = lambda tensors: result
    tensors = [torch.empty(8) for _ in range(ARGUMENTS)]
    op = segment_op()
    with torch.no_grad():
        figures["direct"] = microseconds(lambda: calls.run_segment(tensors, KEY))
        figures["dispatched"] = microseconds(lambda: op(tensors, KEY))
    return figures


def main() -> None:
    """Print a table, or a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options, figures = parser.parse_args(), measured()
    if options.json:
        print(json.dumps({"kind": "segment op"} | figures | {"torch": torch.__version__}))
    else:
        print("\n".join(f"{name:10} {us:6.2f} µs" for name, us in figures.items()))


if __name__ == "__main__":
    main()
