"""A patch in an emitted program: one kernel for all its blocks, and for the elementwise ops that alone read it.

The kernel also computes the values that the blocks alone need, at the positions of the blocks (`values_at_positions`). So all
rectangles of a corrected mutant are one launch, which reads the receptive fields and the weights, and writes the rectangles.
Without elementwise ops the kernel writes into y. It copies y first only if y is an input or an output, or if another node
reads y or memory that y may alias. With elementwise ops it writes their result: on the rectangles from the blocks, elsewhere
from y.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from mirage_eg.backends.triton.addressing import row_major
from mirage_eg.backends.triton.values_at_positions import LARGEST_TILE, can_compute
from mirage_eg.backends.triton.views import shown_strides
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.shapes import Shape

MOST_REPETITIONS = 1024  # of one element of a sum that a kernel computes while it computes another one


@dataclass(frozen=True)
class PatchKernel:
    """The kernel of a patch: the patched value, the elementwise values `after` it that the kernel computes too.

    `computed` are the values that it computes for the blocks, each with the number of times that an element of it is computed.
    """

    item: Node
    patched: int
    after: tuple[int, ...]
    computed: Mapping[int, int]

    @cached_property
    def inner(self) -> frozenset[int]:
        """The values that it computes and does not store."""
        return frozenset({*self.computed, *((self.patched, *self.after[:-1]) if self.after else ())})

    @property
    def is_fused(self) -> bool:
        """Whether it computes elementwise ops of the patched value."""
        return bool(self.after)

    @property
    def stored(self) -> int:
        """The value that it stores."""
        return self.after[-1] if self.after else self.patched

    def read(self, makers: Mapping[int, Node]) -> Iterator[int]:
        """The values in memory that it reads, and y, which it reads or writes."""
        yield self.item.operands[0]
        yield from (it for it in self.item.operands[1:] if it not in self.inner)
        for value in sorted(self.inner - {self.patched}):
            yield from (it for it in makers[value].operands if it not in self.inner)
        if self.is_fused:
            yield from (it for it in makers[self.stored].operands if it not in self.inner)

    def read_after(self, makers: Mapping[int, Node]) -> Iterator[int]:
        """The values in memory that the elementwise ops read."""
        for value in self.after:
            yield from (it for it in makers[value].operands if it not in self.inner)


def patch_kernels(graph: Graph) -> dict[int, PatchKernel]:
    """The kernels of the patches of a program, by the values that they store."""
    found: dict[int, PatchKernel] = {}
    taken: set[int] = set()  # values of elementwise ops
    for number, (item, values) in enumerate(graph.numbered()):
        if item.op == "patch":
            after = tuple(_elementwise_after(graph, values[0], taken))
            taken.update(after)
            kernel = PatchKernel(item, values[0], after, _computed_for(graph, number))
            found[kernel.stored] = kernel
    return found


def values_within_patches(graph: Graph) -> frozenset[int]:
    """The values that the kernels of patches compute and no kernel stores."""
    return frozenset[int]().union(*(kernel.inner for kernel in patch_kernels(graph).values()))


def read_by_patches(graph: Graph) -> frozenset[int]:
    """The values that the kernels of patches read or write, by their strides."""
    makers = makers_of(graph)
    return frozenset(value for kernel in patch_kernels(graph).values() for value in kernel.read(makers))


def makers_of(graph: Graph) -> dict[int, Node]:
    """The node of each value."""
    return {value: item for item, values in graph.numbered() for value in values}


def _elementwise_after(graph: Graph, value: int, taken: Collection[int]) -> Iterator[int]:
    """The values of elementwise ops of the same shape, each of which alone reads the one before."""
    nodes, shape = [*graph.numbered()], graph.types[value].shape
    while len(graph.readers[value]) == 1:
        item, values = nodes[graph.readers[value][0]]
        if OPS[item.op].kind is not Kind.ELEMENTWISE or values[0] in taken or graph.types[values[0]].shape != shape:
            return
        [value] = values
        if not can_compute(graph, item, value):
            return
        yield value


def _computed_for(graph: Graph, patch: int) -> dict[int, int]:
    """The values that are computed for the blocks of the patch at this node alone: how many elements, with repetitions.

    A sum whose elements would be computed MOST_REPETITIONS times is left to a kernel of its own.
    """
    nodes, found = [*graph.numbered()], dict[int, int]()
    y, *blocks = nodes[patch][0].operands
    for item, values in reversed(nodes[:patch]):
        if len(values) != 1 or values[0] == y or not (readers := graph.readers[values[0]]):
            continue
        [value] = values
        own = all(reader == patch or found.keys() & {*nodes[reader][1]} for reader in readers)
        if own and can_compute(graph, item, value):
            size = prod(graph.types[value].shape)
            count = size * blocks.count(value)
            for reader in readers:
                if reader != patch:
                    count += found[nodes[reader][1][0]] * _repetitions(graph, nodes[reader][0], value)
            if _summands(graph, item) == 1 or count <= MOST_REPETITIONS * size:
                found[value] = count
    return found


def _summands(graph: Graph, item: Node) -> int:
    """The number of elements of the first operand that an element of the result is a sum of."""
    shapes = [graph.types[it].shape for it in item.operands]
    match item.op:
        case "conv2d":
            return prod(shapes[1][1:])
        case "matmul":
            return shapes[0][-1]
        case "avg_pool2d":
            return prod(map(int, item["window"]))
        case "sum" | "mean":
            return int(shapes[0][item["dim"]])
        case _:
            return 1


def _repetitions(graph: Graph, item: Node, operand: int) -> int:
    """How often an operand is computed for an element of the result; a tile of a product is shared."""
    times, tile = _summands(graph, item), 1
    if item.op in ("conv2d", "matmul"):
        left, right = (graph.types[it].shape for it in item.operands)
        if item.op == "conv2d":
            tile = right[0] // item["groups"] if operand == item.operands[0] else LARGEST_TILE
        else:
            tile = right[-1] if operand == item.operands[0] else left[-2]
    return -(-times // min(LARGEST_TILE, tile)) * item.operands.count(operand)


def patched_layouts(graph: Graph, strides: Sequence[Shape], declared: frozenset[int]) -> dict[int, Shape]:
    """The values that patches write whose memory the library gives channels last, with these strides.

    A convolution of such images has such a result, and its moves may be views of it. Copied to row-major order, y would not be
    patched in place.
    """
    patches = {kernel.patched: kernel.stored for kernel in patch_kernels(graph).values()}
    if not patches:
        return {}
    given, fixed = list(strides), declared.union(graph.input_values)
    found = dict[int, Shape]()
    for item, values in graph.numbered():
        for value in set(values) - declared:
            shape = graph.types[value].shape
            if item.op == "conv2d" and is_channels_last(graph.types[item.operands[0]].shape, given[item.operands[0]]):
                given[value] = channels_last(shape)
            elif item.op in ("reshape", "transpose", "slice", "broadcast"):
                operand = item.operands[0]
                given[value] = shown_strides(item, graph.types[operand].shape, given[operand]) or row_major(shape)
            elif item.op == "patch" and is_channels_last(shape, given[y := item.operands[0]]) and y not in fixed:
                found[y] = found[value] = found[patches[value]] = given[value] = channels_last(shape)
    return found


def channels_last(shape: Shape) -> Shape:
    """The strides of [N, C, H, W] in the order N, H, W, C."""
    _, channels, height, width = shape
    return (channels * height * width, 1, channels * width, channels)


def is_channels_last(shape: Shape, strides: Shape) -> bool:
    """Whether images have these strides, but for dims of one element, and no others."""
    if len(shape) != 4 or strides == row_major(shape):
        return False
    return all(extent == 1 or have == want for extent, have, want in zip(shape, strides, channels_last(shape), strict=True))


def is_patched_in_place(graph: Graph, value: int) -> bool:
    """Whether a patch may write into y: its memory, and what it is a view of, is computed here for this patch alone."""
    makers = {it: item for item, values in graph.numbered() for it in values}
    read = makers[value].operands[0]
    while True:
        item = makers[read]
        if item.op == "input" or sum(reader.operands.count(read) for reader in graph.nodes) > 1:
            return False
        if not _may_alias(item):
            return True
        read = item.operands[0]


def _may_alias(item: Node) -> bool:
    """Whether torch may give a view of the first operand."""
    return OPS[item.op].kind in (Kind.REARRANGEMENT, Kind.DERIVED) or item.op in ("cast", "patch")


def patch_traffic(graph: Graph, kernel: PatchKernel) -> tuple[int, int]:
    """The bytes that a patch's kernel moves (fields and weights, rectangles, y if copied or read), and its operations."""
    y, *blocks = kernel.item.operands
    makers = makers_of(graph)
    moved = sum(graph.types[it].nbytes for block in blocks for it in (block, *_fields(makers, kernel.inner, block)))
    if kernel.is_fused:
        others = {*kernel.read_after(makers), y, kernel.stored}
        moved += sum(graph.types[it].nbytes for it in others) - sum(graph.types[block].nbytes for block in blocks)
    elif not is_patched_in_place(graph, kernel.patched):
        moved += 2 * graph.types[y].nbytes
    products = (it for it in kernel.computed if makers[it].op in ("conv2d", "matmul"))
    return moved, sum(2 * kernel.computed[it] * _summands(graph, makers[it]) for it in products)


def _fields(makers: Mapping[int, Node], inner: Collection[int], block: int) -> set[int]:
    """What is read for a block: values in memory, and slices of them."""
    found, left, seen = set[int](), [block], {block}
    while left:
        value = left.pop()
        base = value
        while base in inner and makers[base].op == "slice":
            base = makers[base].operands[0]
        if base not in inner:
            found.add(value)
            continue
        fresh = set(makers[value].operands) - seen
        seen |= fresh
        left += fresh
    return found


__all__ = [
    "PatchKernel",
    "channels_last",
    "is_patched_in_place",
    "makers_of",
    "patch_kernels",
    "patch_traffic",
    "patched_layouts",
    "read_by_patches",
    "values_within_patches",
]
