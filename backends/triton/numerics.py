"""A µGraph in floating point, with the roundings and the shifted exponentials of its kernels.

With e = exp(x), a kernel computes e/exp(m), m a maximum of x over a summed dim (`safe_exp`); `ShiftedFloats` computes the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from mirage_eg.backends.evaluator.algebra import Algebra, Array
from mirage_eg.backends.evaluator.evaluate import SLICE_ELEMENTS, evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.evaluator.shifted_floats import ShiftedFloats
from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.backends.triton.block_order import prepared
from mirage_eg.backends.triton.kernels import read_by_blocks
from mirage_eg.backends.triton.safe_exp import safe_exponentials
from mirage_eg.backends.triton.split_reduction import (
    RowMaximum,
    add_row_maxima,
    find_exported_maxima,
    maxima_of,
    with_row_maxima,
)
from mirage_eg.ir import write
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.expand import expand_custom
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.logarithms import without_far_logarithms
from mirage_eg.ir.node import Node


def shifts_exponentials(graph: Graph) -> bool:
    """Whether the kernels of a µGraph shift all of its exponentials; a library shifts its softmax, not its `exp`."""
    row_maxima: dict[int, list[RowMaximum]] = {}
    fresh = count(len(graph.types))  # numbers of the values of maxima
    for item, values in graph.numbered():
        if item.op == "exp":
            return False
        if item.op == "block":
            block, operands = with_row_maxima(item["graph"], item.operands, row_maxima)
            flat, maxima = prepared(block), maxima_of(operands, row_maxima)
            exponentials = {results[0] for inner, results in flat.numbered() if inner.op == "exp"}
            exported_maxima = find_exported_maxima(block, read_by_blocks(graph, values), maxima)
            exported = frozenset(position for export in exported_maxima for position in export.degrees)
            if not exponentials <= safe_exponentials(flat, exported, maxima).keys():
                return False
            for export, maximum in zip(exported_maxima, fresh, strict=False):
                add_row_maxima(row_maxima, export, values, maximum)
    return True


def as_written(graph: Graph) -> Graph:
    """A µGraph with every block graph in the form of its emitted kernel: without logarithms of exponentials. What is inside an
    attention of the library is float32, its probabilities excepted."""
    graph = _with_wide_attentions(graph)
    nodes = [
        Node(item.op, item.operands, tuple((name, _written(value)) for name, value in item.attributes)) for item in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))


def _with_wide_attentions(graph: Graph) -> Graph:
    calls = (launch.call for launch in launches_of(graph).of_kind(LaunchKind.ATTENTION))
    inside = {value: it.values[-2] for it in calls if it is not None for value in it.values[:-1]}
    if not inside:
        return graph
    copy = GraphCopy(graph)

    def wide(value: int) -> int:
        position = copy.position[value]
        is_wide = value in inside or graph.types[value].dtype is DType.bool
        return position if is_wide else copy.append(write.cast(position, DType.float32))

    for item, values in copy:
        if not inside.keys() & {*values}:
            copy.copy(item, values)
            continue
        [value] = values
        made = copy.append(Node(item.op, tuple(map(wide, item.operands)), item.attributes))
        narrow = write.cast(made, graph.types[value].dtype)
        copy.position[value] = copy.append(narrow) if value == inside[value] else made
    return copy.graph()


def _written(attribute: Any) -> Any:
    return without_far_logarithms(expand_custom(attribute)) if isinstance(attribute, Graph) else attribute


def form_in_kernels(graph: Graph) -> tuple[Graph, bool]:
    """`as_written` and `shifts_exponentials`."""
    return as_written(graph), shifts_exponentials(graph)


def as_kernels_compute(
    graph: Graph,
    inputs: Sequence[Array],
    xp: Any,
    working: DType,
    slice_elements: int = SLICE_ELEMENTS,
    form: Callable[[Graph], tuple[Graph, bool]] = form_in_kernels,
) -> list[Array]:
    """The outputs of a µGraph in `working` precision, with the roundings and the shifted exponentials of its kernels.

    `inputs` are rounded to their types, and stored in `working` precision or a narrower one. `form`: a memo of
    `form_in_kernels`, for many inputs.
    """
    shifted, (written, shifts) = ShiftedFloats(FloatAlgebra(xp, working, rounds=True)), form(graph)
    algebra: Algebra[Any] = shifted if shifts else shifted.plain
    return [shifted.number(x) for x in evaluate(written, inputs, algebra, slice_elements, rounded=True)]
