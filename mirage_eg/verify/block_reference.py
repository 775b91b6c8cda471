"""The reference check in proportion to a block: at the values that program and µGraph share, and at few indices of each axis.

A µGraph is cut where its kernels read and write values of the program (`cuts`); each pair of a part and its kernels is checked
at few indices of the axes that no op tells apart (`restriction`). A pair that has no restriction is checked at its own size. If
a pair is not equal, the cut may be wrong, or the part is undefined on inputs that the program never gives it: then the µGraph
is checked as a whole. Pairs that several µGraphs have are checked once.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from mirage_eg.backends.evaluator.array_module import FEW, array_module, element_count, evaluation_size, evaluator_device
from mirage_eg.backends.evaluator.modular_arithmetic import PRIMES
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.composition import compose_float_checks, compose_verdicts
from mirage_eg.verify.cuts import Pair, pairs_of
from mirage_eg.verify.float_check import float_checks
from mirage_eg.verify.reference import MAX_ELEMENTS, OnProgress, Reference, check_types
from mirage_eg.verify.restriction import Restricted, restricted
from mirage_eg.verify.subgraph_check import Subgraph, SubgraphCheck
from mirage_eg.verify.verdict import Equality, FloatCheck, Verdict

SHOWN = 1 << 22  # elements of a program whose own ops get a float check, to show their error
_KEPT = 1 << 24  # elements of a program whose random inputs stay in memory

Timed = tuple[Verdict, float]  # a verdict, and the seconds that it took


class BlockReference:
    """A program against which many candidates are checked."""

    def __init__(self, program: Graph, trials: int = 2, seed: int = 0) -> None:
        self.program, self._trials, self._seed = program, trials, seed
        self._parts: dict[Graph, _Part] = {}
        self._pairs: dict[Graph, tuple[Pair, ...]] = {}
        self._verdicts: dict[Pair, Timed] = {}
        self._floats: dict[Pair, FloatCheck] = {}

    def check(self, candidate: Graph) -> Verdict:
        [(verdict, _)] = self.check_all([candidate])
        return verdict

    def check_all(self, candidates: Sequence[Graph], on_progress: OnProgress = lambda done, total: None) -> list[Timed]:
        """The verdict on each candidate, and the seconds that it took.

        Raises:
            GraphError: a candidate takes or gives other types than the program.
            UnsupportedError: the program divides by zero almost everywhere.
        """
        results = []
        for candidate in candidates:
            check_types(self.program, candidate)
        for number, candidate in enumerate(candidates):
            results.append(self._checked(candidate))
            on_progress(number + 1, len(candidates))
        return results

    def size_of_check(self, candidate: Graph) -> int:
        """The elements of program and µGraph at the indices that decide, of all parts; terms of products count in part."""
        size = 0
        for pair in self._cut(candidate):
            if not pair.by_definition:
                small = self._part(pair.program).restricted(pair.kernels, sums=False)
                graphs = (pair.program, pair.kernels) if small is None else (small.program, small.graph)
                size += sum(map(evaluation_size, graphs))
        return size

    def check_parts(self, primitive: Graph, subgraphs: Sequence[Subgraph]) -> list[Verdict]:
        """The verdict on µGraphs of parts of the program in primitive ops; those that random inputs of their own do not
        call equal are checked on the program's values, if these are few."""
        if not subgraphs:
            return []
        inside = SubgraphCheck(primitive, subgraphs)
        verdicts = {part: self._verdict(Pair(inside.standalone(part), part.graph))[0] for part in subgraphs}
        left = [part for part, verdict in verdicts.items() if not verdict.equal]
        if left and element_count(self.program) <= FEW:
            reference = Reference(self.program, self._trials, self._seed, array_module(self.program))
            again = reference.check_all([], subgraphs=SubgraphCheck(primitive, left))
            verdicts |= {part: verdict for part, (verdict, _) in zip(left, again, strict=True)}
        return [verdicts[part] for part in subgraphs]

    def float_checks(self, candidates: Sequence[Graph], on_progress: OnProgress = lambda done, total: None) -> list[FloatCheck]:
        results = []
        for number, candidate in enumerate(candidates):
            results.append(self._composed_floats(candidate))
            on_progress(number + 1, len(candidates))
        return results

    def _composed_floats(self, candidate: Graph) -> FloatCheck:
        """By parts; as a whole where a part is refused, unless so many elements would take longer than all else."""
        whole = Pair(self.program, candidate)
        pairs = [pair for pair in self._cut(candidate) if not pair.by_definition or self._count(pair) <= SHOWN]
        if not pairs and self._count(whole) > SHOWN:
            return FloatCheck(True, 0.0, 0.0, None, compared=False, uncompared="the kernels are the ops of the program")
        composed = compose_float_checks([self._float_check(pair) for pair in pairs or (whole,)])
        return composed if composed.ok or self._count(whole) > FEW else self._float_check(whole)

    def _count(self, pair: Pair) -> int:
        """The elements of a part of the program at the indices that decide about its kernels in floats."""
        small = self._part(pair.program).restricted(pair.kernels, sums=False)
        return element_count(pair.program if small is None else small.program)

    @property
    def computed_on(self) -> str:
        """The devices that evaluated anything."""
        modules = {reference.xp for part in self._parts.values() for reference in part.references.values()}
        return ", ".join(sorted(map(evaluator_device, modules)))

    def forget(self) -> None:
        """Drop all random inputs; memory of a GPU goes back to its device, for the kernels of the program."""
        for part in self._parts.values():
            part.forget()

    def _cut(self, candidate: Graph) -> tuple[Pair, ...]:
        if candidate not in self._pairs:
            self._pairs[candidate] = pairs_of(self.program, candidate, self._seed)
        return self._pairs[candidate]

    def _checked(self, candidate: Graph) -> Timed:
        whole = Pair(self.program, candidate)
        timed, in_field = list[Timed](), list[Timed]()
        for pair in self._cut(candidate):
            if pair.by_definition:
                continue
            timed.append(self._verdict(pair))
            verdict, _ = timed[-1]
            if verdict.verdict is Equality.UNDECIDED and verdict.difference is not None and self._count(whole) > FEW:
                in_field.append(timed[-1])  # all values of the program would take longer than all else, and decide no more
            elif not verdict.equal:
                return self._verdict(whole)
        if in_field:
            return in_field[0]
        if len(timed) == 1 and timed == [self._verdicts.get(whole)]:
            return timed[0]
        return _composed([verdict for verdict, _ in timed], self._trials, self._seed), sum(seconds for _, seconds in timed)

    def _verdict(self, pair: Pair) -> Timed:
        if pair not in self._verdicts:
            part, kernels = self._part(pair.program), pair.kernels
            small = part.restricted(kernels, sums=True)
            if small is None and (why := self._too_large(pair.program)):
                bounds = Verdict(Equality.UNDECIDED, 0, *PRIMES[:2], self._seed, None, "no test was run", 0.0)
                self._verdicts[pair] = replace(bounds, undecided_because=why, evidence=()), 0.0
                return self._verdicts[pair]
            [(verdict, seconds)] = part.reference(small).check_all([kernels if small is None else small.graph])
            if small is not None and verdict.difference is not None:
                verdict = replace(verdict, difference=small.moved(verdict.difference, pair.program.output_names))
            part.forget_large()
            self._verdicts[pair] = verdict, seconds
        return self._verdicts[pair]

    def _float_check(self, pair: Pair) -> FloatCheck:
        if pair not in self._floats:
            part, kernels = self._part(pair.program), pair.kernels
            small = part.restricted(kernels, sums=False)
            if small is None and (why := self._too_large(pair.program)):
                self._floats[pair] = FloatCheck(False, 0.0, 0.0, None, compared=False, uncompared=why)
                return self._floats[pair]
            [check] = float_checks(part.reference(small), [kernels if small is None else small.graph])
            part.forget_large()
            self._floats[pair] = check
        return self._floats[pair]

    def _too_large(self, program: Graph) -> str | None:
        """Why no random inputs are drawn for a pair at its own size; then a proof may decide."""
        elements = sum(prod(kind.shape) for kind in (*program.input_types, *program.output_types))
        return f"a part of {elements:,} elements is tested up to {MAX_ELEMENTS:,}" if elements > MAX_ELEMENTS else None

    def _part(self, program: Graph) -> "_Part":
        if program not in self._parts:
            self._parts[program] = _Part(program, self._trials, self._seed)
        return self._parts[program]


class _Part:
    """A part of the program with its random inputs, at few indices and at its own size; they are drawn when they are needed."""

    def __init__(self, program: Graph, trials: int, seed: int) -> None:
        self._program, self._trials, self._seed = program, trials, seed
        self._primitive = expand(program)
        self._restricted: dict[tuple[Graph, bool], Restricted | None] = {}
        self.references: dict[Graph, Reference] = {}

    def restricted(self, kernels: Graph, sums: bool) -> Restricted | None:
        """The part and its kernels at few indices, or None; with `sums` also of linear sums."""
        if (kernels, sums) not in self._restricted:
            self._restricted[kernels, sums] = restricted(self._primitive, kernels, sums)
        return self._restricted[kernels, sums]

    def reference(self, small: Restricted | None) -> Reference:
        """The reference at few indices, or at the program's own size."""
        program = self._program if small is None else small.program
        if program not in self.references:
            self.references[program] = Reference(program, self._trials, self._seed, array_module(program))
        return self.references[program]

    def forget(self) -> None:
        """Drop all random inputs."""
        for reference in self.references.values():
            reference.inputs.forget()

    def forget_large(self) -> None:
        """Drop random inputs that take much memory."""
        for reference in self.references.values():
            if sum(prod(kind.shape) for kind in reference.program.input_types) > _KEPT:
                reference.inputs.forget()


def _composed(verdicts: Sequence[Verdict], trials: int, seed: int) -> Verdict:
    """The verdict on kernels each of which is equal; none is left where all are the ops of the program."""
    if not verdicts:
        return Verdict(Equality.EQUAL, trials, *PRIMES[:2], seed, 0.0, "the kernels are the ops of the program", 1.0)
    reason = f"the largest bound of {len(verdicts)} different kernels, each checked on inputs of its own"
    return replace(compose_verdicts(verdicts), evidence=("tested",), bound_reason=reason)
