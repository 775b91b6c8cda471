"""A program with named dims: one search, then a µGraph for each bucket of sizes, one text of kernels a bucket.

The structures of the search are instantiated at the end of a bucket, without a search. The fastest µGraph on a GPU, else the
cheapest by the cost model, that compiles and is verified for all sizes of the bucket serves it; the library form competes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from mirage_eg.backends.cost.devices import Device
from mirage_eg.ir.at_sizes import at_sizes, dims_of
from mirage_eg.ir.deadline import after
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.sizes import Dim
from mirage_eg.optimizer.heuristics import EFFORT
from mirage_eg.optimizer.tune import Tuning
from mirage_eg.pipeline.bucket_ranges import Sizes, largest_sizes, ranges_between, searched_sizes
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.other_sizes import Bucket, OtherSizes
from mirage_eg.pipeline.run.cache_lookup import for_this_machine
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.run_report import RunReport
from mirage_eg.verify.verdict import Observer

_MOST = 64  # buckets
TUNING_SECONDS = 30.0  # of tuning for each bucket, whose candidates are timed at two sizes


@dataclass(frozen=True)
class SizedResult:
    """The buckets of a program in the order of their sizes, and the report of the one search."""

    program: Graph
    dims: dict[str, Dim]
    device: Device
    buckets: tuple[Bucket, ...]
    report: RunReport


def optimize_sizes(
    name: str, program: Graph, options: Options, sizes: Sequence[Sizes] = (), observer: Observer | None = None
) -> SizedResult:
    """Superoptimize a program with named dims. `sizes` end buckets; without them the ends are `TOPS`.

    Raises:
        OptionError: a size of an unknown name, or too many buckets.
        GraphError: a size outside the range of its dim.
    """
    options = replace(options, undefined=options.undefined_in(program))
    dims = dims_of(program)
    tops = largest_sizes(dims, sizes)
    if (count := prod(map(len, tops.values()))) > _MOST:
        raise OptionError(f"sizes: got {count} buckets, wanted at most {_MOST}; try: fewer sizes")
    searched = searched_sizes(dims, tops)
    options, on_gpu = for_this_machine(options)
    tuning = Tuning(replace(EFFORT, seconds=TUNING_SECONDS)) if on_gpu else None
    static = at_sizes(program, searched)
    until = options.until()
    half = replace(options, budget=options.budget and options.budget / 2)
    structures = OtherSizes(optimize(name, static, half, observer), static, program, options, searched)
    intervals = [[(dim.name, values) for values in ranges_between(dim, tops[dim.name])] for dim in dims.values()]
    buckets = list[Bucket]()
    for chosen in product(*intervals):
        buckets.append(structures.bucket(dict(chosen), tuning, after(until.left() / (count - len(buckets)))))
        if observer:
            observer("buckets", len(buckets), count, buckets[-1].line)
    return SizedResult(program, dims, options.device_record, tuple(buckets), structures.report)


__all__ = ["Bucket", "SizedResult", "optimize_sizes"]
