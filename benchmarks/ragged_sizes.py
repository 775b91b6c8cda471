"""Sizes that tiles do not divide, masked or as a main part and a border: `python benchmarks/ragged_sizes.py [OUT.jsonl]`.

Each program is searched whole (its last tiles are masked) and divided at borders of tiles. A line is one form: its time as
library calls, and as the best µGraph of its search with generated kernels; predicted, and on a GPU measured (the best of the
µGraphs that the search ranks first, tuned for SECONDS). The fastest form of a program is marked; a path gets a JSON line each.
"""

import json
import sys
from dataclasses import asdict, dataclass
from math import inf, isfinite
from pathlib import Path
from time import perf_counter

from mirage_eg.api import superoptimize
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.measure.timing import gpu_available, gpu_name, time_source
from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.heuristics import Effort
from mirage_eg.optimizer.tune import Tuning, tune
from mirage_eg.partial_equivalence.main_part import divided
from mirage_eg.pipeline.run.executors import Workers

DEVICE = DEVICES["H100"]
RANKED = 4  # µGraphs of a form that are tuned
SECONDS = 5.0  # of tuning for each form


def product(rows: int, inner: int, columns: int, normed: bool = False) -> Graph:
    """x w, with rows of x normed."""
    graph = KernelGraph()
    x, w = graph.new_input((rows, inner), "float16", name="x"), graph.new_input((inner, columns), "float16", name="w")
    graph.mark_output((graph.rms_norm(x, inner) if normed else x) @ w)
    return graph.graph()


def convolution(images: int, channels: int, side: int) -> Graph:
    """A 3×3 convolution."""
    graph = KernelGraph()
    x = graph.new_input((images, channels, side, side), "float16", name="x")
    graph.mark_output(graph.conv2d(x, graph.new_input((channels, channels, 3, 3), "float16", name="w"), pads=1))
    return graph.graph()


CASES: dict[str, tuple[Graph, tuple[tuple[int, int], ...]]] = {  # a program, and where it is divided: dim, main part
    "1,021 × 512 × 512": (product(1021, 512, 512), ((0, 960), (0, 1008))),
    "16 × 512 × 4,099": (product(16, 512, 4099), ((1, 4096),)),
    "rms_norm, 1,021 × 256 × 256": (product(1021, 256, 256, normed=True), ((0, 960), (0, 1008))),
    "convolution b2 64 57×57": (convolution(2, 64, 57), ((2, 48), (2, 56))),
}


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds as library calls, and of the best µGraph with a generated kernel; ∞ where there is none."""

    library: float
    generated: float

    def __str__(self) -> str:
        return f"library {_shown(self.library)}, generated {_shown(self.generated)}"

    @property
    def best(self) -> float:
        """The faster of the two."""
        return min(self.library, self.generated)


def _shown(us: float) -> str:
    return f"{us:7.1f} µs" if isfinite(us) else "      none"


@dataclass(frozen=True, slots=True)
class Form:
    """A program, or the same program divided; its µGraphs with generated kernels, best first; and how it is called."""

    how: str
    graph: Graph
    found: tuple[Graph, ...]
    predicted: Times


def forms(program: Graph, places: tuple[tuple[int, int], ...]) -> list[Form]:
    """The program as a whole and divided, each searched."""
    graphs = {"whole, masked": program}
    for dim, main in places:
        graphs[f"main part {main:,} of {program.output_types[0].shape[dim]:,}"] = divided(program, dim, main)
    made = []
    for how, graph in graphs.items():
        found = [it for it in superoptimize(graph, top=RANKED, gpu="h100", device="cpu") if it.graph.blocks]
        generated = min((it.candidate.predicted_us for it in found), default=inf)
        made.append(Form(how, graph, tuple(it.graph for it in found), Times(predict_us(graph, DEVICE), generated)))
    return made


def measured(form: Form, workers: Workers) -> Times:
    """The times of a form on this GPU, warm."""
    from mirage_eg.backends.measure.candidate_timer import CandidateTimer

    library = time_source(emit(form.graph)).warm_us
    if not form.found:
        return Times(library, inf)
    timer = CandidateTimer(emit(form.graph, program=form.graph))
    effort = Tuning(Effort(seconds=SECONDS, finalists=3, reported=3))
    tuned = tune(form.graph, [[graph] for graph in form.found], DEVICE, timer, effort, parallel=workers.map)
    return Times(library, min((it.timing.warm_us for it in tuned if it.timing is not None), default=inf))


def main() -> None:
    """Print a line for each form of each program; with a path, append it as JSON."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    on_gpu, started = gpu_available(), perf_counter()
    if on_gpu:
        import torch

        torch.backends.cudnn.benchmark = True
    with Workers() as workers:
        for name, (program, places) in CASES.items():
            searched = forms(program, places)
            times = [measured(form, workers) if on_gpu else form.predicted for form in searched]
            best = min(range(len(times)), key=lambda place: times[place].best)
            for place, (form, own) in enumerate(zip(searched, times, strict=True)):
                print(f"{name:28} {form.how:25} predicted: {form.predicted}", end="")
                print(f"; measured: {own}" if on_gpu else "", "  chosen" if place == best else "", sep="", flush=True)
                if out is not None:
                    record = {"case": name, "form": form.how, "chosen": place == best, "predicted_us": _finite(form.predicted)}
                    record |= {"measured_us": _finite(own), "device": gpu_name(), **_versions()} if on_gpu else {}
                    with out.open("a", encoding="utf-8") as lines:
                        lines.write(json.dumps(record, ensure_ascii=False) + "\n")
            print(f"  {perf_counter() - started:.0f} s", file=sys.stderr, flush=True)


def _finite(times: Times) -> dict[str, float | None]:
    return {name: us if isfinite(us) else None for name, us in asdict(times).items()}


def _versions() -> dict[str, str]:
    import torch
    import triton

    return {"torch": torch.__version__, "triton": triton.__version__}


if __name__ == "__main__":
    main()
