"""GELU written with Erf, as exporters write it before opset 20, becomes one node of the operator Gelu."""

from math import isclose, prod, sqrt
from typing import Any, NamedTuple

from onnx import helper, numpy_helper

from mirage_eg.frontend.onnx_expansion import with_readers

_TOLERANCE = 1e-3  # of constants in float16


class _Scaled(NamedTuple):
    """A value as a number times another value."""

    factor: float
    value: str


def with_gelu(graph: Any) -> list[Any]:
    """The nodes of an onnx.GraphProto with each x · (1 + erf(x/√2)) / 2 replaced; nodes without readers are dropped."""
    nodes, found = list(graph.node), _Values(graph)
    for node in graph.node:
        if node.op_type == "Erf" and (match := found.gelu_around(node)) is not None:
            last, x = match
            nodes[nodes.index(last)] = helper.make_node("Gelu", [x], list(last.output))
    return with_readers(nodes, {it.name for it in graph.output})


class _Values:
    """The producers and readers of the values of a graph, and the values that are constant numbers."""

    def __init__(self, graph: Any) -> None:
        self.producer = {name: node for node in graph.node for name in node.output}
        self.readers: dict[str, list[Any]] = {}
        for node in graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        tensors = {it.name: it for it in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                tensors[node.output[0]] = helper.get_attribute_value(node.attribute[0])
        arrays = {name: numpy_helper.to_array(it) for name, it in tensors.items() if prod(it.dims) == 1}
        self.numbers = {name: float(it.item()) for name, it in arrays.items() if it.dtype.kind not in "bOSTU"}

    def gelu_around(self, erf: Any) -> tuple[Any, str] | None:
        """The last node of a GELU with this Erf, and the value that it is of."""
        inner = self._scaled(erf.input[0])
        if not isclose(inner.factor, 1 / sqrt(2), rel_tol=_TOLERANCE):
            return None
        node = self._only_reader(erf.output[0], "Add")
        if node is None or [self.numbers.get(name) for name in node.input if name != erf.output[0]] != [1.0]:
            return None
        factor, read = 1.0, False
        while (after := self._only_reader(node.output[0], "Mul", "Div")) is not None:
            [other] = [name for name in after.input if name != node.output[0]] or [""]
            if after.op_type == "Div" and (after.input[0] != node.output[0] or other not in self.numbers):
                return None
            if other in self.numbers:
                factor *= self.numbers[other] if after.op_type == "Mul" else 1 / self.numbers[other]
            else:
                scaled = self._scaled(other)
                if read or scaled.value != inner.value:
                    return None
                factor, read = factor * scaled.factor, True
            node = after
            if read and isclose(factor, 0.5, rel_tol=_TOLERANCE):
                return node, inner.value
        return None

    def _scaled(self, name: str) -> _Scaled:
        node = self.producer.get(name)
        if node is not None and node.op_type in ("Mul", "Div"):
            x, y = node.input
            if y in self.numbers:
                return _Scaled(self.numbers[y] if node.op_type == "Mul" else 1 / self.numbers[y], x)
            if node.op_type == "Mul" and x in self.numbers:
                return _Scaled(self.numbers[x], y)
        return _Scaled(1.0, name)

    def _only_reader(self, name: str, *ops: str) -> Any:
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 and readers[0].op_type in ops else None
