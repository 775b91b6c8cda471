"""Numbers of a few bits that lie side by side in bytes, as a block graph takes them out: one chain of ops, a few instructions.

A chain shifts bytes by each of some places, masks them, casts them and adds a whole number. Its fields come out as halves or
floats that are a power of two too large (`field_helpers`), so the cast is free and one sum makes the numbers.

Products of such numbers and of halves that only products of halves read are computed in halves: a half has each number, so the
product is rounded once, as it is from float32, and two are computed by one instruction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from mirage_eg.backends.triton.addressing import Pointer
from mirage_eg.backends.triton.field_helpers import ASSEMBLER, FIELD_FLOAT, FIELD_HALF, FLOAT_OFFSET, HALF_OFFSET, MOST_BITS
from mirage_eg.backends.triton.joined_numbers import join_of, joined_numbers, place_of_numbers
from mirage_eg.backends.triton.storage import is_dot, is_narrow, product_dtype
from mirage_eg.backends.triton.writer import Writer
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED, Node, Phase
from mirage_eg.ir.op.elementwise import CASTS, LOW_BITS, PRODUCTS, SHIFTS_BY_PLACES
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.shapes import Shape

_LARGEST = 255  # in absolute value, of the whole number of a chain


@dataclass(frozen=True, slots=True)
class Fields:
    """The `bits` of bytes above places plus an `offset`: `shifted` is their shift, `inner` what nothing else reads."""

    shifted: Node
    value: int
    bits: int
    offset: Fraction
    inner: frozenset[int]


def fields_of_bytes(graph: Graph, padded: Sequence[Shape]) -> dict[int, Fields]:
    """The chains of a block graph, by the values that they end with."""
    found = {}
    for item, values in graph.numbered():
        if item.op in SHIFTS_BY_PLACES and graph.types[values[0]].dtype is DType.uint8:
            end, fields = _followed(graph, item, values[0])
            if fields is not None and _is_written(graph, padded, fields, end):
                found[end] = fields
    return found


def _is_written(graph: Graph, padded: Sequence[Shape], fields: Fields, end: int) -> bool:
    """Whether the fields of a byte are joined along a last dim; a reshape behind them has no padding."""
    is_same = graph.types[fields.value].shape == graph.types[end].shape
    is_whole = is_same or all(padded[value] == graph.types[value].shape for value in (fields.value, end))
    return is_whole and place_of_numbers(graph, padded, fields.shifted, fields.value) == 1


def _followed(graph: Graph, item: Node, value: int) -> tuple[int, Fields | None]:
    """The last value of the chain behind a shift, and the chain; None if it has no mask or no cast."""
    bits, last, offset, behind = 0, -1, Fraction(0), value
    inner: list[int] = []
    while len(readers := graph.readers[behind]) == 1:
        reader, values = graph.numbered()[readers[0]]
        is_cast = reader.op in CASTS and not DType(reader["dtype"]).is_integer
        if reader.op in LOW_BITS and not bits and behind == value and int(reader["bits"]) <= MOST_BITS:
            bits = int(reader["bits"])
        elif is_cast and bits and last < 0 and DType(reader["dtype"]) is not DType.float64:
            last = values[0]
        elif reader.op == "shift" and last == behind and _is_whole(reader["offset"]):
            return values[0], Fields(item, value, bits, Fraction(reader["offset"]), frozenset([*inner, behind]))
        elif reader.op not in RESHAPES or not bits or prod(graph.types[values[0]].shape) == 0:
            break
        inner.append(behind)
        behind = values[0]
        last = behind if last >= 0 else last
    if last != behind:
        return value, None
    return behind, Fields(item, value, bits, offset, frozenset(inner))


def _is_whole(offset: object) -> bool:
    return isinstance(offset, int | Fraction) and Fraction(offset).denominator == 1 and -_LARGEST <= offset <= _LARGEST


def in_halves(graph: Graph, chains: Mapping[int, Fields]) -> frozenset[int]:
    """The values behind chains, and their ends, that are computed in float16."""
    found: set[int] = set()
    for end in chains:
        if graph.types[end].dtype is DType.float16:
            found.update(_halves_behind(graph, end, end) or ())
    return frozenset(found)


def _halves_behind(graph: Graph, value: int, exact: int) -> frozenset[int] | None:
    """The elementwise values from one on, if a product of halves reads each; None where another op does. `exact`: a number of
    few digits, whose product with a half is rounded once."""
    found = {value} if graph.node_of[value].kind is Kind.ELEMENTWISE else set[int]()
    for place in graph.readers[value]:
        item, values = graph.numbered()[place]
        if item.kind is Kind.MATMUL and is_dot(graph, item):
            if product_dtype(graph, item, graph.types[values[0]].dtype) is not DType.float16:
                return None
            continue
        moves = item.kind is Kind.REARRANGEMENT and len(item.operands) == 1
        if not moves and not (exact >= 0 and item.op in PRODUCTS and _is_half_product(graph, item, value)):
            return None
        behind = _halves_behind(graph, values[0], exact if moves else -1)
        if behind is None:
            return None
        found |= behind
    return frozenset(found) if graph.readers[value] else None


def _is_half_product(graph: Graph, item: Node, value: int) -> bool:
    """Whether the other operand of a product is a float16 of memory, and the product is one."""
    others = [operand for operand in item.operands if operand != value]
    result = next(values[0] for it, values in graph.numbered() if it is item)
    is_half = [graph.types[it].dtype for it in (result, *others)] == [DType.float16] * 2
    return is_half and _is_loaded(graph, others[0])


def _is_loaded(graph: Graph, value: int) -> bool:
    item = graph.node_of[value]
    if item.kind is Kind.REARRANGEMENT and len(item.operands) == 1:
        return _is_loaded(graph, item.operands[0])
    return item.op == "input" and is_narrow(graph.types[value].dtype)


def is_scaled_alone(graph: Graph, end: int, dtype: DType) -> bool:
    """Whether a chain's end in float32 is read by its products with halves of memory alone.

    Such a half times the fields, and times what they are too large by, has at most 24 digits: their difference is exact. Of an
    infinite half it is not-a-number, as rule 5 of docs/reference/verification.md allows.
    """
    readers = [graph.nodes[place] for place in graph.readers[end]]
    scaled = (
        it.op in PRODUCTS and [_is_loaded(graph, other) for other in it.operands if other != end] == [True] for it in readers
    )
    return dtype is DType.float32 and bool(readers) and all(scaled)


def places_alone(graph: Graph, chains: Mapping[int, Fields]) -> dict[int, int]:
    """The inputs that only shifts of chains read, as places, and how many dims the tiles of their bytes have."""
    found: dict[int, set[int]] = {}
    shifts = {id(fields.shifted) for fields in chains.values()}
    for fields in chains.values():
        word, place = fields.shifted.operands
        item, readers = graph.node_of[place], [graph.nodes[reader] for reader in graph.readers[place]]
        is_whole = item.op == "input" and set(item["imap"]) <= {REPLICATED} and graph.phases[place] is Phase.PROLOGUE
        if is_whole and all(id(reader) in shifts for reader in readers):
            found.setdefault(place, set()).add(sum(extent > 1 for extent in graph.types[word].shape))
    return {place: ranks.pop() for place, ranks in found.items() if len(ranks) == 1}


def written_places(writer: Writer, value: int, pointer: Pointer, rank: int) -> None:
    """Load each place as a tile of one number.

    Triton moves the layout of a product's operand before ops of tiles, to the loads, and not before numbers that fill a tile:
    a product of 16 rows took 45.2 µs with these on an H100, and 21.9 µs.
    """
    row = writer.range(1) + (f"[{', '.join([':', *['None'] * (rank - 1)])}]" if rank > 1 else "")
    [stride] = (step for step, extent in zip(pointer.strides, writer.graph.types[value].shape, strict=True) if extent > 1)
    names = []
    for number in range(max(writer.graph.types[value].shape)):
        names.append(writer.new_name(f"{pointer.tensor}_{number}"))
        start = pointer.offset + number * stride
        where = f"{pointer.name} + {row}" + (f" + {start}" if start else "")
        writer.say(Phase.PROLOGUE, f"{names[-1]} = tl.load({where})")
    writer.numbers[value] = names


def written_fields(writer: Writer, fields: Fields, end: int) -> tuple[str, float, DType]:
    """The expression of a chain's end without what it lacks, that offset, and its type."""
    is_half = end in writer.halves
    helper, above = (FIELD_HALF, HALF_OFFSET) if is_half else (FIELD_FLOAT, FLOAT_OFFSET)
    word, places = fields.shifted.operands
    mask = 2**fields.bits - 1

    def on(word: str, place: str) -> str:
        return f"{helper}({word}, {place}, {mask} & (255 >> {place}))"

    writer.helpers.update((ASSEMBLER, helper))
    if places in writer.numbers:
        text = join_of(writer, fields.value, [on(writer.tiles[word].name, place) for place in writer.numbers[places]])
    else:
        text = joined_numbers(writer, fields.value, [writer.tiles[word].name, writer.tiles[places].name], 1, on)
    if writer.graph.types[end].shape != writer.graph.types[fields.value].shape:
        text = f"tl.reshape({text}, {tuple(extent for extent in writer.padded[end] if extent > 1)})"
    return text, float(fields.offset - above), DType.float16 if is_half else DType.float32
