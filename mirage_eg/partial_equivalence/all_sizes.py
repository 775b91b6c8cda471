"""Where a mutant is wrong, for all sizes of one dim: one mutation and its rectangles serve every height.

The boxes are found once, for a height r + m · t with a symbolic t (`symbolic_extent`): every comparison is decided for all t
from a least one on, and boxes are called equal by the normal form alone. No size is tried.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm, prod

from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.checker import Checker
from mirage_eg.ir.errors import GraphError, OptionError, UnsupportedError
from mirage_eg.ir.expand import expand_all
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.ops import Level
from mirage_eg.ir.sizes import SizeRange
from mirage_eg.partial_equivalence.boxes import agreement
from mirage_eg.partial_equivalence.correct import corrected
from mirage_eg.partial_equivalence.enumeration import Mutation
from mirage_eg.partial_equivalence.mutants import Mutant
from mirage_eg.partial_equivalence.padding import written
from mirage_eg.partial_equivalence.rectangles import Rectangle, rectangles_of
from mirage_eg.partial_equivalence.size_families import InputExtent, NamedExtent, at_tried_sizes
from mirage_eg.partial_equivalence.symbolic_extent import LARGE, SymbolicExtent, Trace, parts, read_constant, read_symbolic
from mirage_eg.partial_equivalence.window_changes import WINDOWED, dilations_of

LARGEST = 1 << 20  # size of a dim


@dataclass(frozen=True, slots=True)
class SizedRange:
    """The positions of one dim at a size: start, stop and step as (constant, slope) of t."""

    start: tuple[int, int]
    stop: tuple[int, int]
    step: tuple[int, int]

    def at(self, t: int) -> range:
        """The positions."""
        start, stop, step = (constant + slope * t for constant, slope in (self.start, self.stop, self.step))
        return range(start, stop, step)


@dataclass(frozen=True, slots=True)
class SizedMutant:
    """A mutation of the programs of a family that is corrected within `rectangles` at all `sizes`.

    A size is `sizes.least` + `sizes.multiple_of` · (t − `first`), and ranges are affine in t.
    """

    family: InputExtent | NamedExtent
    mutation: Mutation
    padded: bool
    sizes: SizeRange
    first: int
    rectangles: tuple[tuple[SizedRange, ...], ...]

    def serves(self, size: int) -> bool:
        """Whether it is one of the sizes."""
        return size >= self.sizes.least and (size - self.sizes.least) % self.sizes.multiple_of == 0

    def wrong(self, size: int) -> list[Rectangle]:
        """The rectangles at a size. Raises OptionError: not one of the sizes."""
        if not self.serves(size):
            raise OptionError(f"size: got {size}, wanted {self.sizes.least} and a multiple of {self.sizes.multiple_of} more")
        t = self.first + (size - self.sizes.least) // self.sizes.multiple_of
        return [tuple(one.at(t) for one in rectangle) for rectangle in self.rectangles]

    def at(self, size: int) -> tuple[Graph, Graph]:
        """The program at a size, and its corrected mutant."""
        wrong, program = self.wrong(size), self.family.at(size)
        return program, corrected(program, written(program, self.mutation, self.padded), wrong)

    def show(self, name: str) -> str:
        """The rectangles as text, with `name` for the size."""
        period, offset = self.sizes.multiple_of, self.sizes.least - self.sizes.multiple_of * self.first
        shown = [", ".join(_text(one, name, period, offset) for one in rectangle) for rectangle in self.rectangles]
        sizes = f"{name} = {self.sizes.least}, {self.sizes.least + period}, …"
        return f"wrong at [{'] and ['.join(shown)}] for {sizes}" if shown else f"wrong nowhere for {sizes}"


def for_all_sizes(program: Graph, mutation: Mutation, place: int, dim: int, *, padded: bool = False) -> SizedMutant:
    """The mutation at all sizes of a dim of the input at `place` that leave the rest that the program's own size leaves.

    Raises:
        OptionError: no such dim.
        UnsupportedError: no statement for all sizes is found.
    """
    if not 0 <= place < len(program.inputs) or not 0 <= dim < len(program.input_types[place].shape):
        raise OptionError(f"got dim {dim} of input {place}, wanted a dim of one of {len(program.inputs)} inputs")
    family = InputExtent(program, place, dim)
    return _stated(family, mutation, padded, family.size, f"dim {dim} of input {place}")


def for_named_dim(program: Graph, mutant: Mutant, name: str) -> tuple[list[SizedMutant], list[str]]:
    """A mutant of a program with named dims at all sizes of one of them: a statement for each rest, and why a rest has none.

    Where moves do not divide the sides of images, the images are padded. Other named dims keep the sizes of the mutant.
    """
    family = NamedExtent(at_tried_sizes(program), name, mutant.part.nodes[0] if mutant.part.nodes else None)
    dim, found, refused = dims_of(program)[name], list[SizedMutant](), dict[str, list[int]]()
    period = lcm(max(_periods(mutant.part.program, mutant.mutation)), dim.multiple_of)
    for size in range(family.size, family.size + period, dim.multiple_of):
        if any((size - one.sizes.least) % one.sizes.multiple_of == 0 for one in found):
            continue
        reasons = []
        for padded in (True,) if mutant.padded else (False, True):
            try:
                found.append(_stated(family, mutant.mutation, padded, size, name))
                break
            except UnsupportedError as error:
                reasons.append(str(error))
        else:
            refused.setdefault(reasons[0], []).append(size % period)
    texts = [f"{reason} ({name} modulo {period}: {', '.join(map(str, sorted(rests)))})" for reason, rests in refused.items()]
    return found, texts


def _stated(family: InputExtent | NamedExtent, mutation: Mutation, padded: bool, size: int, what: str) -> SizedMutant:
    """The mutation at all sizes that leave the rest that `size` leaves."""
    for period in _periods(family.at(size), mutation):
        try:
            return _for_period(family, mutation, padded, size, period)
        except (GraphError, UnsupportedError) as error:
            reason = "ops or moves do not fit all of them" if isinstance(error, GraphError) else str(error)
    raise UnsupportedError(f"no region for all sizes of {what}: {reason}")


def _for_period(family: InputExtent | NamedExtent, mutation: Mutation, padded: bool, size: int, period: int) -> SizedMutant:
    trace, rest = Trace(), size % period
    large = expand_all(family.at(rest + period * LARGE))
    changed = written(large, mutation, padded)
    wanted, mutant = (symbolic_graph(it, trace) for it in (large, changed))
    if wanted.output_types != mutant.output_types:
        raise UnsupportedError("got a result of another shape")
    boxes = [box for box in agreement(wanted, mutant) if not box.equal]
    if any(sum(isinstance(extent, SymbolicExtent) for extent, _ in dim.digits) > 1 for box in boxes for dim in box.dims):
        raise UnsupportedError("got positions with two digits that depend on the size")
    rectangles = tuple(tuple(_sized(taken) for taken in rectangle) for rectangle in rectangles_of(boxes))
    first = max(trace.least, 0 if rest else 1)
    if rest + period * first > LARGEST:
        raise UnsupportedError(f"got no size below {LARGEST:,} from which on comparisons do not depend on it")
    sizes = SizeRange(rest + period * first, LARGEST, period)
    return SizedMutant(family, mutation, padded, sizes, first, rectangles)


def _periods(program: Graph, mutation: Mutation) -> Iterator[int]:
    """Periods of the size under which quotients may be affine: the divisors of factors times strides, the least first."""
    mutation = mutation.of(program)
    moves = [move.factor for moves in (*mutation.before, mutation.after) for move in moves]
    windowed = [item for item in program.nodes if item.op in WINDOWED]
    strides = lcm(*(prod(item["strides"][side] for item in windowed) for side in (0, 1)))  # of ops in a row
    whole = lcm(2, strides, *(it for item in windowed for it in dilations_of(item))) * prod(moves)  # 2: padded images
    yield from (it for it in range(1, whole + 1) if whole % it == 0)


def symbolic_graph(graph: Graph, trace: Trace) -> Graph:
    """A program at tᵢ = LARGEⁱ with symbolic extents.

    Raises UnsupportedError: a constant that is a quotient of sizes, where several are open.
    """
    checker = Checker(Level.KERNEL)
    for item in expand_all(graph).nodes:
        attributes = (
            (key, read_constant(it, trace) if isinstance(it, Fraction) else read_symbolic(it, trace))
            for key, it in item.attributes
        )
        checker.append(Node(item.op, item.operands, tuple(attributes)))
    return Graph.of_checked(checker)


def _sized(taken: range) -> SizedRange:
    """A range at t = LARGE; one position has step 1."""
    numbers = (taken.start, taken[-1] + 1, taken.step if len(taken) > 1 else 1)
    return SizedRange(*((constant, sum(slope for _, slope in slopes)) for constant, slopes in map(parts, numbers)))


def _text(one: SizedRange, name: str, period: int, offset: int) -> str:
    start, stop, step = (_affine(it, name, period, offset) for it in (one.start, one.stop, one.step))
    return f"{start}:{stop}" + ("" if step == "1" else f":{step}")


def _affine(pair: tuple[int, int], name: str, period: int, offset: int) -> str:
    """constant + slope · t, with t = (size − offset) / period."""
    constant, slope = pair
    if not slope:
        return str(constant)
    common = gcd(slope, period)
    times, over = slope // common, period // common
    if over > 1:
        inner = f"({name} − {offset})" if offset else name
        text = (f"{times} " if times != 1 else "") + f"{inner}/{over}"
    else:
        text, constant = (f"{times} " if times != 1 else "") + name, constant - times * offset
    return text if not constant else f"{text} {'+' if constant > 0 else '−'} {abs(constant)}"
