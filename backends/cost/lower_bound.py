"""Lower bounds of a program's time on a device: bytes of its inputs and outputs, operations of its products."""

from collections.abc import Mapping
from math import prod

from mirage_eg.backends.cost.devices import Device
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.windows import CONVOLUTIONS, TRANSPOSED


def lower_bound_us(program: Graph, rates: Mapping[str, float]) -> float:
    """A lower bound in microseconds: each input read and each output written once, or all products at full rate."""
    nbytes = sum(kind.nbytes for kind in (*program.input_types, *program.output_types))
    return 1e6 * max(nbytes / rates["bytes_per_second"], product_flops(program) / rates["flops_per_second"])


def device_lower_bound_us(program: Graph, device: Device) -> float:
    """The lower bound at the rates of a device's record."""
    return lower_bound_us(program, {"bytes_per_second": device.memory_bandwidth, "flops_per_second": device.matrix_rate})


def product_flops(program: Graph) -> int:
    """Floating-point operations of a program's matrix products and convolutions."""
    graph = expand(program)
    return sum(flops_of_product(graph, item, values[0]) for item, values in graph.numbered() if item.op in PRODUCTS)


PRODUCTS = frozenset({*(op for op, row in OPS.items() if row.kind is Kind.MATMUL), *CONVOLUTIONS, *TRANSPOSED})
"""Ops that matrix units compute."""


def flops_of_product(graph: Graph, item: Node, value: int) -> int:
    """Floating-point operations of one of PRODUCTS, whose result is `value`."""
    if item.kind is Kind.MATMUL:
        return 2 * prod(graph.types[value].shape) * graph.types[item.operands[0]].shape[-1]
    # An element of the result sums as many terms as a filter has; an element of a transposed convolution's image is in as many.
    image, weight = value if item.op in CONVOLUTIONS else item.operands[0], item.operands[1]
    return 2 * prod(graph.types[image].shape) * prod(graph.types[weight].shape[1:])
