"""Whether a µGraph computes a program: random tests in the finite field, and float64 where the field differs from numbers.

Part of the trusted core: a kernel is right if this file, the evaluator and the field are. Inputs correspond by position and are
independent uniform draws; each draw has its own ω. Same seed, same verdict. Many candidates are checked draw by draw, so that
the inputs of one draw are made once and those of two never stand in memory together where they are large.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil, prod, sqrt
from time import perf_counter
from typing import Any

import numpy as np

from mirage_eg.backends.algebra import Array
from mirage_eg.backends.evaluate import evaluate
from mirage_eg.backends.field import FieldAlgebra, FieldValue
from mirage_eg.backends.floats import FloatAlgebra
from mirage_eg.backends.meanings import Component
from mirage_eg.backends.modular import PRIMES
from mirage_eg.bound import Bound, longest_reduction
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph, TensorType
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.shapes import Shape
from mirage_eg.verdict import Difference, Equality, FloatCheck, Verdict

KEPT_ELEMENTS = 1 << 26  # inputs of a program up to this many elements are kept for all draws, larger ones for one at a time
MOST_ELEMENTS = 1 << 30  # of inputs and outputs together; their residues take four bytes each
LEAST_COVERAGE = 0.5  # of the elements of an output that must be defined on both sides
COARSE = frozenset({"max", "sqrt", "rsqrt", "pow"})  # a wrong maximum or sign is right by chance at one element in two
COARSE_COMPARISONS = 32  # so at least so many elements are compared where there are such ops
MAGNITUDES = (64.0, 8.0, 2.0, 1.0)  # of large inputs, tried in this order


def verify(program: Graph, candidate: Graph, *, draws: int = 2, seed: int = 0) -> Verdict:
    """Whether `candidate` computes `program`.

    Raises:
        GraphError: the two take or give tensors of different types.
        UnsupportedError: the program itself divides by zero almost everywhere, or is too large.
    """
    return Reference(program, draws, seed).check(candidate)


def float_check(program: Graph, candidate: Graph, seed: int = 0) -> FloatCheck:
    """`Reference.float_check` for one candidate."""
    return Reference(program, 1, seed).float_check(candidate)


class Reference:
    """A program with its draws; many candidates can be checked against it, and what it computes is kept."""

    def __init__(self, program: Graph, draws: int = 2, seed: int = 0, xp: Any = np) -> None:
        if draws < 1:
            raise GraphError(f"got {draws} draws, wanted at least one")
        elements = sum(prod(kind.shape) for kind in (*program.input_types, *program.output_types))
        if elements > MOST_ELEMENTS:
            raise UnsupportedError(f"got a program of {elements:,} input and output elements, wanted at most {MOST_ELEMENTS:,}")
        self.program, self.seed, self.xp = program, seed, xp
        self._primitive = expand(program)
        self._bound = Bound(program)
        self._shapes = [kind.shape for kind in program.input_types]
        self._keep = sum(map(prod, self._shapes)) <= KEPT_ELEMENTS
        self._fields: dict[int, _FieldDraw] = {}
        self._floats: dict[str, _FloatDraw] = {}
        self.draws = draws

    def draw_all(self) -> None:
        """Make what is made once for all candidates: inputs and program of every draw."""
        for number in range(self.draws):
            self._field(number)

    def check(self, candidate: Graph) -> Verdict:
        """Equal if the field finds no difference, and float64 none where the field obeys other laws than numbers do."""
        [(verdict, _)] = self.check_all([candidate])
        return verdict

    def check_all(
        self, candidates: Sequence[Graph], on_progress: Callable[[int, int], None] | None = None
    ) -> list[tuple[Verdict, float]]:
        """The verdict on each candidate and the seconds that it took; `on_progress(done, of)` counts runs of candidates."""
        for candidate in candidates:
            self.check_types(candidate)
        trials = [_Trial(candidate, self.draws) for candidate in candidates]
        runs, ahead = 0, len(trials) * self.draws
        for number in count():
            running = [trial for trial in trials if trial.runs(number)]
            if not running:
                break
            draw = self._field(number)
            for trial in running:
                start = perf_counter()
                self._run(trial, draw)
                trial.seconds += perf_counter() - start
                runs += 1
                if on_progress:
                    on_progress(min(runs, ahead), ahead)
            del draw  # large inputs are not held together with those of the next draw
        results = []
        for trial in trials:
            start = perf_counter()
            verdict = self._verdict(trial)
            results.append((verdict, trial.seconds + perf_counter() - start))
        return results

    def _run(self, trial: "_Trial", draw: "_FieldDraw") -> None:
        """One draw of one candidate."""
        values = evaluate(trial.candidate, draw.inputs, draw.algebra)
        trial.unfaithful = draw.unfaithful.union(*(value.unfaithful for value in values))
        for name, got, want in zip(self.program.output_names, draw.algebra.read(values), draw.outputs, strict=True):
            compared = _defined(got, want)
            trial.compared, trial.total = trial.compared + compared, trial.total + got.residues.size
            trial.undefined |= compared < LEAST_COVERAGE * got.residues.size
            trial.difference = trial.difference or _field_difference(name, got, want)
        trial.done += 1
        if trial.unfaithful & COARSE:
            smallest = min(output.residues.size for output in draw.outputs)
            trial.draws = max(self.draws, ceil(COARSE_COMPARISONS / smallest))

    def _verdict(self, trial: "_Trial") -> Verdict:
        difference, unfaithful = trial.difference, trial.unfaithful
        verdict = Equality.UNDECIDED if difference is not None or trial.undefined else Equality.EQUAL
        error = None
        if verdict is not Equality.EQUAL or unfaithful:
            error, shown = self._float_difference(trial.candidate, verdict is not Equality.EQUAL)
            if shown is not None:
                verdict, difference = Equality.NOT_EQUAL, shown
            elif error is None:
                verdict = Equality.UNDECIDED
        bound, reason = self._bound.of(trial.candidate, trial.done)
        if unfaithful:
            reason += f"; the field does not know every law of {', '.join(sorted(unfaithful))}, so float64 was compared too"
        return Verdict(
            verdict=verdict,
            draws=trial.done,
            p=PRIMES[0],
            q=PRIMES[1],
            seed=self.seed,
            error_bound=bound if verdict is Equality.EQUAL else None,
            bound_reason=reason if verdict is Equality.EQUAL else f"the verdict is `{verdict}`",
            coverage=trial.compared / trial.total,
            difference=difference,
            float_error=error,
        )

    def float_check(self, candidate: Graph) -> FloatCheck:
        """The candidate with values rounded as kernels do, on zero-mean inputs, within what its types and sums let expect.

        Tolerance: 8 roundings of the coarsest type for each kernel, and K of the type that accumulates. Elements at which the
        program is not finite are left out, at all others the candidate must be; an output without a finite element fails.
        On large inputs it is only asked whether the candidate overflows where the program, in float64, does not.
        """
        self.check_types(candidate)
        graphs = (self.program, candidate)
        types = {kind.dtype for graph in graphs for kind in (*graph.types, *graph.output_types)}
        working = DType.float64 if DType.float64 in types else DType.float32
        coarsest = max(dtype.unit_roundoff for dtype in types)
        kernels = len([item for item in candidate.nodes if OPS[item.op].kind is not Kind.BOUNDARY])
        tolerance = 8 * coarsest * (1 + kernels) + 2 * max(map(longest_reduction, graphs)) * working.unit_roundoff
        rounding = FloatAlgebra(self.xp, working, rounds=True)
        draw = self._float("rounded")
        got = evaluate(candidate, draw.inputs, rounding, rounded=True)
        error, difference, finite = self._compare(got, draw.outputs, tolerance, True)
        del draw, got
        large = self._large()
        got = evaluate(candidate, large.inputs, rounding, rounded=True)
        overflows = any(
            bool((self.xp.isfinite(want) & ~self.xp.isfinite(x)).any()) for x, want in zip(got, large.outputs, strict=True)
        )
        return FloatCheck(difference is None and finite, error, tolerance, difference, overflows, large.magnitude)

    def check_types(self, candidate: Graph) -> None:
        """Raise a GraphError unless the candidate takes and gives what the program does."""
        if candidate.input_types != self.program.input_types:
            raise GraphError(
                f"got a candidate that takes {', '.join(map(str, candidate.input_types))}; "
                f"wanted the program's inputs in order: {', '.join(map(str, self.program.input_types))}"
            )
        if candidate.output_types != self.program.output_types:
            raise GraphError(
                f"got a candidate that gives {', '.join(map(str, candidate.output_types))}; "
                f"wanted the program's outputs in order: {', '.join(map(str, self.program.output_types))}"
            )

    def _field(self, number: int) -> "_FieldDraw":
        if number not in self._fields:
            self._make_room()
            algebra = FieldAlgebra.of(self.seed, number, self.xp)
            inputs = [algebra.input(place, shape) for place, shape in enumerate(self._shapes)]
            values = evaluate(self._primitive, inputs, algebra)
            outputs = algebra.read(values)
            for name, output in zip(self.program.output_names, outputs, strict=True):
                if _defined(output, output) < LEAST_COVERAGE * output.residues.size:
                    raise UnsupportedError(
                        f"got a program whose output {name} divides by zero at most of its elements in the field; "
                        "wanted one that can be tested (is something divided by the difference of equal values?)"
                    )
            unfaithful = frozenset[str]().union(*(value.unfaithful for value in values))
            self._fields[number] = _FieldDraw(algebra, inputs, outputs, unfaithful)
        return self._fields[number]

    def _make_room(self) -> None:
        """Large inputs are kept for one draw at a time."""
        if not self._keep:
            self._fields.clear()
            self._floats.clear()

    def _float(self, name: str) -> "_FloatDraw":
        """`zero-mean` and `positive` inputs, and `rounded` ones: zero-mean, rounded to the types of the inputs."""
        if name not in self._floats:
            self._make_room()
            inputs = [_numbers(self.xp, self.seed, name, place, shape) for place, shape in enumerate(self._shapes)]
            if name == "rounded":
                rounding = FloatAlgebra(self.xp, DType.float32, rounds=True)
                types = self.program.input_types
                inputs = [rounding.cast(x, kind.dtype) for x, kind in zip(inputs, types, strict=True)]
            self._floats[name] = _FloatDraw(inputs, evaluate(self._primitive, inputs, FloatAlgebra(self.xp)))
        return self._floats[name]

    def _large(self) -> "_FloatDraw":
        """The rounded inputs times the largest magnitude tried at which the program's outputs fit their types.

        Magnitudes are powers of two: the products need no rounding.
        """
        if "large" not in self._floats:
            inputs = self._float("rounded").inputs
            if self._keep:
                inputs = [x.copy() for x in inputs]
            else:
                self._make_room()
            current = 1.0
            for magnitude in MAGNITUDES:
                for x in inputs:
                    x *= np.float32(magnitude / current)
                current = magnitude
                outputs = evaluate(self._primitive, inputs, FloatAlgebra(self.xp))
                if all(map(_fits, outputs, self.program.output_types)):
                    break
            self._floats["large"] = _FloatDraw(inputs, outputs, current)
        return self._floats["large"]

    def _float_difference(self, candidate: Graph, suspected: bool) -> tuple[float | None, Difference | None]:
        """The largest error in float64, and the first difference beyond rounding; no error where nothing could be compared.

        On zero-mean inputs only elements finite on both sides count (a root of a negative number shows nothing about the
        others); on positive inputs, taken where a difference is suspected or nothing was finite, an element that is finite for
        the program alone is a difference.
        """
        tolerance = 2.0**-43 * max(64, longest_reduction(candidate), longest_reduction(self.program))
        worst, compared = 0.0, False
        for name, strict in (("zero-mean", False), ("positive", True)):
            if strict and compared and not suspected:
                break
            draw = self._float(name)
            got = evaluate(candidate, draw.inputs, FloatAlgebra(self.xp))
            error, difference, finite = self._compare(got, draw.outputs, tolerance, strict)
            worst, compared = max(worst, error), compared or finite
            if difference is not None:
                return worst, difference
        return (worst if compared else None), None

    def _compare(
        self, got: Sequence[Array], wanted: Sequence[Array], tolerance: float, strict: bool
    ) -> tuple[float, Difference | None, bool]:
        """The largest error, the first beyond `tolerance`, and whether every output has elements that could be compared."""
        worst, first, compared = 0.0, None, True
        with np.errstate(all="ignore"):
            for name, x, want in zip(self.program.output_names, got, wanted, strict=True):
                finite = self.xp.isfinite(want)
                size = self.xp.sqrt(self.xp.mean(self.xp.where(finite, want, 0) ** 2)) + self.xp.abs(want)
                error = self.xp.abs(x - want) / self.xp.where(size > 0, size, 1)
                given = self.xp.isfinite(x)
                compared &= bool((finite & given).any())
                error = self.xp.where(given, error, self.xp.inf if strict else 0.0)
                error = self.xp.where(finite, error, 0.0)
                worst = max(worst, float(error.max()))
                wrong = ~(error <= tolerance)
                if first is None and bool(wrong.any()):
                    index = _first(wrong)
                    first = Difference(name, index, float(x[index]), float(want[index]), "float64")
        return worst, first, compared


@dataclass(frozen=True, slots=True)
class _FieldDraw:
    algebra: FieldAlgebra
    inputs: list[FieldValue]
    outputs: list[Component]
    unfaithful: frozenset[str]


@dataclass(frozen=True, slots=True)
class _FloatDraw:
    inputs: list[Array]
    outputs: list[Array]
    magnitude: float = 1.0


@dataclass(slots=True)
class _Trial:
    """A candidate between its draws."""

    candidate: Graph
    draws: int
    done: int = 0
    compared: int = 0
    total: int = 0
    difference: Difference | None = None
    undefined: bool = False
    unfaithful: frozenset[str] = frozenset()
    seconds: float = 0.0

    def runs(self, number: int) -> bool:
        """Whether draw `number` can still tell something."""
        return number < self.draws and self.difference is None and not self.undefined


def _defined(x: Component, y: Component) -> int:
    """The number of elements that are defined on both sides."""
    masks = [component.undefined for component in (x, y) if component.undefined is not None]
    return int(x.residues.size) - (int(np.logical_or(masks[0], masks[-1]).sum()) if masks else 0)


def _field_difference(name: str, got: Component, want: Component) -> Difference | None:
    wrong = got.residues != want.residues
    for undefined in (got.undefined, want.undefined):
        if undefined is not None:
            wrong &= ~undefined
    if not bool(wrong.any()):
        return None
    index = _first(wrong)
    return Difference(name, index, float(got.residues[index]), float(want.residues[index]), f"modulo {PRIMES[0]}")


def _first(wrong: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))


def _fits(x: Array, kind: TensorType) -> bool:
    largest = 65504.0 if kind.dtype is DType.float16 else 3e38
    return bool((abs(x) <= largest).all())


def _numbers(xp: Any, seed: int, name: str, place: int, shape: Shape) -> Array:
    """Uniform numbers in ½ … 1½ for `positive`, else in ±√3: mean 0, variance 1."""
    generator = np.random.Generator(np.random.SFC64([seed, place, *name.encode()]))
    numbers = generator.random(shape, dtype=np.float32)
    if name == "positive":
        numbers += np.float32(0.5)
    else:
        numbers -= np.float32(0.5)
        numbers *= np.float32(2 * sqrt(3))
    return xp.asarray(numbers)
