"""Verification for a range of sizes: one proof for all of them, and tests at the sizes at which tiles begin and end.

Terms of the indexed domain name the parts of axes and have no sizes, so a proof at sizes that all tiles divide is one for every
number of tiles. At other sizes the last tile holds the rest: rows of a parallel axis do not depend on each other, and sums and
maxima of tiles are those of the whole (`ir.ragged` refuses ops whose meaning depends on the extent of a part). The tests cover
emptier tiles: sizes around a tile, a prime, the smallest and the largest.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import lcm, prod
from random import Random

from mirage_eg.egraph.expression import primes
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.ir.at_sizes import at_sizes, named_dims
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.errors import TiedToSizeError, UnsupportedError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.flatten import flatten
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.moves import CUTS_AND_JOINS, REPEATS
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.sizes import SizeExpression, SizeRange
from mirage_eg.verify.box_proof import SizesProved, proved_sizes
from mirage_eg.verify.float_check import float_check
from mirage_eg.verify.proof import Proof, Prover
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality, Observer, Verdict

Ranges = Mapping[str, SizeRange]
Sizes = tuple[tuple[str, int], ...]
FEW = 1 << 31  # operations of the products of a program that is tested at sizes of choice
MANY = 1 << 36  # and at those sizes that are always tested: the smallest, and one more than a tile
RANDOM_SIZES = 3  # random sizes for a µGraph of ours, where nothing shows it for all sizes
MOST_SIZES = 64  # that are all tested where there is no proof
LAWS = ("m · m = m", "Σ m · x over whole tiles = Σ x", "max of x and −∞ = x")  # on masks m, of the last tile


@dataclass(frozen=True, slots=True)
class SizesVerdict:
    """The verdict on a µGraph for all sizes in `ranges`.

    `tested` has the sizes at which it was tested, `left_out` those at which a test takes too long. `proof` was made at sizes
    that all tiles divide, if there are such sizes. `reduced`: the dims that the program sums over, or takes a maximum of.
    `structure`: what the graphs themselves show for all sizes, where there is no proof (`_structure`). `differs`: whether the
    test at the size in `difference` says `not equal`.
    """

    ranges: tuple[tuple[str, SizeRange], ...]
    tested: tuple[Sizes, ...]
    left_out: tuple[Sizes, ...]
    proof: Proof
    reduced: tuple[str, ...]
    difference: str | None = None  # the first size with a verdict that is not `equal`, and why
    differs: bool = False
    structure: str = ""
    drawn: int = 0  # how many of the sizes in `tested` were drawn at random
    last: Verdict | None = None  # of the last test
    by_boxes: tuple[SizesProved, ...] = ()  # the sizes that boxes of positions prove

    @property
    def verdict(self) -> Equality:
        """`equal` if every test says so, and a proof, the structure or tests at every size leave no size open."""
        if self.differs:
            return Equality.NOT_EQUAL
        whole = self.proof.proved or self.structure or self.exhausted or self.decided_by_boxes
        return Equality.EQUAL if self.difference is None and self.tested and whole else Equality.UNDECIDED

    @property
    def decided_by_boxes(self) -> bool:
        """Whether boxes of positions prove it for all sizes of all dims."""
        return any(len(it.sizes) == len(self.ranges) for it in self.by_boxes)

    @property
    def exhausted(self) -> bool:
        """Whether it was tested at every size."""
        return len(self.tested) == prod(len(_sizes_in(values)) for _, values in self.ranges)

    @property
    def equal(self) -> bool:
        return self.verdict is Equality.EQUAL

    @property
    def likely(self) -> bool:
        """Whether it is `equal`, or every test says so, also at sizes drawn at random.

        A difference that is a polynomial of degree d in a size is zero at d sizes: k random ones of N sizes miss it
        with probability (d / N)^k at most.
        """
        return self.equal or (self.difference is None and self.drawn > 0)

    @property
    def of_last_test(self) -> Verdict:
        """The verdict of the last test, with what is shown for all sizes."""
        assert self.last is not None, "it was tested at one size at least"
        proved = ("proved",) if self.proof.proved or self.decided_by_boxes else ()
        return replace(self.last, verdict=self.verdict, evidence=(*proved, "tested"), laws=self.proof.laws)

    @property
    def text(self) -> str:
        """What is vouched for, in one line."""
        span = ", ".join(f"{name} = {values.least} … {values.largest}" for name, values in self.ranges)
        if self.difference is not None or not self.tested:
            return f"{span}: not vouched for: {self.difference or 'nothing was tested'}"
        at = "every size" if self.exhausted else ", ".join(shown(sizes) for sizes in self.tested)
        if not self.equal and self.by_boxes:
            known = "; ".join(map(str, self.by_boxes))
            return f"{span}: proved for {known}, not for all of them together ({self.proof.reason}; equal at {at})"
        if not self.equal:
            return f"{span}: undecided but for the sizes that were tested (not proved: {self.proof.reason}; equal at {at})"
        masks = (
            f"masks of {', '.join(self.reduced)} by {', '.join(LAWS)}"
            if self.reduced
            else "masks cut rows off that no other reads"
        )
        boxes = f"proved for {'; '.join(map(str, self.by_boxes))}, by boxes of positions" if self.by_boxes else ""
        unproved = boxes or self.structure or f"not proved: {self.proof.reason}"
        proved = f"proved for every number of tiles; {masks}" if self.proof.proved else unproved
        return f"{span}: equal ({proved}; tested at {at})"


def shown(sizes: Sequence[tuple[str, int]]) -> str:
    """Sizes in a message: n=17."""
    return " ".join(f"{name}={size}" for name, size in sizes)


def verify_sizes(
    program: Graph,
    graph: Graph,
    ranges: Ranges,
    *,
    trials: int = 2,
    seed: int = 0,
    rulebook: Rulebook | None = None,
    observe: Observer | None = None,
    random_sizes: int = 0,
) -> SizesVerdict:
    """The verdict on `graph`, a µGraph with the program's named dims, for all sizes in `ranges`.

    Where nothing shows it for all sizes, it is tested at `random_sizes` random ones, too.

    Raises:
        GraphError: inputs or outputs of other types than the program's.
        UnsupportedError: the µGraph holds fewer sizes.
    """
    _check_range(graph, ranges)
    chosen = list(dict.fromkeys(tuple(sizes.items()) for sizes in _sizes_to_test(graph, ranges)))
    tests = _Tests(program, graph, trials, seed, observe)
    for number, sizes in enumerate(chosen):
        tests.run([sizes], MANY if number < 2 else FEW)
    proof, structure, drawn = Proof(False, reason="the tests differ"), "", 0
    if tests.difference is None:
        proof = _proof(program, graph, ranges, rulebook)
        structure = "" if proof.proved else _structure(program, graph, ranges)
    boxes = proved_sizes(program, graph, ranges) if tests.difference is None and not proof.proved else ()
    whole = any(not it.others for it in boxes)
    if not proof.proved and not structure and not whole:
        every = _every(ranges)
        if all(_operations(at_sizes(program, dict(sizes))) <= FEW // len(every) for sizes in every):
            tests.run(every, FEW)
        before = len(tests.tested)
        tests.run(_drawn(program, graph, ranges, random_sizes, seed), FEW)
        drawn = len(tests.tested) - before
    difference = tests.difference
    proved = proof.proved and proof.doubt is None
    if not proved and not whole:  # else it decides what the fields do not
        difference = difference or tests.undecided
    sizes_of_tests = tuple(tests.tested), tuple(tests.left_out)
    reduced = _reduced(program, ranges)
    spans = tuple(ranges.items())
    return SizesVerdict(
        *(spans, *sizes_of_tests, proof, reduced, difference, tests.differs, structure, drawn, tests.last), boxes
    )


@dataclass(slots=True)
class _Tests:
    """The tests of one µGraph, size by size, until one of them differs."""

    program: Graph
    graph: Graph
    trials: int
    seed: int
    observe: Observer | None
    tested: list[Sizes] = field(default_factory=list)
    left_out: list[Sizes] = field(default_factory=list)
    difference: str | None = None
    differs: bool = False
    last: Verdict | None = None
    undecided: str | None = None  # the first size at which the tests decide nothing, and rounding is as it may be

    def run(self, chosen: Iterable[Sizes], most: int) -> None:
        """Test at these sizes, if that takes at most so many operations."""
        for sizes in chosen:
            if self.difference is not None or sizes in self.tested:
                continue
            reference = at_sizes(self.program, dict(sizes))
            if _operations(reference) > most:
                self.left_out.append(sizes)
                continue
            candidate = at_sizes(self.graph, dict(sizes))
            verdict = self.last = verify(reference, candidate, trials=self.trials, seed=self.seed)
            self.tested.append(sizes)
            if self.observe:
                self.observe("sizes", len(self.tested), None, shown(sizes))
            if verdict.verdict is Equality.UNDECIDED and float_check(reference, candidate, self.seed).ok:  # of masks, too
                self.undecided = self.undecided or f"{shown(sizes)}: {_reason(verdict)}"
            elif verdict.verdict is not Equality.EQUAL:
                self.difference = f"{shown(sizes)}: {_reason(verdict)}"
                self.differs = verdict.verdict is Equality.NOT_EQUAL


def _drawn(program: Graph, graph: Graph, ranges: Ranges, random_sizes: int, seed: int) -> Iterator[Sizes]:
    """Random sizes at which a test does not take too long: another µGraph is tested at others."""
    largest = {name: values.largest for name, values in ranges.items()}
    while _operations(at_sizes(program, largest)) > FEW:
        smaller = {name: max(values.least, largest[name] // 2) for name, values in ranges.items()}
        if smaller == largest:
            return
        largest = smaller
    random = Random(repr((seed, program, graph)))
    within = {name: replace(values, largest=max(values.least, largest[name])) for name, values in ranges.items()}
    for _ in range(random_sizes):
        yield tuple((name, random.choice(_sizes_in(values) or [values.least])) for name, values in within.items())


def _structure(program: Graph, graph: Graph, ranges: Ranges) -> str:
    """Why the tests hold for all sizes without a proof: the ops are the same, or elements of the dims never meet.

    Where no op of either graph reduces, cuts or orders a named dim, each of its elements is computed by itself.
    """
    if expand(program).nodes == expand(graph).nodes:
        return "it has the program's ops"
    for sizes in _whole_sizes(graph, ranges):
        try:
            if all(_is_apart(program, at_sizes(one, sizes)) for one in (program, graph)):
                return f"no op combines elements of {', '.join(ranges)}"
        except (TiedToSizeError, UnsupportedError):
            continue
    return ""


def _is_apart(program: Graph, graph: Graph) -> bool:
    """Whether no op of a graph with the inputs of the program combines elements of the dims that the program names.

    Raises UnsupportedError: axes that cannot be inferred.
    """
    flat = flatten(graph)
    axes = infer_axes(flat, slices=True)
    named = {axis for place, at, _ in named_dims(program) for axis in axes.dims[flat.input_values[place]][at]}
    cut = {
        axis
        for item in flat.nodes
        if item.op in CUTS_AND_JOINS
        for operand in item.operands
        for axis in axes.dims[operand][item["dim"]]
    }
    for item, values in flat.numbered():
        if item.op in REPEATS:  # as many equal elements as a size may be counted
            named.update(set(axes.of(values[0])).difference(*(axes.of(operand) for operand in item.operands)))
    return named.isdisjoint(axes.reduced | cut)


def _sizes_in(values: SizeRange) -> range:
    return range(-(-values.least // values.multiple_of) * values.multiple_of, values.largest + 1, values.multiple_of)


def _every(ranges: Ranges) -> list[Sizes]:
    """All sizes, if they are few."""
    found = [_sizes_in(values) for values in ranges.values()]
    few = prod(map(len, found)) <= MOST_SIZES
    return [tuple(zip(ranges, sizes, strict=True)) for sizes in product(*found)] if few else []


def _reduced(program: Graph, ranges: Ranges) -> tuple[str, ...]:
    """The named dims that the program sums over, or takes a maximum of."""
    graph = expand(program)
    axes = infer_axes(graph, repeats=True, barriers=True)
    inputs = [axes.dims[value] for value in graph.input_values]
    reduced = {dim.name for place, at, dim in named_dims(graph) if axes.reduced.intersection(inputs[place][at])}
    return tuple(name for name in ranges if name in reduced)


def _reason(verdict: Verdict) -> str:
    detail = verdict.difference or verdict.undecided_because
    return f"{verdict.verdict}" + (f", {detail}" if detail else "")


def _operations(program: Graph) -> int:
    """Multiplications of the program's products."""
    graph = expand(program)
    return sum(
        2 * prod(graph.types[values[0]].shape) * graph.types[item.operands[0]].shape[-1]
        for item, values in graph.numbered()
        if item.kind is Kind.MATMUL
    )


def _check_range(graph: Graph, ranges: Ranges) -> None:
    """Refuse a range that the tiles of the µGraph do not hold."""
    if not graph.blocks:
        return
    at_sizes(
        graph, {name: SizeExpression(values.least, name, values.largest, values.multiple_of) for name, values in ranges.items()}
    )


def tiles_of(graph: Graph, ranges: Ranges) -> dict[str, tuple[int, ...]]:
    """For each size the numbers of elements by which a tile, or all tiles of a block, move along it."""
    tiles: dict[str, set[int]] = {name: set() for name in ranges}
    if not graph.blocks:
        return dict.fromkeys(ranges, ())
    middle = {name: SizeExpression(values.largest, name, values.largest, values.multiple_of) for name, values in ranges.items()}
    for block in at_sizes(graph, middle).blocks:
        for item, value in zip(block.inputs, block.input_values, strict=True):
            for extent, part in zip(item["shape"], block.types[value].shape, strict=True):
                if isinstance(extent, SizeExpression) and extent.text in tiles:
                    counts = [block.loop] if item.get("fmap", -1) >= 0 and item["shape"][item["fmap"]] is extent else []
                    moved = part * prod(int(count) for count in counts if not isinstance(count, SizeExpression))
                    tiles[extent.text].update(tile for tile in (part, moved) if tile > 1)
    return {name: tuple(sorted(found)) for name, found in tiles.items()}


def _sizes_to_test(graph: Graph, ranges: Ranges) -> Iterator[dict[str, int]]:
    """The smallest sizes, one more than a tile, then sizes of one dim while others are in between, and the largest."""
    tiles = tiles_of(graph, ranges)
    choices = {name: _choices(values, tiles[name]) for name, values in ranges.items()}
    yield {name: values.least for name, values in ranges.items()}
    yield {name: next(iter(choices[name])) for name in ranges}
    for place in range(max(map(len, choices.values()))):
        yield {name: found[(place + shift) % len(found)] for shift, (name, found) in enumerate(choices.items())}
    yield {name: values.largest for name, values in ranges.items()}


def _choices(values: SizeRange, tiles: Sequence[int]) -> list[int]:
    """One more than whole tiles first, then the other sizes."""
    ends = [-(-values.least // tile) * tile for tile in tiles]  # the first size in the range that fills whole tiles
    wanted = [size for end, tile in zip(ends, tiles, strict=True) for size in (end + 1, end - 1, end, end + tile)]
    middle = (values.least + values.largest) // 2
    wanted += [next(prime for prime in primes() if prime >= middle), values.least, values.largest]
    step = values.multiple_of
    rounded = [-(-size // step) * step for size in wanted]
    return list(dict.fromkeys(size for size in rounded if values.least <= size <= values.largest))


def _whole_sizes(graph: Graph, ranges: Ranges) -> Iterator[dict[str, int]]:
    """Sizes that all tiles divide: twice a common multiple, or one, or the largest in the range."""
    tiles = tiles_of(graph, ranges)
    whole = {name: lcm(*tiles[name], values.multiple_of) for name, values in ranges.items()}
    times = {name: (2, 1, values.largest // whole[name]) for name, values in ranges.items()}
    for name, values in ranges.items():
        if values.least == values.largest:
            whole[name], times[name] = values.least, (1, 1, 1)
    for chosen in product(*times.values()):  # the largest: a kernel that combines partial results holds that many of them
        sizes = {name: whole[name] * many for name, many in zip(ranges, chosen, strict=True)}
        if all(size >= min(2, ranges[name].largest) for name, size in sizes.items()):
            yield sizes


def _proof(program: Graph, graph: Graph, ranges: Ranges, rulebook: Rulebook | None) -> Proof:
    """The proof at sizes that all tiles divide."""
    if any(item.op == "slice" and item.get("from_end") is not None for it in (program, graph) for item in it.nodes):
        return Proof(False, reason="terms of slices along a named dim are those of one size")
    reason = "no size in the range fills all tiles"
    for sizes in _whole_sizes(graph, ranges):
        try:
            pair = at_sizes(program, sizes), at_sizes(graph, sizes)
        except TiedToSizeError as error:
            reason = str(error)
            continue
        if any(block.cuts for block in pair[1].blocks):
            continue
        proof = Prover(pair[0], rulebook).prove(pair[1])
        if proof.proved:
            return proof
        reason = proof.reason or reason
    return Proof(False, reason=reason)
