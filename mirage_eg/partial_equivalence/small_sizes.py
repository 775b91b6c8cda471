"""A linear program at small sizes, on which many mutants can be tried: few images, few channels, short sides.

Extents keep their divisibility by 2 and 3, so that a digit of a dim that moves at the small size moves at the program's own.
"""

from collections.abc import Sequence
from math import prod

from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.op.moves import TRANSPOSES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.windows import AVG_POOL2D, CONV2D
from mirage_eg.partial_equivalence.window_changes import WINDOWED

LONGEST_SIDE = 16  # of an image, before it is shortened
LARGEST = 1 << 16  # elements of a value of a program that is tried as it is


def small(extent: int) -> int:
    """A small extent with the same small divisors."""
    if extent <= 4:
        return extent
    return next((it for it in (4, 2, 3, 5, 7) if extent % it == 0), 5)


def short(side: int) -> int:
    """A short side of an image, equal modulo 12."""
    return side if side <= LONGEST_SIDE else 12 + side % 12 if side % 12 else 12


def at_small_sizes(program: Graph) -> Graph:
    """The program at small sizes; itself where its ops do not tell which dims may shrink."""
    filters = _filters(program)
    if filters is None and not all(map(_has_no_extents, program.nodes)):
        return program
    try:
        return _rebuilt(program, filters)
    except MirageError:  # a side shorter than a kernel, sums of unequal sides: at its own sizes it is right
        return program


def is_small(program: Graph) -> bool:
    """Whether mutants of the program can be tried at its sizes."""
    return all(prod(kind.shape) <= LARGEST for kind in program.types)


def _filters(program: Graph) -> set[int] | None:
    """The inputs that are filters, where all others are images; None where an input is neither or both."""
    filters, images = set[int](), set[int]()
    for item in program.nodes:
        if item.op == CONV2D:
            images.add(item.operands[0])
            filters.add(item.operands[1])
        elif item.op == AVG_POOL2D:
            images.add(item.operands[0])
        elif item.op not in ("input", "output") and item.kind is not Kind.ELEMENTWISE:
            return None
    given = set(program.input_values)
    if filters & images or not filters <= given or (given - filters - images):
        return None
    return filters


def _has_no_extents(item: Node) -> bool:
    """Whether the op takes operands of any extents, equal ones where they have to be."""
    kinds = (Kind.ELEMENTWISE, Kind.MATMUL, Kind.REDUCTION, Kind.BOUNDARY)
    return item.op in TRANSPOSES or item.kind in kinds


def _rebuilt(program: Graph, filters: set[int] | None) -> Graph:
    nodes = []
    for item, numbers in program.numbered():
        given = item.mapping
        if item.op == "input":
            given |= {"shape": _shape(program, numbers[0], filters), "strides": None}
        if item.op == CONV2D:
            given["groups"] = small(item["groups"])
        nodes.append(node(item.op, *item.operands, **given))
    return Graph(tuple(nodes))


def _shape(program: Graph, value: int, filters: set[int] | None) -> Shape:
    if filters is None:
        return tuple(map(small, program.types[value].shape))
    first, channels, *sides = program.types[value].shape
    convolutions = [item for item in program.nodes if item.op == CONV2D and value in item.operands]
    groups = convolutions[0]["groups"] if convolutions else 1
    if value in filters:
        return (small(groups) * small(first // groups), small(channels), *sides)
    images = small(first) * (3 if first > 4 and small(first) < 4 else 1)  # more than a factor that moves
    return (images, small(groups) * small(channels // groups), *map(short, sides))


def contractions(program: Graph) -> Sequence[int]:
    """The nodes of a program that mutants can change: those that sum products, or windows."""
    kinds = (Kind.MATMUL, Kind.REDUCTION)
    return [number for number, item in enumerate(program.nodes) if item.op in WINDOWED or item.kind in kinds]
