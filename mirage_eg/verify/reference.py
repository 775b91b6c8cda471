"""The reference check: does a µGraph compute its program? Random tests in the finite field and in float64.

Part of the trusted core: a verdict is right if this file, the evaluator and the field are. Inputs correspond by position and
are independent and uniform; each trial has its own ω. Same program and seed, same verdict. Many candidates are checked trial by
trial: the inputs of a trial are generated once, and large inputs of two trials are never in memory together.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from math import ceil, prod
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.algebra import Array
from mirage_eg.backends.evaluator.cpu_threads import with_own_threads
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.exact_numbers import AMPLIFIED, amplification, cancels, exact_outputs, work_of
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.modular_arithmetic import PRIMES
from mirage_eg.backends.evaluator.random_rounding import rounding_spread
from mirage_eg.backends.evaluator.shifted_floats import ShiftedFloats
from mirage_eg.ir.errors import GraphError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.check_state import COARSE, COARSE_COMPARISONS, OF_ORDER, CheckState, Wait
from mirage_eg.verify.compare import LEAST_COVERAGE, compare_numbers, compare_residues, sizes_of, with_spread
from mirage_eg.verify.error_bound import ErrorBound, longest_reduction
from mirage_eg.verify.index_cover import counts_places, index_cover, moves_by_indices
from mirage_eg.verify.random_inputs import USUAL, FieldTrial, FloatTrial, RandomInputs
from mirage_eg.verify.subgraph_check import SubgraphCheck
from mirage_eg.verify.verdict import Equality, Verdict
from mirage_eg.verify.zeros import MOST_ROOTS, SOME, domain_of, has_case_at_zero, has_ties, holds_zeros, roots_of_denominators

MAX_ELEMENTS = 1 << 30  # of inputs and outputs together; their residues take four bytes each
MAXIMA = 8  # comparisons in float64 for each operand of a maximum, where the field cannot tell that all operands were read
MAX_NUMBERS = 1 << 28  # random numbers for these comparisons, at most
NUMBERS_AT_ONCE = 1 << 20
EXACT_WORK = 1 << 18  # operations on exact numbers, at most
ROUNDOFF = 2.0**-46  # relative error of an op in float64

OnProgress = Callable[[int, int], None]  # checks done, of how many


def verify(program: Graph, candidate: Graph, *, trials: int = 2, seed: int = 0) -> Verdict:
    """Whether `candidate` computes `program`.

    Raises:
        GraphError: the two take or give tensors of different types.
        UnsupportedError: the program itself divides by zero almost everywhere, or is too large.
    """
    return Reference(program, trials, seed).check(candidate)


class Reference:
    """A program with its random inputs, against which many candidates can be checked; its values are computed once."""

    def __init__(self, program: Graph, trials: int = 2, seed: int = 0, xp: Any = np) -> None:
        if trials < 1:
            raise GraphError(f"got {trials} trials, wanted at least one")
        elements = sum(prod(kind.shape) for kind in (*program.input_types, *program.output_types))
        if elements > MAX_ELEMENTS:
            raise UnsupportedError(f"got a program of {elements:,} input and output elements, wanted at most {MAX_ELEMENTS:,}")
        self.program, self.seed, self.xp, self.trials = program, seed, xp, trials
        self._bound = ErrorBound(program)
        self._longest = longest_reduction(program)
        self.inputs = RandomInputs(program, seed, xp)
        self._stacked = self.inputs.stacked(trials)
        self._spreads: dict[tuple[Graph, str], list[Array]] = {}

    def check(self, candidate: Graph) -> Verdict:
        """Equal if neither the field nor float64 finds a difference."""
        [(verdict, _)] = self.check_all([candidate])
        return verdict

    @with_own_threads
    def check_all(
        self, candidates: Sequence[Graph], on_progress: OnProgress | None = None, subgraphs: SubgraphCheck | None = None
    ) -> list[tuple[Verdict, float]]:
        """The verdict on each candidate, then on each subgraph of `subgraphs`, and the seconds that each took.

        `subgraphs` belongs to a program with the same inputs.
        """
        for candidate in candidates:
            check_types(self.program, candidate)
        program, names = self.inputs.primitive, self.program.output_names
        states = [CheckState(program, self.inputs.with_wraps(candidate), names, self.trials) for candidate in candidates]
        if subgraphs:
            states += [
                CheckState(subgraphs.standalone(part), subgraphs.kernels(part), part.names, self.trials, part)
                for part in subgraphs.subgraphs
            ]
        share = len(states) > 1
        runs, ahead = 0, len(states) * self.trials
        for number in count(0, self._stacked):
            running = [state for state in states if state.runs(number)]
            if not running:
                break
            stacked = min(self._stacked, max(state.trials for state in running) - number)
            self._run_all(running, self.inputs.field(number, stacked, share), subgraphs)
            runs += stacked * len(running)
            if on_progress:
                on_progress(min(runs, ahead), ahead)
        if extremes := [state for state in states if state.unfaithful & OF_ORDER and not state.suspected]:
            self._run_all(extremes, self.inputs.field(self.trials, share=share, joins=True), subgraphs)
        indexed = [state for state in states if moves_by_indices(state.program) or moves_by_indices(state.candidate)]
        if certain := [state for state in indexed if not state.suspected]:
            self._run_all(certain, self.inputs.field(self.trials, share=share, everywhere=True), subgraphs)
        self._compare_in_float64(states, subgraphs)
        for state in states:
            maxima = not state.maxima_agree or (state.suspected and state.unfaithful & OF_ORDER)
            places = not state.places_agree or (state.suspected and (state in indexed or counts_places(state.program)))
            if state.float_difference is not None:
                continue
            if state.subgraph and (maxima or places or (not state.suspected and 0 < state.comparisons < COARSE_COMPARISONS)):
                self._check_standalone(state)
                continue
            if maxima:
                self._compare_maxima(state)
            if places and state.float_difference is None:
                self._compare_places(state)
        return [(self._verdict(state), state.seconds) for state in states]

    def _run_all(self, states: Sequence[CheckState], trial: FieldTrial, subgraphs: SubgraphCheck | None) -> None:
        """Candidates and subgraphs on one field trial, or on several stacked ones."""
        inside = (
            dict(zip(subgraphs.subgraphs, subgraphs.field(trial), strict=True))
            if subgraphs and any(state.subgraph for state in states)
            else {}
        )
        _one_behind(states, lambda state: self._run(state, inside[state.subgraph] if state.subgraph else trial))

    def _check_standalone(self, state: CheckState) -> None:
        """A subgraph on random inputs of its own: further trials then need not compute the whole program."""
        assert state.subgraph is not None
        with state:
            verdict = Reference(state.program, self.trials, self.seed, self.xp).check(state.subgraph.graph)
            state.done += verdict.trials
            if verdict.verdict is Equality.NOT_EQUAL:
                state.field_difference = state.float_difference = verdict.difference
            elif not verdict.equal:
                state.undefined = True

    def _run(self, state: CheckState, trial: FieldTrial) -> Callable[[], None]:
        """One candidate on one field trial, or on several stacked ones; the returned function records the result."""
        algebra, memo = trial.algebra, trial.memo
        values = evaluate(state.candidate, trial.inputs, algebra, self.inputs.slice_elements, stack=algebra.stack, memo=memo)
        state.unfaithful = trial.unfaithful.union(*(value.unfaithful for value in values))
        waits = [
            compare_residues(self.xp, name, got, want, algebra.stack)
            for name, got, want in zip(state.names, algebra.read(values), trial.outputs, strict=True)
        ]
        trials = algebra.random.trials
        smallest = min(output.residues.size for output in trial.outputs) // len(trials)

        def record() -> None:
            with state:
                results = [wait() for wait in waits]
                agrees = not any(result.difference or result.lost.any() for result in results)
                if algebra.random.joins:  # no verdict follows from a difference: max(x, x) is x, a product is not
                    state.maxima_agree = agrees
                    return
                if algebra.random.everywhere:  # nor here: exp(gather(x)) is gather(exp(x))
                    state.places_agree = agrees
                    return
                state.record(results, trials)
                if state.unfaithful & COARSE:
                    state.count_comparisons(smallest, len(trials))

        return record

    def _compare_in_float64(self, states: Sequence[CheckState], subgraphs: SubgraphCheck | None) -> None:
        """All on inputs of usual size; on further inputs where the field does not decide, until a difference is found.

        Ops that the field does not model may be undefined, or differ, on other inputs only.
        """
        self._compare_on(USUAL[0], states, subgraphs)
        for state in states:
            if state.subgraph is None and state.float_difference is None and state.error is not None:
                self._compare_exactly(state)
        for name in USUAL[1:]:
            self._compare_on(name, [state for state in states if state.error is None], subgraphs)
        self._compare_on("positive", [state for state in states if state.suspected], subgraphs)
        self._compare_on("large", [state for state in states if state.suspected or state.unfaithful], subgraphs)
        self._compare_on("tails", [state for state in states if state.suspected], subgraphs)
        if cases := [state for state in states if has_case_at_zero(state.program) or has_case_at_zero(state.candidate)]:
            defined = self._compare_on("zeros", cases, subgraphs)
            if defined < LEAST_COVERAGE:
                self._compare_on("few zeros", cases, subgraphs)
            self._compare_on("all zeros", cases, subgraphs)
            tied = [state for state in cases if has_ties(state.program) or has_ties(state.candidate)]
            self._compare_on("ties", tied, subgraphs)
            for state in cases:
                roots = roots_of_denominators(state.candidate) if state.subgraph is None else ()
                for root in sorted(roots, key=abs)[:MOST_ROOTS]:
                    self._compare_on(f"{SOME}{root}", [state], subgraphs)

    def _compare_on(self, name: str, states: Sequence[CheckState], subgraphs: SubgraphCheck | None) -> float:
        """Record the largest error in float64 on these inputs, and the first difference beyond rounding.

        The share of the elements at which the program is defined, in the output with the least.
        """
        states = [state for state in states if state.float_difference is None]
        if not states:
            return 1.0
        whole, algebra = self.inputs.wide_numbers(name, len(states) > 1), FloatAlgebra(self.xp)
        shares = [float(self.xp.isfinite(x).mean()) for x in whole.outputs] if holds_zeros(name) else [1.0]
        if not any(shares) and not subgraphs:
            return 0.0
        inside: dict[Any, FloatTrial] = {}
        if subgraphs and any(state.subgraph for state in states):
            inside = dict(zip(subgraphs.subgraphs, subgraphs.numbers(whole, algebra), strict=True))

        def run(state: CheckState) -> Callable[[], None]:
            trial = inside[state.subgraph] if state.subgraph else whole
            got = evaluate(state.candidate, trial.inputs, algebra, self.inputs.slice_elements, memo=trial.memo)
            numbers = compare_numbers(self.xp, state.names, got, trial.outputs, trial.sizes, self._tolerance(state))
            return partial(state.record_floats, partial(self._confirmed, state, trial, got, numbers))

        _one_behind(states, run)
        if whole.memo is not None and name != USUAL[0]:  # other inputs are used once
            whole.memo.clear()
        return min(shares)

    def _confirmed(
        self, state: CheckState, trial: FloatTrial, got: Sequence[Array], numbers: Wait, stack: int = 0
    ) -> tuple[float, Any, bool]:
        """The comparison; a difference is confirmed with shifted exponentials, and beyond the effect of rounding."""
        result = numbers()
        if result[1] is None:
            return result
        algebra, xp, slices = ShiftedFloats(FloatAlgebra(self.xp)), self.xp, self.inputs.slice_elements
        own, overflows = rounding_spread(state.candidate, trial.inputs, got, ROUNDOFF, algebra.plain, slices, stack)
        shifted = [algebra.number(x) for x in evaluate(state.candidate, trial.inputs, algebra, slices, stack=stack)]
        got = [xp.where(xp.isfinite(x), x, y) for x, y in zip(got, shifted, strict=True)]
        spreads = self._spreads.get(key := (state.program, trial.name))
        if spreads is None:
            spreads, _ = rounding_spread(state.program, trial.inputs, trial.outputs, ROUNDOFF, algebra.plain, slices, stack)
            if not stack:  # shared by all candidates
                self._spreads[key] = spreads
        left_out = [xp.isnan(spread) for spread in spreads]  # where the program is undefined, or nearly
        if (
            overflows and not stack and trial.name not in USUAL and not holds_zeros(trial.name)
        ):  # float64 does not hold every value of far inputs
            left_out = [out | xp.isnan(spread) for out, spread in zip(left_out, own, strict=True)]
        got = [xp.where(out, want, x) for out, want, x in zip(left_out, trial.outputs, got, strict=True)]
        moved = [xp.nan_to_num(one) + xp.nan_to_num(other) for one, other in zip(spreads, own, strict=True)]
        tolerance = self._tolerance(state)
        sizes = with_spread(xp, trial.sizes, moved, tolerance)
        return compare_numbers(xp, state.names, got, trial.outputs, sizes, tolerance, domain_of(trial.name))()

    def _compare_exactly(self, state: CheckState) -> None:
        """Where terms cancel, float64 does not tell: exact numbers do, or the verdict is undecided if they take too long."""
        graphs, xp = (self.inputs.primitive, state.candidate), self.xp
        if max(map(amplification, graphs)) < AMPLIFIED:
            return
        trial = self.inputs.wide_numbers(USUAL[0])
        with state:
            if not any(cancels(graph, trial.inputs, xp, self.inputs.slice_elements) for graph in graphs):
                return
            if max(map(work_of, graphs)) > EXACT_WORK or xp is not np:
                state.untried = "terms cancel there, and exact numbers take too long"
                return
            try:
                want, got = (exact_outputs(graph, trial.inputs) for graph in graphs)
            except UnsupportedError as error:
                state.untried = f"terms cancel there, and {error}"
                return
            outputs, found = ([x.astype(np.float64) for x in side] for side in (want, got))
            sizes = sizes_of(np, outputs)
            numbers = compare_numbers(np, state.names, found, outputs, sizes, self._tolerance(state), "exact numbers")
        state.record_floats(numbers)

    def _compare_maxima(self, state: CheckState) -> None:
        """Compare in float64 as often as the longest maximum needs; suspected if that takes too many random numbers."""
        program = self.inputs.primitive
        extremes = [program.types[values[0]] for item, values in program.numbered() if item.op in OF_ORDER]
        smallest = min(prod(kind.shape) for kind in (*extremes, *self.program.output_types))
        longest = max(len(extremes), *(longest_reduction(graph, "max") for graph in (program, state.candidate)))
        self._compare_often(state, ceil(MAXIMA * longest / smallest))

    def _compare_places(self, state: CheckState) -> None:
        """Compare in float64 with indices at every place; undecided if that takes too many trials."""
        cover = index_cover(self.inputs.primitive, state.candidate)
        for trials in cover.batches():
            self._compare_stacked(state, self.inputs.at_places(cover, trials))
            if state.float_difference is not None:
                return
        if cover.made < cover.trials:
            state.untried = f"{cover.made:,} of {cover.trials:,} trials were made, in which indices are at every place"
        self._compare_often(state, cover.computed)

    def _compare_often(self, state: CheckState, wanted: int) -> None:
        """Compare in float64 on so many random inputs; undecided if that takes too many random numbers."""
        elements = sum(prod(kind.shape) for kind in (*self.program.input_types, *self.program.output_types))
        most, at_once = MAX_NUMBERS // elements, max(1, NUMBERS_AT_ONCE // elements)
        for number, first in enumerate(range(0, min(wanted, most), at_once)):
            self._compare_stacked(state, self.inputs.many(number, min(at_once, min(wanted, most) - first)))
            if state.float_difference is not None:
                return
        if wanted > most:
            state.untried = f"{most:,} of {wanted:,} random inputs were tried"

    def _compare_stacked(self, state: CheckState, trial: FloatTrial) -> None:
        """Compare in float64 on stacked trials; a difference is confirmed on its own trial first."""
        with state:
            got = evaluate(state.candidate, trial.inputs, FloatAlgebra(self.xp), self.inputs.slice_elements, stack=1)
            sides = [self.xp.broadcast_arrays(*arrays) for arrays in zip(got, trial.outputs, trial.sizes, strict=True)]
            got, outputs, sizes = map(list, zip(*sides, strict=True))
            trial = replace(trial, outputs=outputs, sizes=sizes)
            numbers = compare_numbers(self.xp, state.names, got, outputs, sizes, self._tolerance(state))
        _, found, _ = numbers()
        if found is not None and len(outputs[0]) > 1:
            self._compare_stacked(state, trial.only(found.index[0]))
        if state.float_difference is None:
            state.record_floats(partial(self._confirmed, state, trial, got, numbers, stack=1))
            if (found := state.float_difference) is not None:
                domain = f"float64, {trial.shown(found.index[0])}"
                state.float_difference = replace(found, index=found.index[1:], domain=domain)

    def _tolerance(self, state: CheckState) -> float:
        return 2.0**-43 * max(64, longest_reduction(state.candidate), self._longest)

    def _verdict(self, state: CheckState) -> Verdict:
        verdict, difference = Equality.EQUAL, state.field_difference
        if state.float_difference is not None:
            verdict, difference = Equality.NOT_EQUAL, state.float_difference
        elif state.doubt is not None:
            verdict = Equality.UNDECIDED
        bound: float | None = None
        if state.subgraph is not None:
            reason = "no bound is computed for a kernel that is checked on the program's own values"
        elif any(bool(never.any()) for never in state.never_defined):
            reason = "no bound, for elements that are undefined in every trial: their denominators may be the zero polynomial"
        else:
            bound, reason = self._bound.of(state.candidate, state.done)
        if state.unfaithful:
            names = ", ".join(sorted(state.unfaithful))
            reason += f"; the field does not know every law of {names}"
        equal = verdict is Equality.EQUAL
        return Verdict(
            verdict=verdict,
            trials=state.done,
            p=PRIMES[0],
            q=PRIMES[1],
            seed=self.seed,
            error_bound=bound if equal else None,
            bound_reason=reason if equal else f"no bound: the tests say `{verdict}`",
            coverage=state.compared / state.total,
            difference=difference,
            undecided_because=state.doubt,
            float_error=state.error,
        )


def _one_behind(states: Iterable[CheckState], run: Callable[[CheckState], Callable[[], None]]) -> None:
    """Run all; what records the result of one is called after the next began: a GPU computes that in the meantime."""
    waiting: list[Callable[[], None]] = []
    for state in states:
        with state:
            waiting.append(run(state))
        if len(waiting) > 1:
            waiting.pop(0)()
    for wait in waiting:
        wait()


def check_types(program: Graph, candidate: Graph) -> None:
    """Raise a GraphError unless the candidate has the input and output types of the program."""
    if candidate.input_types != program.input_types:
        raise GraphError(
            f"got a candidate that takes {', '.join(map(str, candidate.input_types))}; "
            f"wanted the program's inputs in order: {', '.join(map(str, program.input_types))}"
        )
    if candidate.output_types != program.output_types:
        raise GraphError(
            f"got a candidate that gives {', '.join(map(str, candidate.output_types))}; "
            f"wanted the program's outputs in order: {', '.join(map(str, program.output_types))}"
        )
