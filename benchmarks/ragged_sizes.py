"""Sizes that tiles do not divide, masked or as a main part and a border: `python benchmarks/ragged_sizes.py`.

Each program is searched whole (its last tiles are masked) and divided at borders of tiles. A line is one form, predicted as
library calls, and as the best µGraph of its search with generated kernels. The cheapest form of a program is marked.
"""

from mirage_eg.api import superoptimize
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.graph import Graph
from mirage_eg.partial_equivalence.main_part import MainPart, divided

DEVICE = DEVICES["H100"]


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


def times(program: Graph) -> tuple[float, float]:
    """Microseconds of the program as library calls, and of the best µGraph with a generated kernel; ∞ where there is none."""
    library = predict_us(program, DEVICE)
    found = superoptimize(program, top=4, gpu="h100")
    generated = [it.candidate.predicted_us for it in found if it.graph.blocks]
    return library, min(generated, default=float("inf"))


def main() -> None:
    """Print a line for each form of each program."""
    for name, (program, places) in CASES.items():
        forms = [
            None,
            *(MainPart(dim, at, program.output_types[0].shape[dim], divided(program, dim, at)) for dim, at in places),
        ]
        found = [times(program if form is None else form.graph) for form in forms]
        best = min(range(len(forms)), key=lambda place: min(found[place]))
        for place, (form, (library, generated)) in enumerate(zip(forms, found, strict=True)):
            how = "whole, masked" if form is None else f"main part {form.main:,} of {form.extent:,}"
            chosen = "  chosen" if place == best else ""
            print(
                f"{name:32} {how:28} library {library:7.1f} µs, generated {generated:7.1f} µs{chosen}", flush=True
            )  # inf: none


if __name__ == "__main__":
    main()
