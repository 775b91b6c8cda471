"""The float check: a µGraph in floating point as its kernels compute it, against the program in float64. Not trusted.

It models roundings and shifted exponentials with the emitter's own numerics (`backends.triton.numerics`), so it warns of
overflow and large errors and proves nothing; the verdict comes from `reference`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from math import floor, inf, isfinite, log2, nan, prod, sqrt
from typing import NamedTuple

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.cpu_threads import with_own_threads
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.random_rounding import SAMPLES, rounding_spread
from mirage_eg.backends.evaluator.shifted_floats import ShiftedFloats
from mirage_eg.backends.triton.numerics import as_kernels_compute, form_in_kernels
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.compare import SPREAD, compare_numbers, with_spread
from mirage_eg.verify.error_bound import longest_reduction
from mirage_eg.verify.far_inputs import FAR, NOT_A_NUMBER, far_names
from mirage_eg.verify.random_inputs import FloatTrial, largest_of
from mirage_eg.verify.reference import OnProgress, Reference, check_types
from mirage_eg.verify.verdict import Difference, FloatCheck
from mirage_eg.verify.zeros import ZEROS, domain_of, has_case_at_zero

MASKED_ERROR = 2e-2  # of the largest element: a µGraph may be no more wrong on masked rows, even if the program is
ERROR_RATIO = 2  # a µGraph may be this many times as wrong as the program in its own types, and 1 ulp of the largest element
MANY_SAMPLES = 16  # of roundings: two equal scores keep their order in half of them
FEW_ELEMENTS = 64  # of a value, whose roundings all elements behind it share: the largest error of few samples may be small


def float_check(program: Graph, candidate: Graph, seed: int = 0) -> FloatCheck:
    """The float check of one candidate."""
    [check] = float_checks(Reference(program, 1, seed), [candidate])
    return check


@with_own_threads
def float_checks(
    reference: Reference, candidates: Sequence[Graph], on_progress: OnProgress = lambda done, total: None
) -> list[FloatCheck]:
    """Each candidate on the random inputs of `reference`, with its values rounded and its exponentials shifted as in its
    kernels.

    Usual inputs have the size at which the program stays within the range of its types (`input_scales`). Tolerance: 16
    roundings of the program's coarsest type and 2 K roundings of the accumulator's type, or the distance by which such
    roundings of its ops move the program. Elements at which the program is not finite, or not finite under other roundings, are
    left out. On far inputs (`far_inputs`) the candidate must be finite where the program in float64 is. An element of
    integers counts unless larger roundings, or the program's own types, change it. On all inputs its error may be at most
    `ERROR_RATIO` times that of the program in its own types, op by op, and 1 ulp of the largest element; the error of a program
    of one type is the largest of several samples, by random roundings of its ops, of more where a value has few elements. If
    the program is not finite in its own types, the tolerance holds in programs with exponentials. On masked inputs, rows masked
    whole among them, an error above `MASKED_ERROR` and the tolerance is refused even where the program in its own types has it.
    """
    for candidate in candidates:
        check_types(reference.program, candidate)
    return _Checker(reference).check_all(candidates, on_progress)


@with_own_threads
def overflows(reference: Reference, candidate: Graph) -> bool:
    """Whether a candidate is not finite on far inputs where the program in float64 is, as `float_checks` would say."""
    return _Checker(reference).overflows(candidate)


class _TrialResult(NamedTuple):
    """The result of one trial: the largest error, the first difference, and whether every output has a finite element.

    `share`: the largest error of an output, relative to what it may be by that of the program in its own types.
    """

    error: float
    difference: Difference | None
    compared: bool
    share: float = 0.0
    masked: float = 0.0  # an error on masked inputs that is refused although the program in its own types has it

    @property
    def is_wrong(self) -> bool:
        """Whether an error is larger than it may be."""
        return self.difference is not None or self.share > 1


class _Checker:
    """A program with its random inputs, and the types that its results are rounded to."""

    def __init__(self, reference: Reference) -> None:
        program = reference.program
        self._program, self._inputs, self._xp = program, reference.inputs, reference.xp
        self._roundoff = _roundoff(program)
        self._types = _types_of_results(self._inputs.primitive)  # an ε of float64 is no type of accumulators
        self._working = DType.float64 if DType.float64 in self._types else DType.float32
        self._longest = longest_reduction(program)
        self._exponentials = any(item.op == "exp" for item in self._inputs.primitive.nodes)
        self._form = cache(form_in_kernels)  # of each candidate, for all trials
        self._spreads: list[Array] | None = None  # of the program on usual inputs, computed at the first difference

    def check_all(self, candidates: Sequence[Graph], on_progress: Callable[[int, int], None]) -> list[FloatCheck]:
        """See `float_checks`."""
        names = self._far_names(candidates)
        usual: list[_TrialResult] = []
        far: list[list[_TrialResult]] = [[] for _ in candidates]
        done, total, magnitude = 0, len(candidates) * (1 + len(names)), 1.0
        for name in (*names, None):  # large inputs are in memory after the verdict
            trial = self._trial(name)
            if trial is None:
                continue
            allowed = self._allowed(trial)
            magnitude = trial.magnitude if name == "large" else magnitude
            check = self._on_far if name else self._on_usual
            wider: list[float] | None = None
            for results, candidate in zip(far, candidates, strict=True):
                result = check(candidate, trial, allowed)
                if result.is_wrong:
                    wider = self._with_samples(trial, allowed) if wider is None else wider
                    result = check(candidate, trial, wider) if wider != allowed else result
                (results if name else usual).append(result)
                done += 1
                on_progress(done, total)
        return [
            _check(first, rest, self._tolerance(candidate), magnitude)
            for candidate, first, rest in zip(candidates, usual, far, strict=True)
        ]

    def overflows(self, candidate: Graph) -> bool:
        """See `overflows`."""
        trials = (self._trial(name) for name in self._far_names([candidate]))
        return any(trial is not None and self._leaves_range(candidate, trial) for trial in trials)

    def _leaves_range(self, candidate: Graph, trial: FloatTrial) -> bool:
        xp, got = self._xp, self._as_kernels_compute(candidate, trial.inputs)
        lost = (xp.isfinite(want) & ~xp.isfinite(x) for x, want in zip(got, self._wanted(trial), strict=True))
        return any(bool(it.any()) for it in lost)

    def _far_names(self, candidates: Sequence[Graph]) -> list[str]:
        at_zero = any(map(has_case_at_zero, (self._program, *candidates)))
        return [*far_names(self._inputs.primitive), *(ZEROS[:1] if at_zero else ())]

    def _trial(self, name: str | None) -> FloatTrial | None:
        """Inputs of this kind, usual ones for None; no trial where the types of the program do not hold what it computes."""
        trial = self._inputs.far(name) if name and name in FAR else self._inputs.numbers(name or self._inputs.usual)
        return trial if name not in ZEROS or all(map(isfinite, self._inputs.own_errors(trial))) else None

    def _wanted(self, trial: FloatTrial) -> list[Array]:
        """The program's results; infinite where they are beyond the range of their type, and so left out."""
        return [
            self._xp.where(abs(want) <= largest_of(kind.dtype, want), want, inf)
            for want, kind in zip(trial.outputs, self._program.output_types, strict=True)
        ]

    def _allowed(self, trial: FloatTrial) -> list[float]:
        """The error that each output may have by that of the program in its own types; infinite if it is not finite there.

        Also where all types of the program are float64, since nothing computes more exactly.
        """
        if self._roundoff <= DType.float64.unit_roundoff:
            return [inf] * len(trial.outputs)
        allowed = []
        for own, want, kind in zip(self._inputs.own_errors(trial), trial.outputs, self._program.output_types, strict=True):
            largest = float(self._xp.where(abs(want) <= largest_of(kind.dtype, want), abs(want), 0).max())
            ulp = (
                2 * kind.dtype.unit_roundoff * 2.0 ** max(floor(log2(largest)), kind.dtype.lowest_exponent) if largest else 0.0
            )
            allowed.append(ERROR_RATIO * own + ulp if ulp else inf)  # whole numbers have no ulp
        return allowed

    def _with_samples(self, trial: FloatTrial, allowed: list[float]) -> list[float]:
        """The error that each output may have by more samples of the error of the program: with exponentials that its types
        do not hold with all digits, and by random roundings of its ops.

        A single sample may be small by luck. Not so where the ops have several types: such programs round by their casts.
        """
        plain = self._inputs.own_errors(trial, exponentials_fit=False) if self._exponentials else [inf] * len(allowed)
        allowed = [max(own, ERROR_RATIO * error) if isfinite(error) else own for own, error in zip(allowed, plain, strict=True)]
        if len(self._types) != 1:
            return allowed
        key, known = (trial.name, trial.magnitude), self._inputs.sampled_errors
        if key not in known:
            known[key] = self._sampled_errors(trial)
        return [max(own, ERROR_RATIO * error) for own, error in zip(allowed, known[key], strict=True)]

    def _sampled_errors(self, trial: FloatTrial) -> list[float]:
        """The largest error of each output under random roundings of the ops of the program."""
        algebra, slices = ShiftedFloats(FloatAlgebra(self._xp)), self._inputs.slice_elements
        deviation = max(dtype.unit_roundoff for dtype in self._types) / sqrt(3)  # of a rounding: uniform up to the roundoff
        written = self._inputs.written
        few = any(
            prod(written.types[value].shape) < FEW_ELEMENTS
            for item, own in written.numbered()
            if item.operands
            for value in own
        )
        samples = MANY_SAMPLES if few else SAMPLES
        spreads, _ = rounding_spread(written, trial.inputs, trial.outputs, deviation, algebra, slices, samples=samples)
        return [float(self._xp.where(self._xp.isfinite(spread), spread, 0).max()) for spread in spreads]

    def _on_usual(self, candidate: Graph, trial: FloatTrial, allowed: Sequence[float]) -> _TrialResult:
        """A difference counts if it is larger than what rounding does to the program."""
        tolerance, got = self._tolerance(candidate), self._as_kernels_compute(candidate, trial.inputs)
        result = self._compare(got, trial, trial.sizes, tolerance, allowed)
        if result.difference is None:
            return result
        if self._spreads is None:
            algebra, slices = FloatAlgebra(self._xp), self._inputs.slice_elements
            self._spreads, _ = rounding_spread(
                self._inputs.primitive, trial.inputs, trial.outputs, self._roundoff, algebra, slices
            )
        outputs = [
            self._xp.where(self._xp.isnan(spread), inf, want) for spread, want in zip(self._spreads, trial.outputs, strict=True)
        ]
        sizes = with_spread(self._xp, trial.sizes, self._spreads, tolerance)
        return self._compare_but_orders(got, replace(trial, outputs=outputs), sizes, tolerance, allowed)

    def _on_far(self, candidate: Graph, trial: FloatTrial, allowed: Sequence[float]) -> _TrialResult:
        tolerance = self._tolerance(candidate)
        sizes = [
            size if self._exponentials and not isfinite(error) else self._xp.maximum(size, error / tolerance)
            for size, error in zip(trial.sizes, allowed, strict=True)
        ]
        got = self._as_kernels_compute(candidate, trial.inputs)
        masked = self._error_on_masks(got, trial, tolerance) if trial.name == "masked" else 0.0
        result = self._compare_but_orders(got, trial, sizes, tolerance, allowed)._replace(masked=masked)
        if trial.name != NOT_A_NUMBER or result.difference is not None:
            return result
        return result._replace(difference=self._number_instead(got, trial))

    def _compare_but_orders(
        self, got: Sequence[Array], trial: FloatTrial, sizes: Sequence[Array], tolerance: float, allowed: Sequence[float]
    ) -> _TrialResult:
        """The result without the elements of integers that roundings change."""
        result = self._compare(got, trial, sizes, tolerance, allowed)
        if result.difference is None or not (moved := self._moved_integers(trial)):
            return result
        sizes = [size + moved.get(place, 0.0) for place, size in enumerate(sizes)]
        return self._compare(got, trial, sizes, tolerance, allowed)

    def _moved_integers(self, trial: FloatTrial) -> dict[int, Array]:
        """For each output of integers infinity at the elements that roundings change, as places of the largest scores: a type
        may hold scores as equal."""
        places = [place for place, kind in enumerate(self._program.output_types) if kind.dtype.is_integer]
        if not places:
            return {}
        algebra, slices, roundoff = ShiftedFloats(FloatAlgebra(self._xp)), self._inputs.slice_elements, SPREAD * self._roundoff
        written, inputs, outputs = self._inputs.written, trial.inputs, trial.outputs
        spreads, _ = rounding_spread(written, inputs, outputs, roundoff, algebra, slices, samples=MANY_SAMPLES)
        own = self._inputs.in_own_types(trial)
        return {it: self._xp.where((spreads[it] != 0) | (own[it] != outputs[it]), inf, 0.0) for it in places}

    def _number_instead(self, got: Sequence[Array], trial: FloatTrial) -> Difference | None:
        """The first element that is a number where the program gives not-a-number."""
        for name, x, want in zip(self._program.output_names, got, trial.outputs, strict=True):
            numbers = self._xp.isnan(want) & self._xp.isfinite(x)
            if bool(numbers.any()):
                index = tuple(int(i) for i in np.unravel_index(int(numbers.argmax()), numbers.shape))
                return Difference(name, index, float(x[index]), nan, f"float64, {trial.name} inputs")
        return None

    def _error_on_masks(self, got: Sequence[Array], trial: FloatTrial, tolerance: float) -> float:
        """The largest error of an output, relative to its largest element; 0 if it may be that large."""
        xp, worst = self._xp, 0.0
        for x, want, kind in zip(got, trial.outputs, self._program.output_types, strict=True):
            counted = xp.isfinite(x) & (abs(want) <= largest_of(kind.dtype, want))
            largest = float(xp.where(counted, abs(want), 0).max())
            with np.errstate(all="ignore"):
                wrong = float(xp.where(counted, abs(x - want), 0).max())
            if not kind.dtype.is_integer and wrong > max(MASKED_ERROR, tolerance) * largest + _ulp(kind.dtype, 0.0) and largest:
                worst = max(worst, wrong / largest)
        return worst

    def _compare(
        self, got: Sequence[Array], trial: FloatTrial, sizes: Sequence[Array], tolerance: float, allowed: Sequence[float]
    ) -> _TrialResult:
        domain = "float64" if trial.name == self._inputs.usual else f"float64, {trial.name} inputs"
        domain = domain_of(trial.name) if trial.name in ZEROS else domain
        names, wanted, share = self._program.output_names, self._wanted(trial), 0.0
        for x, want, error in zip(got, wanted, allowed, strict=True):
            with np.errstate(all="ignore"):
                wrong = self._xp.where(self._xp.isfinite(want) & self._xp.isfinite(x), abs(x - want), 0)
            share = max(share, float(wrong.max()) / error)
        return _TrialResult(*compare_numbers(self._xp, names, got, wanted, sizes, tolerance, domain)(), share)

    def _as_kernels_compute(self, candidate: Graph, inputs: Sequence[Array]) -> list[Array]:
        working = max(self._working, candidate.working_dtype, key=lambda dtype: dtype.itemsize)
        return as_kernels_compute(candidate, inputs, self._xp, working, self._inputs.slice_elements, self._form)

    def _tolerance(self, candidate: Graph) -> float:
        longest = max(self._longest, longest_reduction(candidate))
        return 16 * self._roundoff + 2 * longest * self._working.unit_roundoff


def _ulp(dtype: DType, number: float) -> float:
    """The distance of neighbours in a type near a number."""
    exponent = max(floor(log2(number)), dtype.lowest_exponent) if number else dtype.lowest_exponent
    return 2 * dtype.unit_roundoff * 2.0**exponent


def _roundoff(program: Graph) -> float:
    """That of the coarsest type; roundings to float8 are ops of the program, of which results may be neighbours."""
    wide = [dtype.unit_roundoff for dtype in program.dtypes if not dtype.is_float8]
    return max([*wide, *(kind.dtype.unit_roundoff / 8 for kind in program.output_types if kind.dtype.is_float8)], default=0.0)


def _types_of_results(graph: Graph) -> frozenset[DType]:
    """The floating-point types that ops round to, and outputs."""
    values = (graph.types[value] for item, results in graph.numbered() if item.op != "input" for value in results)
    kinds = (kind.dtype for kind in (*values, *graph.output_types))
    return frozenset(dtype for dtype in kinds if not (dtype.is_integer or dtype.is_float8) and dtype is not DType.bool)


def _check(usual: _TrialResult, far: Sequence[_TrialResult], tolerance: float, magnitude: float) -> FloatCheck:
    overflows = any(not isfinite(result.error) for result in far)
    difference = next((result.difference for result in (usual, *far) if result.difference), None)
    share = max(result.share for result in (usual, *far))
    masked = max((result.masked for result in far), default=0.0) if difference is None and share <= 1 else 0.0
    ok = usual.compared and difference is None and share <= 1 and not masked
    return FloatCheck(ok, usual.error, tolerance, difference, overflows, magnitude, usual.compared, share=share, masked=masked)
