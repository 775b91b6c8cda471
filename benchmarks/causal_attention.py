"""Causal attention that skips masked tiles against the same kernel over all tiles, and SDPA, on the current GPU.

    python benchmarks/causal_attention.py [PROGRAM…] [--tilings N]

The cheapest tilings of the cost model are timed with several schedules (no tuning); the fastest one is then timed with its mask
as an ordinary input, which no kernel skips. One JSON line a program: microseconds, warm and cold, and the largest error of each
against float64, of the largest element. About 20 s a program.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mirage_eg.backends.cost.devices import Device, device_for
from mirage_eg.backends.measure.timing import Timing, causal_mask, gpu_available, gpu_target, time_launches, timing_stream
from mirage_eg.backends.runtime.library_lookup import torch_library
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.prefill import PREFILL
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.weights import without_weights
from mirage_eg.ir.whole_inputs import causal_inputs
from mirage_eg.lab.baselines.baselines import baselines
from mirage_eg.search.instantiate.instantiate import Instantiation, best_first
from mirage_eg.search.structure_search import SearchLimits, search

PROGRAMS = [name for name in PREFILL if "causal" in name]
SCHEDULES = [Schedule(num_warps=warps, num_stages=stages, exp2=True) for warps, stages in product((4, 8), (2, 3))]


def cheapest(program: Graph, device: Device, count: int) -> list[Graph]:
    """One kernel in the cheapest `count` different tilings."""
    primitive = expand(program)
    axes = infer_axes(primitive)
    structures = search(primitive, axes, load_rules("indexed"), SearchLimits(11, max_states=5_000)).structures
    found: dict[tuple[object, ...], Graph] = {}
    for _, graph, _ in best_first([Instantiation(structure, primitive, axes) for structure in structures], device):
        found.setdefault((graph.blocks[0].grid, graph.blocks[0].loop), graph)
        if len(found) == count:
            break
    return [*found.values()]


def timed(source: str, tensors: Sequence[Any], wanted: Any) -> tuple[Timing, float]:
    """The time and the error of an emitted program."""
    with loaded(source) as module, timing_stream():
        run = RunningProgram(module, list(module.INPUTS)).repeated(tensors, torch_library())
        return time_launches(run), error_of(module.run(*tensors), wanted)


def error_of(got: Any, wanted: Any) -> float:
    """The largest error, of the largest element."""
    return float((got.double() - wanted).abs().max() / wanted.abs().max())


def compare(name: str, tilings: int) -> dict[str, object]:
    """The times of the skipping kernel, of the same without skipping, and of SDPA."""
    import torch

    program = PREFILL[name](1)
    generator = torch.Generator(device="cuda").manual_seed(0)
    tensors = [torch.randn(kind.shape, device="cuda", generator=generator) for kind in program.input_types]
    for position, masked in causal_inputs(program).items():
        tensors[position] = causal_mask(program.input_types[position].shape, masked)
    tensors = [x.to(getattr(torch, str(kind.dtype))) for x, kind in zip(tensors, program.input_types, strict=True)]
    with loaded(emit(program, program=program)) as module:
        [wanted] = module.reference(*tensors)
    timings: dict[str, tuple[Timing, float]] = {}
    best: tuple[float, Graph, Schedule] | None = None
    graphs = cheapest(program, device_for(gpu_target()), tilings)
    for graph, schedule in product(graphs, SCHEDULES):
        try:
            result = timed(emit(graph, schedule=schedule), tensors, wanted)
        except (RuntimeError, MirageError) as problem:  # too much shared memory for this many stages
            print(f"{name}: {graph.blocks[0].grid}, {schedule.num_stages} stages: {problem}", file=sys.stderr)
            continue
        if best is None or result[0].warm_us < best[0]:
            best, timings["skipping"] = (result[0].warm_us, graph, schedule), result
    assert best is not None, "no tiling runs"
    timings["all tiles"] = timed(emit(without_weights(best[1]), schedule=best[2]), tensors, wanted)
    for baseline in baselines(name):
        if "SDPA" in baseline.name:
            run: Callable[[], Any] = baseline.make(tensors)
            timings[baseline.name] = time_launches(run), error_of(run(), wanted)
    block = best[1].blocks[0]
    line: dict[str, object] = {"program": name, "device": timings["skipping"][0].device, "grid": block.grid, "loop": block.loop}
    line |= {"warps": best[2].num_warps, "stages": best[2].num_stages}
    for key, (timing, error) in timings.items():
        line[key] = {"warm_us": timing.warm_us, "cold_us": timing.cold_us, "error": error}
    return line


def main() -> int:
    """Print a line for each program; exit code 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", default=PROGRAMS, metavar="PROGRAM", help=", ".join(PROGRAMS))
    parser.add_argument("--tilings", type=int, default=2)
    given = parser.parse_args()
    if not gpu_available():
        print("causal_attention: no CUDA GPU is usable here; run it on a machine with one", file=sys.stderr)
        return 2
    for name in given.programs:
        print(json.dumps(compare(name, given.tilings)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
