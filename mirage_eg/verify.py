"""Whether a µGraph computes a program: random tests in the finite field, and float64 where the field differs from numbers.

Part of the trusted core: a kernel is right if this file, the evaluator and the field are. Inputs correspond by position and are
independent uniform draws; each draw has its own ω. Same seed, same verdict.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import ceil, prod
from typing import Any

import numpy as np

from mirage_eg.backends.algebra import Array
from mirage_eg.backends.degree import DegreeAlgebra, DegreeValue, of_difference
from mirage_eg.backends.evaluate import evaluate
from mirage_eg.backends.field import FieldAlgebra, FieldValue
from mirage_eg.backends.floats import FloatAlgebra
from mirage_eg.backends.meanings import Component
from mirage_eg.backends.modular import PRIMES
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.shapes import Shape

KEPT_ELEMENTS = 1 << 26  # inputs of a program up to this many elements are kept between candidates, larger ones drawn again
LEAST_COVERAGE = 0.5  # of the elements of an output that must be defined on both sides
COARSE = frozenset({"max", "sqrt", "rsqrt", "pow"})  # a wrong maximum or sign is right by chance at one element in two
COARSE_COMPARISONS = 64  # so at least so many elements are compared where there are such ops


class Equality(StrEnum):
    """The three verdicts."""

    EQUAL = "equal"
    NOT_EQUAL = "not equal"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first element that differs; `got` and `wanted` are float64 where `domain` says so, else residues modulo p."""

    output: str
    index: tuple[int, ...]
    got: float
    wanted: float
    domain: str

    def __str__(self) -> str:
        return f"{self.output}{list(self.index)}: got {self.got:.9g}, wanted {self.wanted:.9g} ({self.domain})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of a candidate and how; `error_bound` bounds the chance that an unequal one was called equal."""

    verdict: Equality
    draws: int
    p: int
    q: int
    seed: int
    error_bound: float | None
    bound_reason: str
    coverage: float  # of the elements compared in the field
    difference: Difference | None = None
    float_error: float | None = (
        None  # largest |got − wanted| / (|wanted| + rms) in float64; None: not needed, or nothing finite
    )

    @property
    def equal(self) -> bool:
        """Whether the verdict is `equal`."""
        return self.verdict is Equality.EQUAL


@dataclass(frozen=True, slots=True)
class FloatCheck:
    """A candidate computed as the kernels do, against the program in float64."""

    ok: bool
    error: float  # largest |got − wanted| / (|wanted| + rms)
    tolerance: float
    difference: Difference | None


def verify(program: Graph, candidate: Graph, *, draws: int = 2, seed: int = 0) -> Verdict:
    """Whether `candidate` computes `program`.

    Raises:
        GraphError: the two take or give tensors of different types.
        UnsupportedError: the program itself divides by zero almost everywhere.
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
        self.program, self.seed, self.xp = program, seed, xp
        self._primitive = expand(program)
        self._shapes = [kind.shape for kind in program.input_types]
        self._keep = sum(map(prod, self._shapes)) <= KEPT_ELEMENTS
        self._fields: dict[int, _FieldDraw] = {}
        self._floats: dict[str, _FloatDraw] = {}
        self.draws = draws

    def check(self, candidate: Graph) -> Verdict:
        """Equal if the field finds no difference, and float64 none where the field obeys other laws than numbers do."""
        self._check_types(candidate)
        compared = total = done = 0
        draws = self.draws
        difference: Difference | None = None
        undefined = False
        unfaithful: frozenset[str] = frozenset()
        while done < draws and difference is None and not undefined:
            draw = self._field(done)
            values = evaluate(candidate, draw.inputs, draw.algebra)
            unfaithful = draw.unfaithful.union(*(value.unfaithful for value in values))
            for name, got, want in zip(self.program.output_names, draw.algebra.read(values), draw.outputs, strict=True):
                count = _defined(got, want)
                compared, total = compared + count, total + got.residues.size
                undefined |= count < LEAST_COVERAGE * got.residues.size
                difference = difference or _field_difference(name, got, want)
            done += 1
            if unfaithful & COARSE:
                draws = max(self.draws, ceil(COARSE_COMPARISONS / min(output.residues.size for output in draw.outputs)))
        verdict = Equality.UNDECIDED if difference is not None or undefined else Equality.EQUAL
        error = None
        if verdict is not Equality.EQUAL or unfaithful:
            error, shown = self._float_difference(candidate, verdict is not Equality.EQUAL)
            if shown is not None:
                verdict, difference = Equality.NOT_EQUAL, shown
            elif error is None:
                verdict = Equality.UNDECIDED
        bound, reason = self._bound(candidate, done)
        if unfaithful:
            reason += f"; the field does not know every law of {', '.join(sorted(unfaithful))}, so float64 was compared too"
        return Verdict(
            verdict=verdict,
            draws=done,
            p=PRIMES[0],
            q=PRIMES[1],
            seed=self.seed,
            error_bound=bound if verdict is Equality.EQUAL else None,
            bound_reason=reason if verdict is Equality.EQUAL else f"the verdict is `{verdict}`",
            coverage=compared / total,
            difference=difference,
            float_error=error,
        )

    def float_check(self, candidate: Graph) -> FloatCheck:
        """The candidate with values rounded as kernels do, on zero-mean inputs, within what its types and sums let expect.

        Tolerance: 8 roundings of the coarsest type for each kernel, and K of the type that accumulates. Elements at which the
        program is not finite are left out, at all others the candidate must be; an output without a finite element fails.
        """
        self._check_types(candidate)
        graphs = (self.program, candidate)
        types = {kind.dtype for graph in graphs for kind in (*graph.types, *graph.output_types)}
        working = DType.float64 if DType.float64 in types else DType.float32
        coarsest = max(dtype.unit_roundoff for dtype in types)
        kernels = len([item for item in candidate.nodes if OPS[item.op].kind is not Kind.BOUNDARY])
        tolerance = 8 * coarsest * (1 + kernels) + 2 * max(map(longest_reduction, graphs)) * working.unit_roundoff
        draw = self._float("rounded")
        got = evaluate(candidate, draw.inputs, FloatAlgebra(self.xp, working, rounds=True), rounded=True)
        error, difference, finite = self._compare(got, draw.outputs, tolerance, True)
        return FloatCheck(difference is None and finite, error, tolerance, difference)

    def _check_types(self, candidate: Graph) -> None:
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
            algebra = FieldAlgebra.of(self.seed, number, self.xp)
            inputs = [algebra.input(place, shape, self._keep) for place, shape in enumerate(self._shapes)]
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

    def _float(self, name: str) -> "_FloatDraw":
        """`zero-mean` and `positive` inputs, and `rounded` ones: zero-mean, rounded to the types of the inputs."""
        if name in self._floats:
            return self._floats[name]
        inputs = [self._numbers(name, place, shape) for place, shape in enumerate(self._shapes)]
        if name == "rounded":
            rounding = FloatAlgebra(self.xp, DType.float32, rounds=True)
            types = self.program.input_types
            inputs = [rounding.cast(value, kind.dtype) for value, kind in zip(inputs, types, strict=True)]
        draw = _FloatDraw(inputs, evaluate(self._primitive, inputs, FloatAlgebra(self.xp)))
        if self._keep:
            self._floats[name] = draw
        return draw

    def _numbers(self, name: str, place: int, shape: Shape) -> Array:
        generator = np.random.default_rng([self.seed, place, *name.encode()])
        if name == "positive":
            return self.xp.asarray(generator.random(shape, dtype=np.float32) + np.float32(0.5))
        return self.xp.asarray(generator.standard_normal(shape, dtype=np.float32))

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

    @cached_property
    def _degrees(self) -> list[DegreeValue]:
        return _degrees(self.program)

    def _bound(self, candidate: Graph, draws: int) -> tuple[float | None, str]:
        """Schwartz–Zippel: a polynomial of degree d that is not zero vanishes at d/p of all points, or less."""
        pairs = list(zip(self._degrees, _degrees(candidate), strict=True))
        beyond = sorted(frozenset[str]().union(*(x.beyond | y.beyond for x, y in pairs)))
        if beyond:
            return None, f"no theorem with a useful bound covers {', '.join(beyond)}: tested, not proved"
        degree = max(of_difference(x.degree, y.degree) for x, y in pairs)
        if degree >= PRIMES[0]:
            return None, f"the degree may be {degree}, more than p: the Schwartz–Zippel bound says nothing"
        theorem = f"Schwartz–Zippel: degree at most {degree}, {draws} independent draws, for functions that differ modulo p"
        return (degree / PRIMES[0]) ** draws, theorem


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


def longest_reduction(graph: Graph) -> int:
    """The largest number of values that one op of the graph adds up, over its loop where it is an accumulator."""
    graph = expand(graph)
    longest = 1
    for item, values in graph.numbered():
        match OPS[item.op].kind:
            case Kind.GRAPH:
                longest = max(longest, longest_reduction(item["graph"]))
            case Kind.MATMUL:
                longest = max(longest, graph.types[item.operands[0]].shape[-1])
            case Kind.REDUCTION | Kind.ACCUMULATOR:
                added = prod(graph.types[item.operands[0]].shape) // prod(graph.types[values[0]].shape)
                longest = max(longest, graph.loop * added)
            case Kind.BOUNDARY | Kind.ELEMENTWISE | Kind.REARRANGEMENT | Kind.DERIVED:
                pass  # a derived op was expanded
    return longest


def _degrees(graph: Graph) -> list[DegreeValue]:
    algebra = DegreeAlgebra()
    return evaluate(graph, [algebra.input(kind.shape) for kind in graph.input_types], algebra)


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
