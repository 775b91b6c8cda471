"""A µGraph as its kernels compute it, with their roundings, against its program in float64. Part of the trusted core."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import Any, NamedTuple

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.random_rounding import rounding_spread
from mirage_eg.backends.triton.numerics import as_kernels_compute
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.compare import compare_numbers, with_spread
from mirage_eg.verify.error_bound import longest_reduction
from mirage_eg.verify.far_inputs import far_names
from mirage_eg.verify.inputs import FloatTrial, RandomInputs
from mirage_eg.verify.verdict import Difference, FloatCheck

AS_WRONG = 4  # times as wrong as the program in its own types a µGraph may be on far inputs


class Result(NamedTuple):
    """On one draw: the largest error, the first difference, and whether every output has a finite element."""

    error: float
    difference: Difference | None
    compared: bool


class FloatChecker:
    """A program with its draws, and the types that its results are rounded to."""

    def __init__(self, program: Graph, drawn: RandomInputs, xp: Any) -> None:
        self._program, self._drawn, self._xp = program, drawn, xp
        self._roundoff = max(dtype.unit_roundoff for dtype in program.dtypes)  # of the coarsest
        self._working = program.working_dtype
        self._longest = longest_reduction(program)
        self._spreads: list[Array] | None = None  # of the program on inputs of usual size, once a difference asks for it

    def check_all(self, candidates: Sequence[Graph], on_progress: Callable[[int, int], None] | None = None) -> list[FloatCheck]:
        """Each candidate with values rounded as kernels do.

        Exponentials are shifted where its kernels shift them. Inputs have the size at which the program stays within the range
        of its types (`input_scales`). Tolerance: 16 roundings of the program's coarsest type and K of the type that
        accumulates, or as far as such roundings of its ops move the program. Elements at which the program is not finite, or
        would not be with other roundings, are left out; at all others the candidate must be.
        On far inputs (`far_inputs`) it must be finite where the program in float64 is. Beside exponentials it may also be at
        most `AS_WRONG` times as wrong as the program in its own types, op by op.
        """
        far = far_names(self._drawn.primitive)
        usual: list[Result] = []
        others: list[list[Result]] = [[] for _ in candidates]
        done, total, magnitude = 0, len(candidates) * (1 + len(far)), 1.0
        for name in (*far, None):  # large inputs stand there from the verdict
            draw = self._drawn.far(name) if name else self._drawn.numbers(self._drawn.usual)
            own = self._drawn.own_errors(draw) if "offset" in far else [inf] * len(draw.outputs)  # beside exponentials
            magnitude = draw.magnitude if name == "large" else magnitude
            for place, candidate in enumerate(candidates):
                if name is None:
                    usual.append(self._usual(candidate, draw))
                else:
                    others[place].append(self._far(candidate, draw, own))
                done += 1
                if on_progress:
                    on_progress(done, total)
        return [
            _check(first, rest, self._tolerance(candidate), magnitude)
            for candidate, first, rest in zip(candidates, usual, others, strict=True)
        ]

    def _usual(self, candidate: Graph, draw: FloatTrial) -> Result:
        """A difference counts if rounding does not move the program as far."""
        tolerance, got = self._tolerance(candidate), self._as_kernels_do(candidate, draw.inputs)
        result = self._compare(got, draw, draw.sizes, tolerance)
        if result.difference is None:
            return result
        if self._spreads is None:
            algebra, slices = FloatAlgebra(self._xp), self._drawn.slice_elements
            self._spreads, _ = rounding_spread(
                self._drawn.primitive, draw.inputs, draw.outputs, self._roundoff, algebra, slices
            )
        known = [
            self._xp.where(self._xp.isnan(spread), inf, want) for spread, want in zip(self._spreads, draw.outputs, strict=True)
        ]
        sizes = with_spread(self._xp, draw.sizes, self._spreads, tolerance)
        return self._compare(got, replace(draw, outputs=known), sizes, tolerance)

    def _far(self, candidate: Graph, draw: FloatTrial, own: Sequence[float]) -> Result:
        tolerance = self._tolerance(candidate)
        sizes = [self._xp.maximum(size, AS_WRONG * error / tolerance) for size, error in zip(draw.sizes, own, strict=True)]
        return self._compare(self._as_kernels_do(candidate, draw.inputs), draw, sizes, tolerance)

    def _compare(self, got: Sequence[Array], draw: FloatTrial, sizes: Sequence[Array], tolerance: float) -> Result:
        where = "float64" if draw.name == self._drawn.usual else f"float64, {draw.name} inputs"
        names, types = self._program.output_names, self._program.output_types
        wanted = [  # what no number of its type is near is left out
            self._xp.where(abs(want) <= kind.dtype.largest, want, inf) for want, kind in zip(draw.outputs, types, strict=True)
        ]
        return Result(*compare_numbers(self._xp, names, got, wanted, sizes, tolerance, where)())

    def _as_kernels_do(self, candidate: Graph, inputs: Sequence[Array]) -> list[Array]:
        """What a candidate makes of these inputs, with its roundings and shifts."""
        working = max(self._working, candidate.working_dtype, key=lambda dtype: dtype.itemsize)
        return as_kernels_compute(candidate, inputs, self._xp, working, self._drawn.slice_elements)

    def _tolerance(self, candidate: Graph) -> float:
        longest = max(self._longest, longest_reduction(candidate))
        return 16 * self._roundoff + 2 * longest * self._working.unit_roundoff


def _check(usual: Result, far: Sequence[Result], tolerance: float, magnitude: float) -> FloatCheck:
    overflows = any(not isfinite(result.error) for result in far)
    difference = next((result.difference for result in (usual, *far) if result.difference), None)
    ok = usual.compared and difference is None
    return FloatCheck(ok, usual.error, tolerance, difference, overflows, magnitude, usual.compared)
