"""The ONNX operators that import knows: one function of torch for each, by its name. (https://onnx.ai/onnx/operators)

A node with an attribute or input that its function does not name is computed otherwise, so that none is ignored.
"""

from collections.abc import Mapping

from mirage_eg.frontend import (
    onnx_elementwise,
    onnx_layers,
    onnx_older,
    onnx_quantization,
    onnx_random,
    onnx_rearrangements,
    onnx_resize,
    onnx_windows,
)
from mirage_eg.frontend.onnx_values import Operator

_TABLES = (onnx_elementwise, onnx_layers, onnx_quantization, onnx_random, onnx_rearrangements, onnx_resize, onnx_windows)
OPERATORS: Mapping[str, Operator] = {name: operator for table in _TABLES for name, operator in table.OPERATORS.items()}
OLDER: Mapping[str, tuple[int, Operator]] = {**onnx_older.OPERATORS, **onnx_resize.OLDER}
"""Operators that once had another meaning, with the opset before which they have it."""
RANDOM = frozenset(onnx_random.OPERATORS)
"""Operators whose results differ from call to call."""
WITHOUT_INFLUENCE = frozenset({"broadcast", "consumed_inputs", "momentum", "seed", "storage_order"})
"""Attributes that change no result that a function here computes."""
