"""Programs with named dims: predicted time over sizes, kernel texts, and the time that a new size takes.

    python benchmarks/sizes.py [FILE.json]
    python benchmarks/sizes.py --gpu [FILE.jsonl]

One search for each program, in float16. Without `--gpu` on the record of the H100: `prime ratio` is the largest ratio of the
predicted time at a prime size to that at the next size up which is a multiple of 16. With it on the GPU here, buckets tuned:
every size up to 257 is compared with float64 once, and a kernel of a bucket is timed beside one that was tuned for the size
alone, and at full tiles beside one without masks, in alternating rounds.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

import mirage_eg as mi
from mirage_eg.backends.measure.timing import gpu_available, gpu_name, time_alternately
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.egraph.expression import primes
from mirage_eg.ir.at_sizes import at_sizes, dims_of
from mirage_eg.ir.sizes import SizeRange
from mirage_eg.optimizer.heuristics import EFFORT
from mirage_eg.optimizer.tune import Tuning
from mirage_eg.pipeline.bucket_ranges import largest_sizes, ranges_between, searched_sizes
from mirage_eg.pipeline.optimize import optimize, optimize_wanted
from mirage_eg.pipeline.other_sizes import Bucket, OtherSizes
from mirage_eg.pipeline.run.cache_lookup import for_this_machine
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import EVERYTHING, Result

LARGEST = 1024
SHOWN = (2, 16, 17, 31, 64, 127, 251, 256, 509, 512, 1021, 1024)
RIGHT_AT = range(1, 258)
TIMED_AT = (31, 32, 127, 251, 256, 1021)
TUNING = Tuning(replace(EFFORT, seconds=30.0))  # of each bucket, and of each size alone
TOLERANCE = 1e-2  # of the largest element


def rmsnorm() -> mi.Graph:
    """Rows of any number: a normalisation and a linear layer."""
    graph = mi.new_kernel_graph()
    x = graph.new_input((mi.Dim("n", min=1, max=LARGEST), 4096), name="X")
    w = graph.new_input((4096, 6144), name="W")
    graph.mark_output(graph.matmul(graph.rms_norm(x, 4096), w), name="O")
    return graph.graph()


def gqa() -> mi.Graph:
    """Keys of any number: attention of two heads of 256 queries."""
    graph, n = mi.new_kernel_graph(), mi.Dim("n", min=1, max=LARGEST)
    q, k, v = (graph.new_input(shape, name=name) for name, shape in (("Q", (2, 256, 64)), ("K", (2, 64, n)), ("V", (2, n, 64))))
    graph.mark_output(graph.matmul(graph.softmax(graph.matmul(q, k) / 8, 2), v), name="O")
    return graph.graph()


def predicted(name: str, program: mi.Graph) -> dict[str, Any]:
    """The figures of one program by the cost model."""
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


class OnGpu:
    """One program on the GPU here: a search, and a text of kernels for each bucket."""

    def __init__(self, name: str, program: mi.Graph, tuning: Tuning = TUNING) -> None:
        dims = dims_of(program)
        tops = largest_sizes(dims, ())
        searched = searched_sizes(dims, tops)
        self._name, self._program, self._tuning = name, program, tuning
        self._options, _ = for_this_machine(Options(device="cuda", cache=False))
        static = at_sizes(program, searched)
        self._result: Result = optimize(name, static, self._options, None, tuning)
        self._structures = OtherSizes(self._result, static, program, self._options, searched)
        self._buckets = [self._bucket(sizes) for sizes in ranges_between(dims["n"], tops["n"])]

    def _bucket(self, sizes: SizeRange) -> Bucket:
        return self._structures.bucket({"n": sizes}, self._tuning)

    def _source(self, size: int) -> str:
        return next(bucket.candidate.source for bucket in self._buckets if bucket.holds({"n": size}))

    def lines(self) -> Iterator[dict[str, Any]]:
        """The largest error over all sizes, then times at some."""
        errors = {size: self._error(size) for size in RIGHT_AT}
        worst = max(errors, key=errors.__getitem__)
        yield {"program": self._name, "sizes": [RIGHT_AT[0], RIGHT_AT[-1]], "worst": worst, "error": errors[worst]}
        yield from map(self._timed, TIMED_AT)

    def _tensors(self, size: int) -> list[Any]:
        import torch

        generator = torch.Generator(device="cuda").manual_seed(size)
        shapes = [kind.shape for kind in at_sizes(self._program, {"n": size}).input_types]
        return [torch.randn(shape, device="cuda", generator=generator).half() / shape[-1] ** 0.25 for shape in shapes]

    def _error(self, size: int) -> float:
        tensors = self._tensors(size)
        with loaded(self._source(size)) as module:
            (wanted,), got = module.reference(*tensors), module.run(*tensors)
            return float((got.double() - wanted).abs().max() / wanted.abs().max())

    def _timed(self, size: int) -> dict[str, Any]:
        """Times at a size: of its bucket, tuned for it alone, and without masks where tiles are full."""
        sources = {"bucket": self._source(size), "own": self._bucket(SizeRange(size, size, 1)).candidate.source}
        if size % 32 == 0:
            program, known = at_sizes(self._program, {"n": size}), self._result.known
            fixed = optimize_wanted(f"n={size}", program, self._options, EVERYTHING, tuning=self._tuning, known=known)
            sources["without masks"] = fixed.candidates[0].source
        with ExitStack() as stack:
            modules = [stack.enter_context(loaded(source)) for source in sources.values()]
            timings = time_alternately([partial(module.run, *self._tensors(size)) for module in modules])
        us = {name: timing.warm_us for name, timing in zip(sources, timings, strict=True)}
        ratios = {f"to {name}": us["bucket"] / other for name, other in us.items() if name != "bucket"}
        return {"program": self._name, "n": size, "us": us, "ratios": ratios}


def main() -> int:
    """Measure, print, write a file if one is named; exit code 1 if a kernel is wrong, 2 if a GPU is asked for and missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--gpu", action="store_true", help="measure on the GPU here")
    given = parser.parse_args()
    programs = {"rmsnorm": rmsnorm(), "gqa": gqa()}
    if not given.gpu:
        text = json.dumps([predicted(name, program) for name, program in programs.items()], indent=1)
        print(text)
        if given.file is not None:
            given.file.write_text(text + "\n", encoding="utf-8")
        return 0
    if not gpu_available():
        print("sizes.py: torch finds no GPU here", file=sys.stderr)
        return 2
    code = 0
    for line in chain.from_iterable(OnGpu(name, program).lines() for name, program in programs.items()):
        line["device"] = gpu_name()
        code = max(code, int(line.get("error", 0.0) > TOLERANCE))
        print(json.dumps(line), flush=True)
        if given.file is not None:
            with given.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
