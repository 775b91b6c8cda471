"""Programs with named dims: predicted time over sizes, kernel texts, and the time that a new size takes.

    python benchmarks/sizes.py [FILE.json]

One search for each program, in float16 on the record of the H100; no GPU is needed. `prime ratio` is the largest ratio of the
predicted time at a prime size to that at the next size up which is a multiple of 16.
"""

import json
import sys
from time import perf_counter
from typing import Any

import mirage_eg as mi
from mirage_eg.egraph.expression import primes

LARGEST = 1024
SHOWN = (2, 16, 17, 31, 64, 127, 251, 256, 509, 512, 1021, 1024)


def rmsnorm() -> mi.Graph:
    """Rows of any number: a normalisation and a linear layer."""
    graph = mi.new_kernel_graph()
    x = graph.new_input((mi.Dim("n", max=LARGEST), 4096), name="X")
    w = graph.new_input((4096, 6144), name="W")
    graph.mark_output(graph.matmul(graph.rms_norm(x, 4096), w), name="O")
    return graph.graph()


def gqa() -> mi.Graph:
    """Keys of any number: attention of two heads of 256 queries."""
    graph, n = mi.new_kernel_graph(), mi.Dim("n", max=LARGEST)
    q, k, v = (graph.new_input(shape, name=name) for name, shape in (("Q", (2, 256, 64)), ("K", (2, 64, n)), ("V", (2, n, 64))))
    graph.mark_output(graph.matmul(graph.softmax(graph.matmul(q, k) / 8, 2), v), name="O")
    return graph.graph()


def measured(name: str, program: mi.Graph) -> dict[str, Any]:
    """The figures of one program."""
    begin = perf_counter()
    result = mi.superoptimize(program, sizes=[], name=name, top=4, trials=1, device="cpu", cache=False)
    seconds = perf_counter() - begin
    us: dict[int, float] = {}
    milliseconds = []
    for size in range(2, LARGEST + 1):
        begin = perf_counter()
        us[size] = result.at(n=size).candidate.predicted_us
        milliseconds.append(1000 * (perf_counter() - begin))
    ratio = 0.0
    for prime in primes():
        if prime > LARGEST:
            break
        ratio = max(ratio, us[prime] / us[min(LARGEST, -(-prime // 16) * 16)])
    return {
        "program": name,
        "seconds": seconds,
        "buckets": [
            {
                "sizes": [bucket.ranges["n"].least, bucket.ranges["n"].largest],
                "us": bucket.candidate.predicted_us,
                "kernels": bucket.candidate.kernels,
                "instantiated_ms": 1000 * bucket.seconds,
            }
            for bucket in result.buckets
        ],
        "texts": len({bucket.candidate.source for bucket in result.buckets}),
        "predicted_us": {str(size): round(us[size], 1) for size in SHOWN},
        "prime_ratio": round(ratio, 3),
        "new_size_ms": round(sorted(milliseconds)[len(milliseconds) // 2], 2),
    }


def main() -> None:
    """Measure, print, and write a file if one is named."""
    records = [measured(make.__name__, make()) for make in (rmsnorm, gqa)]
    text = json.dumps(records, indent=1)
    print(text)
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
