"""Which inputs of a program are whole numbers, and below which bound, and which are positive: random inputs must be so, too.

Indicators are 0 or 1. An input of integers that ops use as indices is below the extents that they index, and one that is
compared with 0, 1, 2, … (one_hot, positions in a cache) is below their number. Rearrangements, moves and multiples pass such a
bound on.
"""

from collections.abc import Mapping
from math import ceil, prod
from types import MappingProxyType

from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import is_zero
from mirage_eg.ir.op.derived import SOFTMAXES
from mirage_eg.ir.op.elementwise import CASTS, COMPARISONS, EXTREMES, OF_BITS, OF_INTEGERS, PRODUCTS, ROOTS, SUMS, integer_range
from mirage_eg.ir.op.library import COUNTS
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.weights import marked_weights

_CONDITIONS = frozenset({*PRODUCTS, *EXTREMES, *CASTS, "max", "scale", "shift"})
_CHOSEN = frozenset({*CASTS, *EXTREMES, "where"})  # the result is one of the operands
_FREE = 16  # of integers that index nothing


def indicator_inputs(program: Graph) -> frozenset[int]:
    """The positions of the inputs that are indicators, zeros and ones.

    An input is an indicator if its element type is bool, or if a condition of `where` is computed from it by rearrangements,
    casts, products, extremes, and 1 − x. So a program with `where` means something only on such inputs.
    """
    wanted: set[int] = set()
    for item, values in reversed(program.numbered()):
        row = OPS[item.op]
        wanted.update(item.operands[: row.conditions])
        if (item.op in _CONDITIONS or row.kind is Kind.REARRANGEMENT) and not wanted.isdisjoint(values):
            wanted.update(item.operands)
    return frozenset(
        i for i, value in enumerate(program.input_values) if value in wanted or program.types[value].dtype is DType.bool
    )


def index_bounds(program: Graph) -> dict[int, int]:
    """The positions of the inputs that are indices 0 ≤ x < bound, with the bound."""
    return _bounds(program, {}, _largest(program))


def counting_bounds(program: Graph) -> dict[int, int]:
    """The positions of the integer inputs that index or are compared with 0, 1, 2, …, and the bound for random ones."""
    counts: dict[int, int] = {}  # values that are 0, 1, 2, … below an extent
    for item, values in program.numbered():
        if item.op in COUNTS:
            counts[values[0]] = item["extent"]
        elif (item.kind is Kind.REARRANGEMENT or item.op in CASTS) and (found := counts.keys() & {*item.operands}):
            counts[values[0]] = max(counts[value] for value in found)
    return _bounds(program, counts) | index_bounds(program)


def _largest(program: Graph) -> dict[int, int]:
    """The largest of 0, 1, 2, … below an extent, and of their rearrangements, casts, quotients and bits."""
    largest: dict[int, int] = {}
    for item, values in program.numbered():
        if item.op in COUNTS:
            largest[values[0]] = item["extent"] - 1
        elif len(item.operands) != 1 or item.operands[0] not in largest:
            continue
        elif item.kind is Kind.REARRANGEMENT or item.op in CASTS:
            largest[values[0]] = largest[item.operands[0]]
        elif item.op in OF_INTEGERS:
            found = integer_range(item.op, item.mapping, (0, largest[item.operands[0]]))
            largest.update({values[0]: found[1]} if found is not None else {})
    return largest


def _bounds(
    program: Graph, counts: Mapping[int, int], largest: Mapping[int, int] = MappingProxyType({}), sums: bool = False
) -> dict[int, int]:
    """The bounds of inputs that index, or are compared with values in `counts`; one added to an index of `largest` spares it.

    With `sums`, two terms of an index share its bound; one of them may be 0, 1, 2, … for each of its elements.
    """
    bounds: dict[int, int] = {}

    def bound(value: int, below: int) -> None:
        bounds[value] = min(below, bounds.get(value, below))

    for item, values in reversed(program.numbered()):
        row = OPS[item.op]
        if row.indices is not None:
            bound(item.operands[row.indices], program.types[item.operands[0]].shape[item["dim"]])
        if item.op in OF_BITS and len(item.operands) > 1 and not row.commutative:  # an amount
            bound(item.operands[1], 8 * program.types[values[0]].dtype.itemsize)
        if item.op in COMPARISONS:
            for one, other in (item.operands, item.operands[::-1]):
                if one in counts:
                    bound(other, counts[one])
        if row.kind is Kind.REARRANGEMENT or row.indices is not None or item.op in _CHOSEN:
            for value in values:
                for place, operand in enumerate(item.operands) if value in bounds else ():
                    if place != row.indices and place >= row.conditions:
                        bound(operand, bounds[value])
        elif item.op in SUMS and values[0] in bounds and not largest.keys().isdisjoint(item.operands):
            for one, other in (item.operands, item.operands[::-1]):
                if one in largest:
                    bound(other, max(1, bounds[values[0]] - largest[one]))
        elif sums and item.op in SUMS and values[0] in bounds:
            spare = max(0, bounds[values[0]] - prod(program.types[values[0]].shape))
            for operand in item.operands:
                bound(operand, spare // 2 + 1)
        elif item.op in ("scale", "shift") and values[0] in bounds and item.get("factor") != 0:
            factor, offset = item.get("factor", 1), item.get("offset", 0)
            bound(item.operands[0], max(1, ceil((bounds[values[0]] - offset) / factor)) if factor > 0 else 1)
    integers = [(place, i) for place, i in enumerate(program.input_values) if program.types[i].dtype.is_integer]
    return {place: bounds[i] for place, i in integers if i in bounds}


def whole_inputs(program: Graph) -> dict[int, int]:
    """The positions of the inputs that are whole numbers, with the bound for random ones; those of 8 bits have all, and wrap.

    The length of a cache, to which 0, 1, 2, … are added, leaves the sum within the cache.
    """
    terms = _bounds(program, {}, sums=True)
    integers = [place for place, kind in enumerate(program.input_types) if kind.dtype.is_integer]
    most = {place: 2**8 if program.input_types[place].dtype.itemsize < 4 else _FREE for place in integers}
    free = {place: min(most[place], terms.get(place, most[place])) for place in integers}
    return free | counting_bounds(program) | dict.fromkeys(indicator_inputs(program), 2)


def causal_inputs(program: Graph) -> dict[int, int]:
    """The positions of the inputs that are constant masks, and how many of their last columns to mask whole.

    They are the indicators of two or more dims among the weights. A program has the shape of a constant mask, not its entries.
    The cost model and the timer take a causal mask: where it is a factor, a 1 says that an entry counts. Elsewhere it may say
    that it does not; without the last column each row has a 0 and a 1, so that no row is masked whole.
    """
    weights = marked_weights(program)
    constant = [place for place in sorted(indicator_inputs(program)) if program.input_values[place] in weights]
    masks = [it for it in constant if all(extent > 1 for extent in (0, 0, *program.input_types[it].shape)[-2:])]
    return {place: 0 if _is_factor(program, program.input_values[place]) else 1 for place in masks}


def _is_factor(program: Graph, value: int) -> bool:
    """Whether a value is nothing but a factor, a choice between numbers and 0, or the mask of a softmax."""
    zeros = {values[0] for item, values in program.numbered() if is_zero(item)}
    return all(
        item.op in PRODUCTS | SOFTMAXES
        or (item.op == "where" and item.operands[2] in zeros)
        or (item.kind is Kind.REARRANGEMENT and _is_factor(program, values[0]))
        for item, values in program.numbered()
        if value in item.operands
    )


def root_inputs(program: Graph) -> frozenset[int]:
    """The positions of the inputs, as the variances of batch norms, of which the program takes roots and nothing else.

    Rearrangements, casts, positive multiples and positive offsets come before the root.
    """
    taken: set[int] = set()
    others: set[int] = set()
    for item, values in reversed(program.numbered()):
        passes = item.kind is Kind.REARRANGEMENT or item.op in CASTS or item.get("factor", item.get("offset", -1)) > 0
        if item.op in ROOTS or (passes and taken.issuperset(values)):
            taken.update(item.operands)
        else:
            others.update(item.operands)
    return frozenset(i for i, value in enumerate(program.input_values) if value in taken - others)
