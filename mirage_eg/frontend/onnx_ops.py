"""The ONNX operators that import knows: one function of torch for each, by its name. (https://onnx.ai/onnx/operators)

An attribute or input that a function does not name is refused, so that none is ignored.
"""

from collections.abc import Mapping

from mirage_eg.frontend import onnx_elementwise, onnx_layers, onnx_rearrangements, onnx_windows
from mirage_eg.frontend.onnx_values import Operator

OPERATORS: Mapping[str, Operator] = {
    **onnx_elementwise.OPERATORS,
    **onnx_layers.OPERATORS,
    **onnx_rearrangements.OPERATORS,
    **onnx_windows.OPERATORS,
}
FIRST_RESULT_ALONE = frozenset(
    {"LayerNormalization", "BatchNormalization", "Attention", "MaxPool", "Dropout", "RMSNormalization"}
)
"""Operators of which only the first result is supported."""
WITHOUT_INFLUENCE = frozenset({"momentum", "seed", "storage_order"})
"""Attributes that change no result of inference."""

NEUTRAL: Mapping[str, object] = {
    "auto_pad": "NOTSET",
    "exclusive": 0,
    "qk_matmul_output_mode": 0,
    "reduction": "none",
    "reverse": 0,
    "round_mode": "up",
    "saturate": 1,
    "select_last_index": 0,
    "softcap": 0.0,
    "softmax_precision": 1,
    "stash_type": 1,
    "training_mode": 0,
}
"""Attributes of which one value alone is supported, which the functions do not name."""
