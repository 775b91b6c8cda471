"""A chain of 16 products, each with a weight of its own, as decoding has them: generated kernels and the library's, on a GPU.

    python benchmarks/product_chain.py [--batch B…] [--json FILE]

Each row is a tiling and a schedule of all 16 kernels of one program, with and without programmatic dependent launches; with
them a kernel loads its weight before it waits for the kernel before it. Microseconds a product, in a CUDA graph, with 537 MB
of weights. The first line has the least time, the bytes of a weight over the bandwidth of the memory.
"""

import argparse
import json
import sys
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mirage_eg as mi
from mirage_eg.backends.cost.devices import closest_device
from mirage_eg.backends.measure.timing import gpu_available, gpu_name, gpu_target, time_source
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.graph import Graph

WIDTH, PRODUCTS = 4096, 16


def library_chain(batch: int) -> Graph:
    """x Wᵀ Vᵀ …, each product a library kernel."""
    graph = mi.new_kernel_graph()
    x = graph.new_input((batch, WIDTH), dtype="float16", name="x")
    for _ in range(PRODUCTS):
        x = graph.matmul(x, graph.transpose(graph.new_input((WIDTH, WIDTH), dtype="float16"), (1, 0)))
    graph.mark_output(x)
    return graph.graph()


def generated_chain(batch: int, rows: int, loop: int) -> Graph:
    """The same with a generated kernel for each product: `rows` rows of the weight a block, in `loop` iterations."""
    graph = mi.new_kernel_graph()
    x = graph.new_input((batch, WIDTH), dtype="float16", name="x")
    for _ in range(PRODUCTS):
        weight = graph.new_input((WIDTH, WIDTH), dtype="float16")
        block = mi.new_threadblock_graph((WIDTH // rows,), forloop_range=loop)
        dim = 1 if loop > 1 else -1
        tile, vector = block.new_input(weight, (0,), dim), block.new_input(x, (-1,), dim)
        if batch == 1:  # rows times a vector, a sum
            result = block.reshape(block.matmul(tile, block.reshape(vector, (vector.shape[1], 1))), (1, rows))
        else:
            result = block.matmul(vector, block.transpose(tile, (1, 0)))
        block.new_output(block.forloop_accum(result) if loop > 1 else result, (1,))
        [x] = graph.customized([weight, x], block)
    graph.mark_output(x)
    return graph.graph()


def main() -> int:
    """Print a line for each form of the chain; exit code 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--json", type=Path, help="append a line a row")
    given = parser.parse_args()
    if not gpu_available():
        print("product_chain: no CUDA GPU is usable here; run it on a machine with one", file=sys.stderr)
        return 2
    device = closest_device(gpu_name(), gpu_target())
    assert device is not None  # there are records of all targets with a GPU
    least = 2 * WIDTH**2 / device.memory_bandwidth * 1e6
    print(f"{gpu_name()}: a weight takes {least:.1f} µs at the bandwidth of the record of the {device.name}")
    for batch in given.batch:
        library = library_chain(batch)
        forms = [("library", emit(library, program=library), {})]
        shapes = product((2, 4, 8, 16), (1,), (4, 8, 16)) if batch == 1 else product((16, 32, 64), (16, 32), (4, 8))
        for (rows, loop, warps), dependent in product(shapes, (False, True)):
            schedule = Schedule(num_warps=warps, num_stages=1 if loop == 1 else 4, dependent_launch=dependent)
            about = {"rows": rows, "loop": loop, "warps": warps, "dependent": dependent}
            forms.append(("generated", emit(generated_chain(batch, rows, loop), program=library, schedule=schedule), about))
        for form, source, about in forms:
            try:
                timing = time_source(source)
            except MirageError as problem:
                print(f"batch {batch}, {about}: {problem}", file=sys.stderr)
                continue
            line = {"batch": batch, "form": form, **about, "us": timing.warm_us / PRODUCTS, "device": timing.device}
            print(json.dumps(line), flush=True)
            if given.json:
                with given.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
