"""Gathers between kernels: a generated kernel reads the chosen rows where they are, a library kernel reads a copy of them."""

from collections.abc import Container

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.roofline_model import predict
from mirage_eg.backends.launches.launch_graph import launches_of
from mirage_eg.backends.launches.views import gathers_of_rows
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.moves import PLAIN_VIEWS, VIEWS


def chosen_rows(program: Graph, barriers: Container[int]) -> frozenset[int]:
    """The gathers that are views between kernels: of long rows, which ops of generated kernels alone read.

    `barriers`: the positions of the ops that are kernels of their own.
    """

    def is_read_by_kernels(value: int) -> bool:
        readers = [(position, *program.numbered()[position]) for position in program.readers[value]]
        return all(
            is_read_by_kernels(values[0]) if item.op in VIEWS else item.op != "output" and position not in barriers
            for position, item, values in readers
        )

    return frozenset(filter(is_read_by_kernels, gathers_of_rows(program)))


def copies_us(program: Graph, barriers: Container[int], device: Device) -> dict[int, float]:
    """The microseconds that a copy of chosen rows takes, for each value that shows them to a library kernel."""
    rows = chosen_rows(program, barriers)
    if not rows:
        return {}
    kernels = zip(launches_of(program).kernels, predict(program, device), strict=True)
    us = {kernel.results[0]: cost.us for kernel, cost in kernels if kernel.results[0] in rows}
    for item, values in program.numbered():
        if item.op in PLAIN_VIEWS and item.operands[0] in us:
            us[values[0]] = us[item.operands[0]]
    return us
