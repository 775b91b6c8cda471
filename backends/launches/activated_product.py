"""Products with a bias whose kernel applies an activation to their sum: a relu, or a gelu by tanh, in cuBLAS.

It is an op, or written in others: a function of the sum alone, without comparisons, that has its values at points up to 10³⁰.
Products whose rows fill no multiples of 16 bytes have none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from mirage_eg.backends.launches.aligned_rows import ALIGNED
from mirage_eg.ir.biased_product import BiasedProduct, biased_products
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.elementwise import PACKAGED, record_of
from mirage_eg.ir.op.moves import RESHAPES
from mirage_eg.ir.op.record import ElementwiseOp


def activated_products(graph: Graph) -> Iterator[BiasedProduct]:
    """The products of a kernel graph that the library computes with their bias, with the activations behind them."""
    return (_with_activation(graph, it) for it in biased_products(graph))


_ACTIVATIONS = tuple(op for op in PACKAGED.values() if op.use_gelu is not None)
_MOST_OPS = 16  # of an activation that is written in others
_POINTS = (*(it / 8 for it in range(-64, 65)), *(sign * it for it in (1e-3, 20.0, 1e5, 1e10, 1e30) for sign in (-1, 1)))
_EXACT = 1e-6  # of a point: a half has 11 binary digits


def _with_activation(graph: Graph, biased: BiasedProduct) -> BiasedProduct:
    """The product with the activation that reads its sum alone; as it is where there is none."""
    *_, value = biased.values
    kind, rows = graph.types[value], [graph.types[it].shape[-1] for it in (value, biased.product.operands[0])]
    if kind.dtype not in (DType.float16, DType.bfloat16) or any(it * kind.dtype.itemsize % ALIGNED for it in rows):
        return biased
    import numpy as np  # small commands load no arrays

    at_points, waiting = {value: np.array(_POINTS)}, {*graph.readers[value]}
    while waiting and len(at_points) <= _MOST_OPS:
        position = min(waiting)
        waiting.remove(position)
        item, results = graph.numbered()[position]
        if len(results) != 1 or not at_points.keys() >= {*item.operands} or graph.types[results[0]].dtype is not kind.dtype:
            return biased
        found = _at_points(item, [at_points[it] for it in item.operands])
        if found is None:
            return biased
        at_points[results[0]] = found
        if not waiting and (name := _name_of(found)):
            return replace(biased, values=(*biased.values[:-1], *at_points), activation=name)
        waiting |= {*graph.readers[results[0]]}
    return biased


def _at_points(item: Node, operands: Sequence[Any]) -> Any:
    """The values of an op; None of one that is no function of its operands alone, or has cases."""
    if item.op in RESHAPES:
        return operands[0]
    record = record_of(item.op)
    if record is None or record.numbers is None or record.indicator or record.conditions or record.dtype:
        return None
    return _numbers(record, operands, **item.mapping)


def _numbers(record: ElementwiseOp, operands: Sequence[Any], **attributes: Any) -> Any:
    import numpy as np

    assert record.numbers is not None
    with np.errstate(all="ignore"):
        return record.numbers(np, *operands, **attributes)


def _name_of(values: Any) -> str:
    """The activation that has these values at the points; "" of another function."""
    import numpy as np

    points = np.array(_POINTS)
    alike = (op.name for op in _ACTIVATIONS if (abs(values - _numbers(op, [points])) <= _EXACT * abs(points)).all())
    return next(alike, "")
