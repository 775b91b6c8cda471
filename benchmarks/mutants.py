"""Times of corrected mutants against their programs on this GPU, in both layouts: `python benchmarks/mutants.py [OUT.jsonl]`.

Each program is the part as the library computes it; each line is one mutant, its largest error, and its warm time.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.measure.timing import normal_inputs, time_source
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.graph import Graph
from mirage_eg.partial_equivalence.mutants import Mutant, mutants

CASES: dict[str, dict[str, Any]] = {
    "conv b16 64 56×56": {"x": (16, 64, 56, 56), "w": (64, 64, 3, 3), "pads": 1},
    "conv b16 512 7×7": {"x": (16, 512, 7, 7), "w": (512, 512, 3, 3), "pads": 1},
    "csrnet b1": {"x": (1, 512, 14, 14), "w": (512, 512, 3, 3), "pads": 2, "dilations": 2},
    "csrnet b16": {"x": (16, 512, 14, 14), "w": (512, 512, 3, 3), "pads": 2, "dilations": 2},
}
MOST = 12  # mutants of a case, the fastest by prediction


def program(case: dict[str, Any], channels_last: bool) -> Graph:
    """One convolution in float16."""
    graph = KernelGraph()
    tensors = []
    for shape in (case["x"], case["w"]):
        _, c, h, w = shape
        strides = (c * h * w, 1, w * c, c) if channels_last else None
        tensors.append(graph.new_input(shape, "float16", strides=strides))
    graph.mark_output(graph.conv2d(*tensors, pads=case["pads"], dilations=case.get("dilations", 1)))
    return graph.graph()


def error(graph: Graph, wanted: Graph) -> float:
    """The largest difference from the program, over the largest element."""
    results = []
    for one in (graph, wanted):
        with loaded(emit(one)) as module:
            results.append(module.run(*normal_inputs(module)).double())
    return float((results[0] - results[1]).abs().max() / results[1].abs().max())


def main() -> None:
    """Print a line for each mutant; with a path, append it as JSON."""
    torch.backends.cudnn.benchmark = True
    device, out = DEVICES["H100"], Path(sys.argv[1]) if len(sys.argv) > 1 else None
    for name, case in CASES.items():
        found: list[Mutant] = sorted(mutants(program(case, False)), key=lambda it: it.predicted_loss_us(device))
        chosen = [*found[:MOST], *[it for it in found if it.rectangles][:3]]
        for layout in ("NCHW", "NHWC"):
            own = program(case, layout == "NHWC")
            base = time_source(emit(own)).warm_us
            print(f"{name} {layout}: {base:.1f} µs", flush=True)
            for it in dict.fromkeys(chosen):
                graph = Graph((*own.nodes[:2], *it.corrected.nodes[2:]))
                us, wrong = time_source(emit(graph)).warm_us, error(graph, own)
                print(f"  {us:8.1f} µs {base / us:5.2f}×  error {wrong:.1e}  {it.name}", flush=True)
                if out is not None:
                    record = {"case": name, "layout": layout, "mutant": it.name, "us": us, "program_us": base, "error": wrong}
                    record |= {"equal": it.equal_fraction, "rectangles": len(it.rectangles)}
                    record |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
                    with out.open("a", encoding="utf-8") as lines:
                        lines.write(json.dumps(record, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
