"""The least time of a segment, whichever kernels compute it: its memory traffic, or its products."""

from mirage_eg.backends.cost.block_cost import slowdown
from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.lower_bound import flops_of_product
from mirage_eg.backends.triton.storage import product_dtype
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import is_op
from mirage_eg.ir.op.elementwise import TERMS
from mirage_eg.ir.ops import Kind
from mirage_eg.search.partition.segments import Segment


def least_us(program: Graph, segment: Segment, device: Device) -> float:
    """Microseconds: a launch, and each input read and each output written or its products computed; 0 without ops.

    Laws may leave fewer operations of products that are summed or added.
    """
    if not any(is_op(program.nodes[position]) for position in segment.nodes):
        return 0.0
    types = [program.types[value] for value in (*segment.inputs, *segment.outputs)]
    moved = sum(kind.nbytes for kind in types) / device.memory_bandwidth
    return device.launch_us + 1e6 * max(moved, _product_seconds(program, segment, device))


def _product_seconds(program: Graph, segment: Segment, device: Device) -> float:
    """The seconds of the products that only elementwise ops follow: of all, or of the largest if some are added."""
    numbered = [*program.numbered()]
    followed = set[int]()  # values that reach an op that is not elementwise
    for position in sorted(segment.nodes, reverse=True):
        item, values = numbered[position]
        if item.kind not in (Kind.ELEMENTWISE, Kind.REARRANGEMENT) or not followed.isdisjoint(values):
            followed.update(item.operands)
    seconds, made, are_added = [0.0], set[int](), False  # `made`: values that depend on products
    for position in sorted(segment.nodes):
        item, values = numbered[position]
        if item.kind is Kind.MATMUL and followed.isdisjoint(values):
            rate = device.matrix_rate / slowdown(product_dtype(program, item, program.types[values[0]].dtype))
            seconds.append(flops_of_product(program, item, values[0]) / rate)
        if item.kind is Kind.MATMUL or not made.isdisjoint(item.operands):
            made.update(values)
        are_added |= item.op in TERMS and made.issuperset(item.operands)
    return max(seconds) if are_added else sum(seconds)
