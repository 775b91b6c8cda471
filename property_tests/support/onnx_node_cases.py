"""The node cases of the onnx package: a model of one operator, inputs and outputs; run through our importer and evaluator."""

import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.case import node

from mirage_eg.frontend.onnx_import import import_model
from mirage_eg.frontend.onnx_values import tensor
from mirage_eg.ir.errors import ProgramError


def cases(*modules: str) -> dict[str, Any]:
    """The cases by name, of these modules of onnx or of all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in modules:
            import_module(f"{node.__name__}.{module}")
        found = node._NodeTestCases if modules else node.collect_testcases(None)
    return {case.name: case for case in sorted(found, key=lambda case: case.name)}


def with_constants(case: Any) -> Iterator[tuple[Any, dict[str, Any], list[Any]]]:
    """The model, its inputs and outputs: as it is, with all inputs but the first as initializers, with all of them."""
    given, wanted = case.data_sets[0]
    names = [it.name for it in case.model.graph.input]
    for kept in dict.fromkeys((len(names), 1, 0)):
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        del model.graph.input[:]
        model.graph.input.extend(case.model.graph.input[:kept])
        arrays = dict(zip(names, given, strict=False))
        if not all(isinstance(array, np.ndarray | np.generic) for array in arrays.values()):
            return
        constants = [onnx.numpy_helper.from_array(np.asarray(arrays[name]), name) for name in names[kept:] if name in arrays]
        model.graph.initializer.extend(constants)
        yield model, {name: arrays[name] for name in names[:kept] if name in arrays}, wanted


def outcome(case: Any) -> str:
    """`right`, `right, part with torch`, or the reason for which import refuses; a wrong result is an AssertionError."""
    reason = ""
    for model, arrays, wanted in with_constants(case):
        try:
            found = import_model(model)
        except ProgramError as error:
            assert "\n" not in str(error), f"{case.name}: {error}"
            reason = reason or str(error)
            continue
        try:
            got = found.run(**{name: tensor(np.array(array)) for name, array in arrays.items()})
        except NotImplementedError as error:  # torch on a CPU lacks unsigned integers of 16 bits and more
            return f"torch: {error}"
        for x, y in zip(got, wanted, strict=True):
            assert tuple(x.shape) == np.shape(y), f"{case.name}: shape {tuple(x.shape)}, wanted {np.shape(y)}"
            wide = [np.asarray(it, np.float64) for it in (x.double().numpy(), y)]
            tolerance = max(case.rtol, {"float16": 2e-3, "bfloat16": 2e-2}.get(str(np.asarray(y).dtype), 0.0))
            np.testing.assert_allclose(*wide, rtol=tolerance, atol=max(case.atol, 1e-6), err_msg=case.name)
        return "right" if not found.outside else "right, part with torch"
    return reason or "a value is no array of NumPy's own types"
