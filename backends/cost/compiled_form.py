"""The time of a program as a compiler without a search runs it: library kernels of products and attention, the rest fused.

Inductor compiles a graph so. Ops that are connected between the same products are taken to be one kernel, which moves only what
enters and leaves it: the least that it can take.
"""

from collections.abc import Iterator, Mapping
from math import prod

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.lower_bound import PRODUCTS
from mirage_eg.backends.cost.roofline_model import KernelWork, attention_work, kernel_us, product_work
from mirage_eg.backends.launches.aligned_rows import unaligned_products
from mirage_eg.backends.launches.attention import library_attentions
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.library import CHOICES
from mirage_eg.ir.op.moves import VIEWS
from mirage_eg.ir.windows import AVG_POOLS, MAX_POOLS

_OF_IMAGE, _OF_VOLUME = 1.6, 5.5
"""How much longer Inductor takes for a load of a pooling than a generated kernel, and torch for one of volumes. On an H200
Inductor took 0.38 to 0.53 ps for each element of a window of rows or images, and torch 1.2 to 1.7 ps for one of a volume."""


def compiled_us(program: Graph, device: Device) -> float:
    """The predicted microseconds of a program of library ops."""
    library = dict(_library(program))
    fused = (KernelWork("copy", moved) for moved in _moved(program, library))
    return sum(kernel_us(it, device) for it in (*filter(None, library.values()), *fused))


def _library(program: Graph) -> Iterator[tuple[int, KernelWork | None]]:
    """The nodes that library kernels compute, with the work of a kernel at its last one."""
    inside = set[int]()
    for attention in library_attentions(program):
        nodes = [program.makers[value] for value in attention.values]
        inside.update(nodes)
        yield from dict.fromkeys(nodes).items()
        yield nodes[-1], attention_work(attention, _nbytes(program, {*attention.read, attention.values[-1]}))
    for position, (item, values) in enumerate(program.numbered()):
        dram = _nbytes(program, {*item.operands, *values})
        if item.op in PRODUCTS and position not in inside:
            yield (
                position,
                product_work(program, item, values[0], dram, unaligned_products(program).get(values[0]), by_rows=True),
            )
        elif item.op in (*MAX_POOLS, *AVG_POOLS):
            each = prod(item["window"]) * (_OF_VOLUME if len(item["window"]) > 2 else _OF_IMAGE)
            yield position, KernelWork("pool", dram, loads=int(each * prod(program.types[values[0]].shape)))


def _nbytes(program: Graph, values: set[int]) -> int:
    return sum(program.types[value].nbytes for value in values)


def _moved(program: Graph, library: Mapping[int, object]) -> Iterator[int]:
    """The bytes that enter and leave each set of connected ops with equally many library kernels in a row before them."""
    shown = dict[int, int]()  # of a view what it shows
    depth, sets = dict[int, int](), dict[int, int]()  # of values; a set is named by one of its values
    reads = list[tuple[int | None, int, int]]()  # a value of the reading set, the value that is read, and its bytes

    def name(value: int) -> int:
        while sets[value] != value:
            value = sets[value]
        return value

    for position, (item, values) in enumerate(program.numbered()):
        operands = [shown.get(value, value) for value in item.operands]
        if item.op == "output":
            reads.append((None, operands[0], program.types[operands[0]].nbytes))
            continue
        for value in values:
            depth[value] = max((depth[it] for it in operands), default=0) + (position in library)
        if item.op in VIEWS:
            shown |= dict.fromkeys(values, operands[0])
        elif item.op != "input":
            fused = position not in library
            sets |= dict.fromkeys(values, values[0]) if fused else {}
            for it in operands:
                if fused and it in sets and depth[it] == depth[values[0]]:
                    sets[name(it)] = name(values[0])
            chosen = {operands[0]: program.types[values[0]].nbytes} if item.op in CHOICES else {}
            reads += [(values[0] if fused else None, it, chosen.get(it, program.types[it].nbytes)) for it in operands]
    ends = dict[int, dict[int, int]]()
    for reader, value, nbytes in reads:
        own, maker = (None if reader is None else name(reader)), (name(value) if value in sets else None)
        for each in (own, maker):
            if each is not None and own != maker:
                ends.setdefault(each, {})[value] = nbytes
    yield from (sum(moved.values()) for moved in ends.values())
