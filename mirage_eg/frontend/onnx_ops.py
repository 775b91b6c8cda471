"""The ONNX operators that import knows: one function of torch for each, by its name. (https://onnx.ai/onnx/operators)

An attribute or input that a function does not name is refused, so that none is ignored.
"""

from collections.abc import Mapping

from mirage_eg.frontend import onnx_elementwise, onnx_layers, onnx_rearrangements
from mirage_eg.frontend.onnx_values import Operator

OPERATORS: Mapping[str, Operator] = {
    **onnx_elementwise.OPERATORS,
    **onnx_layers.OPERATORS,
    **onnx_rearrangements.OPERATORS,
}
FIRST_RESULT_ALONE = frozenset(
    {"LayerNormalization", "BatchNormalization", "Attention", "MaxPool", "Dropout", "RMSNormalization"}
)
"""Operators of which only the first result is supported."""
