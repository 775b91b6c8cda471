"""ONNX's conformance suite, in the wheel of onnx: its cases, and the outcome of each, compared as onnx's own tests do.

Results of float16 may differ by two units in the last place, as onnx's tests allow for bfloat16.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from glob import glob
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from mirage_eg.frontend.onnx_import import import_model
from mirage_eg.frontend.onnx_values import array
from mirage_eg.ir.errors import MirageError

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
RANDOM = frozenset(
    {
        *(f"test_bernoulli{kind}{form}" for kind in ("", "_double", "_seed") for form in ("", "_expanded")),
        *("test_training_dropout_default", "test_training_dropout_default_mask", "test_training_dropout"),
        "test_training_dropout_mask",
    }
)
"""Cases of random results: shapes and types are compared alone."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case: `inside`, `outside`, `constant`, `refused`, `wrong` or `crash`, and why."""

    result: str
    reason: str = ""


@cache
def cases() -> dict[str, Any]:
    """All cases by name, in order of their names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [case for kind in KINDS for case in load_model_tests(kind=kind)]
    return {case.name: case for case in sorted(found, key=lambda case: case.name)}


def model_of(case: Any) -> Any:
    """The model of a case."""
    return case.model if case.model is not None else onnx.load(f"{case.model_dir}/model.onnx")


def data_sets(case: Any) -> Iterator[tuple[list[Any], list[Any]]]:
    """Inputs and results of a case."""
    if case.model is not None:
        for given, wanted in case.data_sets:
            yield [_array(it) for it in given], [_array(it) for it in wanted]
        return
    model, runner = model_of(case), object.__new__(Runner)
    for folder in sorted(glob(f"{case.model_dir}/test_data_set*")):
        both: list[list[Any]] = []
        for kind, declared in (("input", model.graph.input), ("output", model.graph.output)):
            values: list[Any] = []
            for place in range(len(glob(f"{folder}/{kind}_*.pb"))):
                runner._load_proto(f"{folder}/{kind}_{place}.pb", values, declared[place].type)
            both.append(values)
        yield both[0], both[1]


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def outcome(case: Any, kept: int | None = None) -> Outcome:
    """Import the model of a case, run it and compare; an unexpected exception is a crash.

    With `kept` all inputs but so many are initializers, and the first data set alone is compared.
    """
    try:
        model, sets = model_of(case), list(data_sets(case))
        if kept is not None:
            model, sets = with_constants(model, sets[0][0], kept), [(sets[0][0][:kept], sets[0][1])]
        found = import_model(model)
        for given, wanted in sets:
            got = [_numpy(it) for it in found.run(*given)]
            if case.name in RANDOM:
                got = [np.where(True, right, it).astype(it.dtype) for it, right in zip(got, wanted, strict=True)]
            _compare(wanted, got, case)
    except AssertionError as error:
        return Outcome("wrong", _line(error))
    except MirageError as error:
        return Outcome("refused", str(error))
    except Exception as error:  # noqa: BLE001 - the suite counts what nobody expects
        return Outcome("crash", f"{type(error).__name__}: {_line(error)}")
    if found.outside:
        return Outcome("outside", "; ".join(dict.fromkeys(_reason(it.op, it.reason) for it in found.outside)))
    return Outcome("inside" if found.segments else "constant")


def _reason(op: str, reason: str) -> str:
    return reason if reason.startswith("no operator") else f"{op}: {reason}"


def _compare(wanted: Any, got: Any, case: Any) -> None:
    if isinstance(wanted, list | tuple):
        assert isinstance(got, list | tuple) and len(got) == len(wanted), f"got {got}, wanted {wanted}"
        for one, right in zip(got, wanted, strict=True):
            _compare(right, one, case)
    elif wanted is None:
        assert got is None, f"got {got}, wanted none"
    else:
        narrow = 2**-9 if np.asarray(wanted).dtype == np.float16 else 0.0
        Runner.assert_similar_outputs([np.asarray(wanted)], [got], max(case.rtol, narrow), case.atol)


def with_constants(model: Any, given: list[Any], kept: int) -> Any:
    """The model with all inputs but the first ones as initializers, where they are arrays."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.ir_version = max(4, made.ir_version)  # in older models an initializer is an input, too
    own = {it.name for it in model.graph.initializer}
    names = [it.name for it in model.graph.input if it.name not in own][: len(given)]
    del made.graph.input[:]
    made.graph.input.extend(it for it in model.graph.input if it.name in names[:kept])
    made.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(it), name) for name, it in zip(names[kept:], given[kept:], strict=True)
    )
    return made


def takes_arrays(case: Any) -> bool:
    """Whether each input of a case is an array."""
    return all(isinstance(it, np.ndarray | np.generic) for given, _ in data_sets(case) for it in given)


def _numpy(value: Any) -> Any:
    return [_numpy(it) for it in value] if isinstance(value, list | tuple) else array(value)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
