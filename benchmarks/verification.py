"""CPU seconds and memory of the reference check of the best µGraphs: `python benchmarks/verification.py [PROGRAM…]`.

Each program is optimized in a process of its own, without a GPU or an earlier result; then its first µGraphs are checked anew
in the fields, in floats, and by laws. The table shows CPU seconds of each, of `optimize` with its workers, the memory that the
checks add, and the elements of the program as written. `--out` appends JSON lines.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mirage_eg as mi
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.proof import Prover


def product_and_sum() -> Graph:
    """KernelBench's level 2, problem 14."""
    program = mi.new_kernel_graph()
    x = program.new_input((1024, 8192), "float32", name="X")
    w = program.new_input((8192, 8192), "float32", name="W")
    program.mark_output(program.scale(program.sum(program.scale(program.matmul(x, w), 0.5), 1), 1.5), name="O")
    return program.graph()


def product_chain() -> Graph:
    """Three products of 4,096³ with an activation between."""
    program = mi.new_kernel_graph()
    x, *weights = (program.new_input((4096, 4096), name=name) for name in ("X", "U", "V", "W"))
    for weight in weights:
        x = program.relu(program.matmul(x, weight))
    program.mark_output(x, name="O")
    return program.graph()


def long_attention() -> Graph:
    """Attention of 32 heads, 128 queries and 32,768 keys."""
    program = mi.new_kernel_graph()
    q = program.new_input((32, 128, 128), name="Q")
    k = program.new_input((32, 128, 32768), name="K")
    v = program.new_input((32, 32768, 128), name="V")
    program.mark_output(program.matmul(program.softmax(program.matmul(q, k), 2), v), name="O")
    return program.graph()


def convolution() -> Graph:
    """A 3 × 3 convolution of an image of 512 × 512 with 320 channels, with bias and silu."""
    program = mi.new_kernel_graph()
    x = program.new_input((1, 320, 512, 512), name="X")
    w = program.new_input((320, 320, 3, 3), name="W", weight=True)
    b = program.new_input((1, 320, 1, 1), name="b", weight=True)
    program.mark_output(program.silu(program.add(program.conv2d(x, w, pads=1), b)), name="O")
    return program.graph()


def ragged_mlp() -> Graph:
    """A linear layer to 1,000 classes with softmax: no tile divides the classes."""
    program = mi.new_kernel_graph()
    x = program.new_input((1000, 4096), name="X")
    w = program.new_input((4096, 1000), name="W", weight=True)
    program.mark_output(program.softmax(program.matmul(x, w), 1), name="O")
    return program.graph()


PROGRAMS: dict[str, Callable[[], Graph]] = {
    **{name: WORKLOADS[name] for name in ("mlp_block", "decoder_layer", "qknorm")},
    **{it.__name__: it for it in (product_and_sum, product_chain, long_attention, convolution, ragged_mlp)},
}


def figures(name: str, budget: float | None, count: int) -> dict[str, Any]:
    """The figures of one program."""
    program = PROGRAMS[name]()
    found = mi.superoptimize(program, budget=budget, cache=False)
    before = _gigabytes()
    graphs = [it.graph for it in found[:count]]
    reference = BlockReference(program)
    seconds = [process_time()]
    verdicts = [verdict for verdict, _ in reference.check_all(graphs)]
    seconds.append(process_time())
    checks = reference.float_checks(graphs)
    seconds.append(process_time())
    prover = Prover(program, load_rules("indexed"))
    proved = [prover.prove(it).proved for it in graphs]
    seconds.append(process_time())
    return {
        "program": name,
        "µGraphs": len(graphs),
        "equal": sum(it.equal for it in verdicts),
        "floats": sum(it.ok for it in checks),
        "proved": sum(proved),
        "best µs": round(found.report["best"]["predicted_us"], 2),
        "elements": sum(prod(it.shape) for it in expand(program).types),
        **{f"{it} s": round(b - a, 2) for it, a, b in zip(("fields", "floats", "proofs"), seconds, seconds[1:], strict=False)},
        "peak GiB": round(_gigabytes(), 2),
        "added GiB": round(_gigabytes() - before, 2),
    }


def _gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _cpu_seconds() -> float:
    """Of all ended processes that this one started, with their workers."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"of {', '.join(PROGRAMS)}; without one, all")
    parser.add_argument("--budget", type=float)
    parser.add_argument("--count", type=int, default=6, help="µGraphs of each program")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.programs if name not in PROGRAMS]:
        parser.error(f"got program {unknown[0]!r}, wanted some of {', '.join(PROGRAMS)}")
    if arguments.one:
        print(json.dumps(figures(arguments.programs[0], arguments.budget, arguments.count), ensure_ascii=False))
        return
    for number, name in enumerate(arguments.programs or PROGRAMS):
        options = ["--count", str(arguments.count), *(("--budget", str(arguments.budget)) if arguments.budget else ())]
        used = _cpu_seconds()
        done = subprocess.run(
            [sys.executable, __file__, name, "--one", *options], stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            print(f"{name}: ended with code {done.returncode}", file=sys.stderr)
            continue
        line = json.loads(done.stdout.splitlines()[-1])
        again = sum(seconds for key, seconds in line.items() if key.endswith(" s"))
        line["optimize s"] = round(_cpu_seconds() - used - again, 1)
        if number == 0:
            print(" ".join(f"{it:>12}" for it in line))
        print(" ".join(f"{it!s:>12}" for it in line.values()), flush=True)
        if arguments.out is not None:
            with arguments.out.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
