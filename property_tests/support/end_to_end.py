"""A program through `optimize` and its first µGraphs through Triton's interpreter: what must hold of every program.

Every µGraph handed out is equal. The first compiles, passes its float check and is predicted near the fastest. The results of
the emitted source are finite wherever the program's are, and as close to float64 as the program itself, rounded op by op.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.random_rounding import rounding_spread
from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.backends.triton.interpreter import Array, RunProgram
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from property_tests.support.hand_written import inputs_of

LARGE = 8.0  # standard deviations of the larger of the two draws
NEAR_BEST = 1.5  # times the best prediction of a run that its first µGraph may be predicted to take
ROUNDINGS = 8.0  # of the coarsest type that an error may have, relative to the element and to the largest one
FAR = 4.0  # times a roundoff by which the program's values move at random
SPREAD = 8.0  # times as far as that moves the program that an error may be
TINY = {"float16": 2.0**-21, "bfloat16": 2.0**-123, "float32": 2.0**-123, "float64": 2.0**-1000}  # below: subnormal or flushed


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program fared; `wrong` says what did not hold, empty where everything did."""

    ops: int
    seconds: float  # of optimize, wall time
    kernels: int = 0
    verdict: str = ""
    error: float = 0.0  # of the emitted source in the interpreter, relative to what is allowed: ≤ 1 is right
    refused: str = ""  # why the program cannot be verified
    wrong: str = ""


def run_end_to_end(program: Graph, run: RunProgram, **options: Any) -> Outcome:
    """Optimize `program` and run the sources of its first µGraph and its first fused one that passes its float check."""
    ops = sum(OPS[item.op].kind is not Kind.BOUNDARY for item in program.nodes)
    start = perf_counter()
    try:
        result = optimize("program", program, Options(device="cpu", jobs=1, cache=False, **options))
    except UnsupportedError as error:  # such as a division by zero everywhere
        return Outcome(ops, perf_counter() - start, refused=str(error))
    seconds = perf_counter() - start
    first, *rest = result.candidates
    fused = [candidate for candidate in rest if candidate.fused and candidate.float_check.ok and not first.fused][:1]
    errors = [
        error_of(program, arrays, run(candidate.source, arrays))
        for arrays in (inputs_of(program), inputs_of(program, seed=1, scale=LARGE))
        for candidate in (first, *fused)
    ]
    sound = [candidate for candidate in result.candidates if candidate.compile.ok and candidate.float_check.ok]
    best = min((candidate.predicted_us for candidate in sound), default=inf)
    complaints = {
        "a µGraph handed out is not equal": not all(candidate.verdict.equal for candidate in result.candidates),
        f"the first does not compile: {first.compile.error}": not first.compile.ok,
        f"the float check of the first, not of all: {first.float_check}": bool(sound) and not first.float_check.ok,
        f"error {max(errors):.3g} of what is allowed": not max(errors) <= 1,
        f"the first is predicted at {first.predicted_us:.1f} µs, the best at {best:.1f}": first.predicted_us > NEAR_BEST * best,
    }
    wrong = "; ".join(text for text, holds in complaints.items() if holds)
    return Outcome(ops, seconds, len(launches_of(first.graph).kernels), str(first.verdict.verdict), max(errors), wrong=wrong)


def error_of(program: Graph, inputs: Sequence[Array], got: Sequence[Array]) -> float:
    """The largest error of outputs against float64, relative to what rounding excuses; infinite where one is not finite.

    Rounding excuses what it does to the program as written, each op rounding to its type and by a few roundoffs at random.
    Elements are left out where the program is not finite in float64, or would not be so rounded.
    """
    roundoff = max(kind.dtype.unit_roundoff for kind in program.types)
    wanted = evaluate(program, inputs, FloatAlgebra())
    kernels = FloatAlgebra(np, program.working_dtype, rounds=True)
    written = evaluate(program, inputs, kernels)
    spreads, _ = rounding_spread(program, inputs, wanted, FAR * roundoff, kernels, samples=16)
    worst = 0.0
    with np.errstate(all="ignore"):
        for x, want, spread, rounded, kind in zip(got, wanted, spreads, written, program.output_types, strict=True):
            counted = np.isfinite(spread + rounded) & (np.abs(want) + spread < kind.dtype.largest)
            if counted.any():
                size = np.abs(want[counted])
                allowed = SPREAD * spread[counted] + ROUNDINGS * roundoff * (size + size.max()) + TINY.get(str(kind.dtype), 0.5)
                error = np.abs(x - want)[counted] / allowed
                worst = max(worst, float(np.where(np.isfinite(x[counted]), error, inf).max()))
    return worst
