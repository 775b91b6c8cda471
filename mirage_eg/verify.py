"""Whether a µGraph computes a program: random tests in the finite field, and float64 where the field differs from numbers.

Part of the trusted core: a kernel is right if this file, the evaluator and the field are. Inputs correspond by position and are
independent uniform draws; each draw has its own ω. Same seed, same verdict. Many candidates are checked draw by draw, so that
the inputs of one draw are made once and those of two never stand in memory together where they are large.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import ceil, prod
from time import perf_counter
from typing import Any

import numpy as np

from mirage_eg.backends.algebra import Algebra, Array
from mirage_eg.backends.evaluate import evaluate
from mirage_eg.backends.floats import FloatAlgebra
from mirage_eg.backends.modular import PRIMES
from mirage_eg.backends.shifted import ShiftedFloats, shifts_exponentials
from mirage_eg.backends.threads import with_own_threads
from mirage_eg.bound import Bound, longest_reduction
from mirage_eg.compare import Found, compare_numbers, compare_residues
from mirage_eg.draws import LEAST_COVERAGE, Draws, FieldDraw
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.probe import Part, Probe
from mirage_eg.verdict import Difference, Equality, FloatCheck, Verdict

MOST_ELEMENTS = 1 << 30  # of inputs and outputs together; their residues take four bytes each
COARSE = frozenset({"max", "sqrt", "rsqrt", "pow"})  # a wrong maximum or sign is right by chance at one element in two
COARSE_COMPARISONS = 32  # so at least so many elements are compared where there are such ops

OnProgress = Callable[[int, int], None]  # runs of candidates done, of how many


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
        self.program, self.seed, self.xp, self.draws = program, seed, xp, draws
        self._bound = Bound(program)
        self._longest = longest_reduction(program)
        self._drawn = Draws(program, seed, xp)
        self._together = self._drawn.together(draws)

    @with_own_threads
    def draw_all(self) -> None:
        """Make what is made once for all candidates: inputs and program of every draw."""
        for first in range(0, self.draws, self._together):
            self._drawn.field(first, min(self._together, self.draws - first))

    @with_own_threads
    def draw_ahead(self) -> None:
        """Make what can be made before there are candidates."""
        self._drawn.ahead(self.draws)

    def check(self, candidate: Graph) -> Verdict:
        """Equal if the field finds no difference, and float64 none where the field obeys other laws than numbers do."""
        [(verdict, _)] = self.check_all([candidate])
        return verdict

    @with_own_threads
    def check_all(
        self, candidates: Sequence[Graph], on_progress: OnProgress | None = None, probe: Probe | None = None
    ) -> list[tuple[Verdict, float]]:
        """The verdict on each candidate and the seconds that it took; then those on the parts of `probe`, where they stand.

        `probe` is of a program with the same inputs.
        """
        for candidate in candidates:
            self.check_types(candidate)
        wholes = [_Trial(candidate, self.program.output_names, self.draws) for candidate in candidates]
        parts = [_Trial(part.graph, part.names, self.draws, part) for part in (probe.parts if probe else ())]
        trials = [*wholes, *parts]
        share = len(trials) > 1
        runs, ahead = 0, len(trials) * self.draws
        for number in count(0, self._together):
            running = [trial for trial in trials if trial.runs(number)]
            if not running:
                break
            together = min(self._together, max(trial.draws for trial in running) - number)
            draw = self._drawn.field(number, together, share)
            inside = probe.field(draw) if probe and any(trial.part for trial in running) else []
            draws = dict(zip(map(id, parts), inside, strict=bool(inside)))
            waiting: list[Callable[[], None]] = []  # on a GPU, which has the next trial to compute meanwhile
            for trial in running:
                with trial:
                    waiting.append(self._run(trial, draws.get(id(trial), draw)))
                if len(waiting) > 1:
                    waiting.pop(0)()
                runs += together
                if on_progress:
                    on_progress(min(runs, ahead), ahead)
            for wait in waiting:
                wait()
        unsure = [trial for trial in trials if trial.suspected or trial.unfaithful]
        self._compare_in_float64([*unsure], "zero-mean", parts, probe)
        later = [trial for trial in unsure if trial.suspected or trial.error is None]
        self._compare_in_float64(later, "positive", parts, probe)
        for trial in parts:
            if probe and not trial.suspected and 0 < trial.comparisons < COARSE_COMPARISONS:
                self._run_alone(trial, probe)
        return [(self._verdict(trial), trial.seconds) for trial in trials]

    def _run_alone(self, trial: "_Trial", probe: Probe) -> None:
        """A part on draws of its own, so that more of them do not take the whole program again each."""
        assert trial.part is not None
        with trial:
            verdict = Reference(probe.alone(trial.part), self.draws, self.seed, self.xp).check(trial.candidate)
            trial.done += verdict.draws
            if verdict.verdict is Equality.NOT_EQUAL:
                trial.difference = trial.shown = verdict.difference
            elif not verdict.equal:
                trial.undefined = True

    def _run(self, trial: "_Trial", draw: FieldDraw) -> Callable[[], None]:
        """One candidate on one draw, or on several together; the function given back notes the result."""
        algebra, known = draw.algebra, draw.known
        values = evaluate(trial.candidate, draw.inputs, algebra, self._drawn.slice_elements, stack=algebra.stack, known=known)
        trial.unfaithful = draw.unfaithful.union(*(value.unfaithful for value in values))
        compared = [
            (got.residues.size, compare_residues(self.xp, name, got, want, draw.algebra.stack))
            for name, got, want in zip(trial.names, draw.algebra.read(values), draw.outputs, strict=True)
        ]
        draws = len(draw.algebra.draw.numbers)
        smallest = min(output.residues.size for output in draw.outputs) // draws

        def note() -> None:
            first: Found | None = None
            with trial:
                for size, wait in compared:
                    defined, found = wait()
                    trial.compared, trial.total = trial.compared + defined, trial.total + size
                    trial.undefined |= defined < LEAST_COVERAGE * size
                    if found and (first is None or found[0] < first[0]):
                        first = found
            trial.difference = first[1] if first else None
            trial.done += first[0] + 1 if first else draws
            if trial.unfaithful & COARSE:
                trial.comparisons += smallest * draws
                if trial.part is None:  # for a part, see `_run_alone`
                    trial.draws = max(self.draws, ceil(COARSE_COMPARISONS / smallest))

        return note

    def _compare_in_float64(
        self, trials: Sequence["_Trial"], name: str, parts: Sequence["_Trial"], probe: Probe | None
    ) -> None:
        """The largest error in float64, and the first difference beyond rounding; no error where nothing could be compared.

        On zero-mean inputs only elements finite on both sides count (a root of a negative number shows nothing about the
        others); on positive inputs, taken where a difference is suspected or nothing was finite, an element that is finite for
        the program alone is a difference.
        """
        trials = [trial for trial in trials if trial.shown is None]
        if not trials:
            return
        whole, algebra = self._drawn.wide_numbers(name, len(trials) > 1), FloatAlgebra(self.xp)
        inside = probe.numbers(whole, algebra) if probe and any(trial.part for trial in trials) else []
        draws = dict(zip(map(id, parts), inside, strict=bool(inside)))
        waiting: list[Callable[[], None]] = []  # as in `check_all`
        for trial in trials:
            draw = draws.get(id(trial), whole)
            with trial:
                tolerance = 2.0**-43 * max(64, longest_reduction(trial.candidate), self._longest)
                got = evaluate(trial.candidate, draw.inputs, algebra, self._drawn.slice_elements, known=draw.known)
                strict = name == "positive"
                numbers = compare_numbers(self.xp, trial.names, got, draw.outputs, draw.sizes, tolerance, strict)
                waiting.append(partial(trial.note_numbers, numbers))
            if len(waiting) > 1:
                waiting.pop(0)()
        for wait in waiting:
            wait()

    def _verdict(self, trial: "_Trial") -> Verdict:
        verdict, difference = Equality.EQUAL, trial.difference
        if trial.shown is not None:
            verdict, difference = Equality.NOT_EQUAL, trial.shown
        elif trial.suspected or (trial.unfaithful and trial.error is None):
            verdict = Equality.UNDECIDED
        if trial.part is None:
            bound, reason = self._bound.of(trial.candidate, trial.done)
        else:
            bound, reason = None, "no bound is computed for a kernel on the values that the program has where it stands"
        if trial.unfaithful:
            names = ", ".join(sorted(trial.unfaithful))
            reason += f"; the field does not know every law of {names}, so float64 was compared too"
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
            float_error=trial.error,
        )

    def float_check(self, candidate: Graph) -> FloatCheck:
        """`float_check_all` for one candidate."""
        [check] = self.float_check_all([candidate])
        return check

    @with_own_threads
    def float_check_all(self, candidates: Sequence[Graph], on_progress: OnProgress | None = None) -> list[FloatCheck]:
        """Each candidate with values rounded as kernels do, on zero-mean inputs, within what its types and sums let expect.

        Exponentials are shifted where its kernels shift them. Inputs have the size at which the program stays within the range
        of its types (`backends.scales`). Tolerance: 8 roundings of the coarsest type for each kernel, and K of the type that
        accumulates. Elements at which the program is not finite are left out, at all others the candidate must be; an output
        without a finite element fails. On larger inputs it is only asked whether the candidate overflows where the program, in
        float64, does not.
        """
        for candidate in candidates:
            self.check_types(candidate)
        checks = []
        for done, candidate in enumerate(candidates, 1):
            tolerance = self._tolerance(candidate)
            draw = self._drawn.numbers("zero-mean")
            got = self._as_kernels_do(candidate, draw.inputs)
            names = self.program.output_names
            error, difference, finite = compare_numbers(self.xp, names, got, draw.outputs, draw.sizes, tolerance, True)()
            checks.append((difference is None and finite, error, tolerance, difference))
            if on_progress:
                on_progress(done, 2 * len(candidates))
        results = []
        for done, (candidate, check) in enumerate(zip(candidates, checks, strict=True), len(candidates) + 1):
            large = self._drawn.large()
            got = self._as_kernels_do(candidate, large.inputs)
            lost = [self.xp.isfinite(want) & ~self.xp.isfinite(x) for x, want in zip(got, large.outputs, strict=True)]
            results.append(FloatCheck(*check, any(bool(x.any()) for x in lost), large.magnitude))
            if on_progress:
                on_progress(done, 2 * len(candidates))
        return results

    def _as_kernels_do(self, candidate: Graph, inputs: Sequence[Array]) -> list[Array]:
        """What a candidate makes of these inputs, with its roundings and shifts."""
        shifted = ShiftedFloats(self._rounding(candidate))
        algebra: Algebra[Any] = shifted if shifts_exponentials(candidate) else shifted.plain
        made = evaluate(candidate, inputs, algebra, self._drawn.slice_elements, rounded=True)
        return [shifted.number(x) for x in made]

    def _types(self, candidate: Graph) -> set[DType]:
        return {kind.dtype for graph in (self.program, candidate) for kind in (*graph.types, *graph.output_types)}

    def _rounding(self, candidate: Graph) -> FloatAlgebra:
        working = DType.float64 if DType.float64 in self._types(candidate) else DType.float32
        return FloatAlgebra(self.xp, working, rounds=True)

    def _tolerance(self, candidate: Graph) -> float:
        coarsest = max(dtype.unit_roundoff for dtype in self._types(candidate))
        accumulating = self._rounding(candidate).working.unit_roundoff
        kernels = len([item for item in candidate.nodes if OPS[item.op].kind is not Kind.BOUNDARY])
        return 8 * coarsest * (1 + kernels) + 2 * max(self._longest, longest_reduction(candidate)) * accumulating

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


@dataclass(slots=True)
class _Trial:
    """A candidate between its draws; as a context it counts the seconds spent on it."""

    candidate: Graph
    names: Sequence[str]  # of the outputs
    draws: int
    part: Part | None = None  # of the program; None: the whole of it
    done: int = 0
    compared: int = 0
    total: int = 0
    difference: Difference | None = None  # in the field
    undefined: bool = False
    unfaithful: frozenset[str] = frozenset()
    comparisons: int = 0  # of the smallest output, where an op is coarse
    error: float | None = None  # in float64
    shown: Difference | None = None  # in float64
    seconds: float = 0.0

    @property
    def suspected(self) -> bool:
        """Whether the field differs, or shows too little."""
        return self.difference is not None or self.undefined

    def runs(self, number: int) -> bool:
        """Whether draw `number` can still tell something."""
        return number < self.draws and not self.suspected

    def note_numbers(self, wait: Callable[[], tuple[float, Difference | None, bool]]) -> None:
        """The result of a comparison in float64."""
        with self:
            error, self.shown, compared = wait()
            if compared or self.shown is not None:
                self.error = max(self.error or 0.0, error)

    def __enter__(self) -> None:
        self.seconds -= perf_counter()

    def __exit__(self, *raised: object) -> None:
        self.seconds += perf_counter()
