"""Models of a few nodes, computed by onnx's reference evaluator, or by onnxruntime where that is installed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mirage_eg.frontend.onnx_types import DOMAINS, is_complete, shape_of
from mirage_eg.ir.errors import ProgramError

_OF_CELLS = frozenset({"activations", "clip", "input_forget", "sequence_lens"})
WRONG_IN_REFERENCE: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _OF_CELLS),
    "LpPool": frozenset({"ceil_mode"}),
    "LRN": frozenset({"size"}),
}
"""Operators that onnx's reference evaluator computes differently from their definition with one of these attributes or inputs
(onnx 1.23.2): onnxruntime alone computes them."""
_IN_PART = frozenset({"If", "Loop", "Scan"})  # the reference evaluator lacks some of their types
# What the reference evaluator raises for an operator, an attribute, a type or a library that it lacks: it is written in Python.
_LACKS = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError),
    *(LookupError, NotImplementedError, RuntimeError, TypeError, ValueError),
)


def computed(model: Any, feeds: Mapping[str, Any]) -> list[Any]:
    """The results of a model for NumPy arrays, lists of arrays or None, by the first evaluator that has all of its operators.

    Raises ProgramError: no evaluator has, or both fail on these values.
    """
    evaluators = [_by_reference, _by_onnxruntime]
    if any(node.op_type in _IN_PART for node in model.graph.node):
        evaluators.reverse()
    if any(map(_is_wrong_in_reference, model.graph.node)):
        evaluators = [_by_onnxruntime]
    failures = []
    for evaluator in evaluators:
        try:
            return _of_declared_shapes(model, evaluator(model, feeds))
        except _LACKS as error:
            failures.append(error)
    operators = ", ".join(dict.fromkeys(operator_name(node) for node in model.graph.node))
    given = ", ".join(f"{name}: {_described(it)}" for name, it in feeds.items()) or "no operands"
    missing = "".join(f": {error}" for error in failures if isinstance(error, ImportError))
    raise ProgramError(
        f"ONNX: neither onnx's reference evaluator nor onnxruntime computes {operators[:200]} for {given[:200]}{missing}"
    ) from failures[0]


def _is_wrong_in_reference(node: Any) -> bool:
    wrong = WRONG_IN_REFERENCE.get(node.op_type, frozenset()) if node.domain in DOMAINS else frozenset()
    if not wrong:
        return False
    from onnx.defs import get_schema

    inputs = zip(get_schema(node.op_type).inputs, node.input, strict=False)
    return not wrong.isdisjoint({*(it.name for it in node.attribute), *(it.name for it, given in inputs if given)})


def operator_name(node: Any) -> str:
    """The name of a node's operator, with its domain if that is not ONNX's."""
    return f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else str(node.op_type)


def _by_reference(model: Any, feeds: Mapping[str, Any]) -> Sequence[Any]:
    from onnx.reference import ReferenceEvaluator

    results: Sequence[Any] = ReferenceEvaluator(model).run(None, dict(feeds))
    return results


def _by_onnxruntime(model: Any, feeds: Mapping[str, Any]) -> Sequence[Any]:
    try:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as states
    except ImportError:
        raise ImportError("onnxruntime is not installed, try: pip install onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        results: Sequence[Any] = session.run(None, dict(feeds))
    except (states.Fail, states.InvalidArgument, states.InvalidGraph, states.NotImplemented, states.RuntimeException) as error:
        raise NotImplementedError(str(error)) from None
    return results


def _of_declared_shapes(model: Any, found: Sequence[Any]) -> list[Any]:
    results = [np.asarray(it) if isinstance(it, np.generic | int | float | bool | str) else it for it in found]
    for it, value in zip(model.graph.output, results, strict=True):
        if is_complete(it.type) and value.shape != shape_of(it.type):
            raise ValueError(f"{it.name} has the shape {value.shape}, wanted {shape_of(it.type)}")
    return results


def _described(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
