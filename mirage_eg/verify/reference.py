"""Whether a µGraph computes a program: random tests in the finite field and in float64.

Part of the trusted core: a kernel is right if this file, the evaluator and the field are. Inputs correspond by position and are
independent uniform draws; each draw has its own ω. Same program and seed, same verdict. Many candidates are checked draw by
draw, so that the inputs of one draw are made once and those of two never stand in memory together where they are large.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from math import ceil, prod
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.cpu_threads import with_own_threads
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.modular import PRIMES
from mirage_eg.backends.evaluator.random_rounding import rounding_spread
from mirage_eg.backends.triton.numerics import ShiftedFloats
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.check_state import COARSE, COARSE_COMPARISONS, EXTREMES, Trial, Wait
from mirage_eg.verify.compare import compare_numbers, compare_residues, with_spread
from mirage_eg.verify.error_bound import Bound, longest_reduction
from mirage_eg.verify.float_check import FloatChecker
from mirage_eg.verify.inputs import USUAL, FieldTrial, FloatTrial, RandomInputs
from mirage_eg.verify.subgraph_check import SubgraphCheck
from mirage_eg.verify.verdict import Equality, FloatCheck, Verdict

MOST_ELEMENTS = 1 << 30  # of inputs and outputs together; their residues take four bytes each
MAXIMA = 8  # times as many are compared as a maximum is of, where the field does not tell that all of it was looked at
MOST_NUMBERS = 1 << 28  # drawn for that, at most
NUMBERS_AT_ONCE = 1 << 20
ROUNDOFF = 2.0**-46  # by which ops in float64 may err

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
        self._drawn = RandomInputs(program, seed, xp)
        self._together = self._drawn.together(draws)
        self._spreads: dict[tuple[Graph, str], list[Array]] = {}

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
        """Equal if neither the field nor float64 finds a difference."""
        [(verdict, _)] = self.check_all([candidate])
        return verdict

    @with_own_threads
    def check_all(
        self, candidates: Sequence[Graph], on_progress: OnProgress | None = None, probe: SubgraphCheck | None = None
    ) -> list[tuple[Verdict, float]]:
        """The verdict on each candidate and the seconds that it took; then those on the parts of `probe`, where they stand.

        `probe` is of a program with the same inputs.
        """
        for candidate in candidates:
            self.check_types(candidate)
        program, names = self._drawn.primitive, self.program.output_names
        wholes = [Trial(program, candidate, names, self.draws) for candidate in candidates]
        parts = [Trial(probe.alone(part), part.graph, part.names, self.draws, part) for part in probe.parts] if probe else []
        trials = [*wholes, *parts]
        share = len(trials) > 1
        runs, ahead = 0, len(trials) * self.draws
        for number in count(0, self._together):
            running = [trial for trial in trials if trial.runs(number)]
            if not running:
                break
            together = min(self._together, max(trial.draws for trial in running) - number)
            self._run_all(running, self._drawn.field(number, together, share), probe)
            runs += together * len(running)
            if on_progress:
                on_progress(min(runs, ahead), ahead)
        if with_maxima := [trial for trial in trials if trial.unfaithful & EXTREMES and not trial.suspected]:
            self._run_all(with_maxima, self._drawn.field(self.draws, share=share, joins=True), probe)
        self._compare_in_float64(trials, probe)
        for trial in trials:
            maxima = not trial.joined or (trial.suspected and trial.unfaithful & EXTREMES)
            if trial.shown is not None:
                continue
            if trial.part and (maxima or (not trial.suspected and 0 < trial.comparisons < COARSE_COMPARISONS)):
                self._run_alone(trial)
            elif maxima:
                self._compare_maxima(trial)
        return [(self._verdict(trial), trial.seconds) for trial in trials]

    def _run_all(self, trials: Sequence[Trial], draw: FieldTrial, probe: SubgraphCheck | None) -> None:
        """Candidates and parts on one draw, or on several together."""
        inside = dict(zip(probe.parts, probe.field(draw), strict=True)) if probe and any(trial.part for trial in trials) else {}
        waiting: list[Callable[[], None]] = []  # on a GPU, which has the next trial to compute meanwhile
        for trial in trials:
            with trial:
                waiting.append(self._run(trial, inside[trial.part] if trial.part else draw))
            if len(waiting) > 1:
                waiting.pop(0)()
        for wait in waiting:
            wait()

    def _run_alone(self, trial: Trial) -> None:
        """A part on draws of its own, so that more of them do not take the whole program again each."""
        with trial:
            verdict = Reference(trial.program, self.draws, self.seed, self.xp).check(trial.candidate)
            trial.done += verdict.draws
            if verdict.verdict is Equality.NOT_EQUAL:
                trial.difference = trial.shown = verdict.difference
            elif not verdict.equal:
                trial.undefined = True

    def _run(self, trial: Trial, draw: FieldTrial) -> Callable[[], None]:
        """One candidate on one draw, or on several together; the function given back notes the result."""
        algebra, known = draw.algebra, draw.known
        values = evaluate(trial.candidate, draw.inputs, algebra, self._drawn.slice_elements, stack=algebra.stack, known=known)
        trial.unfaithful = draw.unfaithful.union(*(value.unfaithful for value in values))
        waits = [
            compare_residues(self.xp, name, got, want, algebra.stack)
            for name, got, want in zip(trial.names, algebra.read(values), draw.outputs, strict=True)
        ]
        draws = algebra.draw.numbers
        smallest = min(output.residues.size for output in draw.outputs) // len(draws)

        def note() -> None:
            with trial:
                results = [wait() for wait in waits]
                if algebra.draw.joins:  # a difference shows nothing by itself: max(x, x) is x, and a product is not
                    trial.joined = not any(result.found or result.lost.any() for result in results)
                    return
                trial.note(results, draws)
                if trial.unfaithful & COARSE:
                    trial.compare_more(smallest, len(draws))

        return note

    def _compare_in_float64(self, trials: Sequence[Trial], probe: SubgraphCheck | None) -> None:
        """All on inputs of usual size; where the field does not tell, on others too, until a difference is shown.

        Ops that the field does not know may be undefined, or differ, far from usual inputs only.
        """
        self._compare_on(USUAL[0], trials, probe)
        for name in USUAL[1:]:
            self._compare_on(name, [trial for trial in trials if trial.error is None], probe)
        self._compare_on("positive", [trial for trial in trials if trial.suspected], probe)
        self._compare_on("large", [trial for trial in trials if trial.suspected or trial.unfaithful], probe)
        self._compare_on("tails", [trial for trial in trials if trial.suspected], probe)

    def _compare_on(self, name: str, trials: Sequence[Trial], probe: SubgraphCheck | None) -> None:
        """Largest errors in float64 on these inputs, and first differences beyond rounding."""
        trials = [trial for trial in trials if trial.shown is None]
        if not trials:
            return
        whole, algebra = self._drawn.wide_numbers(name, len(trials) > 1), FloatAlgebra(self.xp)
        inside: dict[Any, FloatTrial] = {}
        if probe and any(trial.part for trial in trials):
            inside = dict(zip(probe.parts, probe.numbers(whole, algebra), strict=True))
        waiting: list[Callable[[], None]] = []  # as in `_run_all`
        for trial in trials:
            draw = inside[trial.part] if trial.part else whole
            with trial:
                got = evaluate(trial.candidate, draw.inputs, algebra, self._drawn.slice_elements, known=draw.known)
                numbers = compare_numbers(self.xp, trial.names, got, draw.outputs, draw.sizes, self._tolerance(trial))
                waiting.append(partial(trial.note_numbers, partial(self._confirmed, trial, draw, got, numbers)))
            if len(waiting) > 1:
                waiting.pop(0)()
        for wait in waiting:
            wait()
        if whole.known is not None and name != USUAL[0]:  # the others are asked for once
            whole.known.forget()

    def _confirmed(
        self, trial: Trial, draw: FloatTrial, got: Sequence[Array], numbers: Wait, stack: int = 0
    ) -> tuple[float, Any, bool]:
        """The comparison; where it shows a difference, once more with exponentials shifted, and beyond what rounding moves."""
        result = numbers()
        if result[1] is None:
            return result
        algebra, xp, slices = ShiftedFloats(FloatAlgebra(self.xp)), self.xp, self._drawn.slice_elements
        own, overflows = rounding_spread(trial.candidate, draw.inputs, got, ROUNDOFF, algebra.plain, slices, stack)
        shifted = [algebra.number(x) for x in evaluate(trial.candidate, draw.inputs, algebra, slices, stack=stack)]
        got = [xp.where(xp.isfinite(x), x, y) for x, y in zip(got, shifted, strict=True)]
        spreads = self._spreads.get(key := (trial.program, draw.name))
        if spreads is None:
            spreads, _ = rounding_spread(trial.program, draw.inputs, draw.outputs, ROUNDOFF, algebra.plain, slices, stack)
            if not stack:  # other candidates ask for it again
                self._spreads[key] = spreads
        left_out = [xp.isnan(spread) for spread in spreads]  # the program is undefined there, or all but
        if overflows and not stack and draw.name not in USUAL:  # far out float64 does not hold every value
            left_out = [out | xp.isnan(spread) for out, spread in zip(left_out, own, strict=True)]
        got = [xp.where(out, want, x) for out, want, x in zip(left_out, draw.outputs, got, strict=True)]
        together = [xp.nan_to_num(one) + xp.nan_to_num(other) for one, other in zip(spreads, own, strict=True)]
        tolerance = self._tolerance(trial)
        sizes = with_spread(xp, draw.sizes, together, tolerance)
        return compare_numbers(xp, trial.names, got, draw.outputs, sizes, tolerance)()

    def _compare_maxima(self, trial: Trial) -> None:
        """In float64, in proportion to the longest maximum; suspected where that would take too many numbers."""
        kinds = (*self.program.input_types, *self.program.output_types)
        each = sum(prod(kind.shape) for kind in kinds)
        program = self._drawn.primitive
        made = [program.types[values[0]] for item, values in program.numbered() if item.op in EXTREMES]
        smallest = min(prod(kind.shape) for kind in (*made, *self.program.output_types))
        longest = max(len(made), *(longest_reduction(graph, "max") for graph in (program, trial.candidate)))
        wanted = ceil(MAXIMA * longest / smallest)
        most, at_once = MOST_NUMBERS // each, max(1, NUMBERS_AT_ONCE // each)
        algebra = FloatAlgebra(self.xp)
        with trial:
            for number, first in enumerate(range(0, min(wanted, most), at_once)):
                draw = self._drawn.many(number, min(at_once, min(wanted, most) - first))
                got = evaluate(trial.candidate, draw.inputs, algebra, self._drawn.slice_elements, stack=1)
                numbers = compare_numbers(self.xp, trial.names, got, draw.outputs, draw.sizes, self._tolerance(trial))
                trial.note_numbers(partial(self._confirmed, trial, draw, got, numbers, stack=1))
                if trial.shown is not None:
                    return
            trial.undefined |= wanted > most

    def _tolerance(self, trial: Trial) -> float:
        return 2.0**-43 * max(64, longest_reduction(trial.candidate), self._longest)

    def _verdict(self, trial: Trial) -> Verdict:
        verdict, difference = Equality.EQUAL, trial.difference
        if trial.shown is not None:
            verdict, difference = Equality.NOT_EQUAL, trial.shown
        elif trial.doubt is not None:
            verdict = Equality.UNDECIDED
        bound: float | None = None
        if trial.part is not None:
            reason = "no bound is computed for a kernel on the values that the program has where it stands"
        elif any(bool(unseen.any()) for unseen in trial.unseen):
            reason = "no bound, for elements that are undefined in every draw: their denominators may be the zero polynomial"
        else:
            bound, reason = self._bound.of(trial.candidate, trial.done)
        if trial.unfaithful:
            names = ", ".join(sorted(trial.unfaithful))
            reason += f"; the field does not know every law of {names}"
        equal = verdict is Equality.EQUAL
        return Verdict(
            verdict=verdict,
            draws=trial.done,
            p=PRIMES[0],
            q=PRIMES[1],
            seed=self.seed,
            error_bound=bound if equal else None,
            bound_reason=reason if equal else f"no bound: the tests say `{verdict}`",
            coverage=trial.compared / trial.total,
            difference=difference,
            undecided_because=trial.doubt,
            float_error=trial.error,
        )

    def float_check(self, candidate: Graph) -> FloatCheck:
        """`float_check_all` for one candidate."""
        [check] = self.float_check_all([candidate])
        return check

    @with_own_threads
    def float_check_all(self, candidates: Sequence[Graph], on_progress: OnProgress | None = None) -> list[FloatCheck]:
        """Each candidate as kernels compute it, by `mirage_eg.verify.float_check`."""
        for candidate in candidates:
            self.check_types(candidate)
        return FloatChecker(self.program, self._drawn, self.xp).check_all(candidates, on_progress)

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
