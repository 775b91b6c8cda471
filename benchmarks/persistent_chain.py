"""The chain of `product_chain.py` in one persistent kernel, and in 16 launches with and without an eviction hint, on a GPU.

    python benchmarks/persistent_chain.py [--batch B…] [--json FILE]

Each program of the persistent kernel computes its tiles of a product and adds 1 to the counter of the product; before the next
product it waits until the counter is the number of programs. `ahead`: the first tile of the weight is loaded before the wait;
`prefetch`: the number of further tiles that are prefetched into the L2 cache before it. `programs`: on each multiprocessor.
Microseconds a product, in a CUDA graph, with 537 MB of weights; `error`: of the last vector against float32, relative.
"""

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from math import isnan
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.errors import TritonError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mirage_eg.backends.measure.timing import gpu_available, time_launches

WIDTH, PRODUCTS = 4096, 16
TRIES = tl.constexpr(1 << 16)  # then the program stops waiting: the check finds wrong results, and there is no deadlock


@triton.jit
def wait(counter, programs: tl.constexpr):
    """Until all programs arrived."""
    tries = 0
    while (tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < programs) & (tries < TRIES):
        tries += 1
    tl.debug_barrier()


@triton.jit
def arrive(counter):
    """After the stores of all threads of the program."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release", scope="gpu")


@triton.jit
def reset(counters, products: tl.constexpr, programs: tl.constexpr):
    """Zero the counters for the next launch, in the last program: all others are past their waits."""
    if tl.atomic_add(counters + products - 1, 1) == programs - 1:
        for p in range(products):
            tl.store(counters + p, 0)


@triton.jit
def prefetched(pointers):
    """Prefetch cache lines into the L2 cache."""
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l", [pointers.to(tl.int64)], tl.int32, is_pure=False, pack=1
    )


@triton.jit
def vector_tile(weight, x, result):
    """Rows of a weight times a vector."""
    tl.store(result, tl.sum(weight.to(tl.float32) * x, 1).to(tl.float16))


@triton.jit
def vector_chain(
    weights,
    vectors,
    counters,
    products: tl.constexpr,
    programs: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    stages: tl.constexpr,
    ahead: tl.constexpr,
    prefetch: tl.constexpr,
    hint: tl.constexpr,
):
    """Batch 1: a tile is `rows` whole rows of a weight."""
    tl.static_assert(columns == width)
    program = tl.program_id(0)
    start: tl.constexpr = 1 if ahead else 0
    row, column, line = tl.arange(0, rows), tl.arange(0, width)[None, :], tl.arange(0, width // 64)[None, :] * 64
    tiles: tl.constexpr = width // rows
    for p in range(products):
        weight = weights + p * width * width + row[:, None] * width
        result = vectors + (p + 1) * width + row
        for i in range(start, start + prefetch):
            prefetched(weight + tl.minimum(program + i * programs, tiles - 1) * rows * width + line)
        if ahead:
            first = tl.load(weight + program * rows * width + column, eviction_policy=hint)
        if p > 0:
            wait(counters + p - 1, programs)
        x = tl.load(vectors + p * width + column, cache_modifier=".cg").to(tl.float32)
        for tile in tl.range(program + start * programs, tiles, programs, num_stages=stages):
            vector_tile(tl.load(weight + tile * rows * width + column, eviction_policy=hint), x, result + tile * rows)
        if ahead:
            vector_tile(first, x, result + program * rows)
        if p < products - 1:
            arrive(counters + p)
    if products > 1:
        reset(counters, products, programs)


@triton.jit
def matrix_chain(
    weights,
    vectors,
    counters,
    products: tl.constexpr,
    programs: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    stages: tl.constexpr,
    ahead: tl.constexpr,
    prefetch: tl.constexpr,
    hint: tl.constexpr,
):
    """Batch 16: a tile is `rows` times `columns` elements of a weight."""
    program = tl.program_id(0)
    start: tl.constexpr = 1 if ahead else 0
    row, column, batch = tl.arange(0, rows), tl.arange(0, columns)[None, :], tl.arange(0, 16)[:, None]
    line = tl.arange(0, columns // 64)[None, :] * 64
    for p in range(products):
        x = vectors + p * 16 * width + batch * width + column
        for tile in range(program, width // rows, programs):
            weight = weights + p * width * width + tile * rows * width + row[:, None] * width
            for i in range(start, start + prefetch):
                prefetched(weight + i * columns + line)
            if ahead:
                first = tl.load(weight + column, eviction_policy=hint)
            if (p > 0) & (tile == program):
                wait(counters + p - 1, programs)
            result = tl.zeros((16, rows), tl.float32)
            for k in tl.range(start * columns, width, columns, num_stages=stages):
                now = tl.load(weight + k + column, eviction_policy=hint)
                result = tl.dot(tl.load(x + k, cache_modifier=".cg"), now.T, result)
            if ahead:
                result = tl.dot(tl.load(x, cache_modifier=".cg"), first.T, result)
            tl.store(vectors + (p + 1) * 16 * width + batch * width + tile * rows + row[None, :], result.to(tl.float16))
        if p < products - 1:
            arrive(counters + p)
    if products > 1:
        reset(counters, products, programs)


def launch(weights: Any, vectors: Any, counters: Any, constants: dict[str, Any]) -> Any:
    """All products, in launches of `constants["products"]` products each; gives the compiled kernel."""
    kernel, compiled = vector_chain if vectors.shape[1] == 1 else matrix_chain, None
    for p in range(0, len(weights), constants["products"]):
        compiled = kernel[(constants["programs"],)](weights[p], vectors[p], counters, width=weights.shape[-1], **constants)
    return compiled


def forms(batch: int, multiprocessors: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What the row of each form says, and the constants of its kernel."""
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    about: dict[str, Any]
    single = [(2, WIDTH, 16), (4, WIDTH, 8), (8, WIDTH, 8)]  # rows, columns, warps
    persistent = [(2, WIDTH, 8, 6, 2), (4, WIDTH, 8, 4, 1), (4, WIDTH, 8, 3, 2), (8, WIDTH, 8, 3, 1), (8, WIDTH, 16, 3, 1)]
    if batch > 1:  # rows, columns, warps, stages, programs on a multiprocessor
        single = [(16, 256, 4), (16, 512, 4), (32, 256, 4), (32, 512, 8)]
        persistent = [(32, 256, 4, 4, 1), (32, 256, 8, 4, 1), (32, 128, 4, 6, 1), (32, 512, 8, 3, 1), (16, 256, 4, 4, 2)]
    # Triton 3.6 drops the hint of a load that it pipelines.
    launched = product(single, ((1, ""), (1, "evict_first"), *([(4, "")] if batch > 1 else [])))
    for (rows, columns, warps), (stages, hint) in launched:
        about = {"rows": rows, "columns": columns, "stages": stages}
        constants = {"products": 1, "programs": WIDTH // rows, "ahead": False, "prefetch": 0, "hint": hint, "num_warps": warps}
        found.append(({"form": hint or "no hint", **about, "warps": warps}, about | constants))
    for rows, columns, warps, stages, programs in persistent:
        about = {"rows": rows, "columns": columns, "stages": stages}
        resident = min(WIDTH // rows, programs * multiprocessors)
        every = -(-WIDTH // rows // resident) if batch == 1 else WIDTH // columns  # tiles of a program, or of its first rows
        for ahead, prefetch in ((False, 0), (True, 0), (False, every // 2), (False, every), (True, every - 1)):
            said = {"ahead": ahead, "prefetch": prefetch}
            constants = {"products": PRODUCTS, "programs": resident, **said, "hint": "", "num_warps": warps}
            found.append(({"form": "persistent", **about, "warps": warps, "programs": programs, **said}, about | constants))
    return found


def checked(run: Callable[[], Any], vectors: Any, wanted: Any) -> tuple[float, Any]:
    """The largest relative error of the last vector in three runs, and what the last run gave; vectors are NaN before each."""
    errors, given = [], None
    for _ in range(3):
        vectors[1:] = float("nan")
        given = run()
        errors.append(float((vectors[-1].float() - wanted).norm() / wanted.norm()))
    return max(errors, key=lambda error: (isnan(error), error)), given


def main() -> int:
    """Print a line for each form of the chain; exit code 1 if one is wrong, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", choices=(1, 16), default=[1, 16])
    parser.add_argument("--json", type=Path, help="append a line a row")
    given = parser.parse_args()
    if not gpu_available():
        print("persistent_chain: no CUDA GPU is usable here; run it on a machine with one", file=sys.stderr)
        return 2
    import torch

    torch.manual_seed(0)
    weights = torch.randn(PRODUCTS, WIDTH, WIDTH, dtype=torch.float16, device="cuda").mul_(WIDTH**-0.5)
    multiprocessors = torch.cuda.get_device_properties().multi_processor_count
    code = 0
    for batch in given.batch:
        vectors = torch.randn(PRODUCTS + 1, batch, WIDTH, dtype=torch.float16, device="cuda")
        wanted = vectors[0].float()
        for weight in weights:
            wanted = wanted @ weight.float().T

        def library(vectors: Any = vectors) -> None:
            for p, weight in enumerate(weights):
                torch.matmul(vectors[p], weight.T, out=vectors[p + 1])

        runs: list[tuple[dict[str, Any], Callable[[], Any]]] = [({"form": "library"}, library)]
        for about, constants in forms(batch, multiprocessors):
            counters = torch.zeros(PRODUCTS, dtype=torch.int32, device="cuda")
            runs.append((about, partial(launch, weights, vectors, counters, constants)))
        for about, run in runs:
            line = {"batch": batch, **about}
            try:
                error, kernel = checked(run, vectors, wanted)
                if not error < 0.01:
                    code = 1
                    print(f"{line}: got the relative error {error}, wanted less than 0.01", file=sys.stderr)
                    continue
                timing = time_launches(run)
            except (RuntimeError, TritonError) as problem:
                print(f"{line}: {problem}", file=sys.stderr)
                continue
            if kernel is not None:
                line |= {"registers": kernel.n_regs, "spills": kernel.n_spills}
            line |= {"us": timing.warm_us / PRODUCTS, "spread_us": timing.warm_spread_us / PRODUCTS, "error": error}
            line |= {"device": timing.device, "method": timing.method, "triton": triton.__version__}
            print(json.dumps(line), flush=True)
            if given.json:
                with given.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
