"""Checks custom ops before a search: the Triton and torch expressions must compute the same function as `numbers`.

Both run in Triton's interpreter, which needs torch; without torch they are used unchecked, and a note says so.
"""

from importlib.util import find_spec
from typing import Any

import numpy as np

from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import InterpreterError, RunProgram, interpreter
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.custom_ops import REGISTRY, OpSpec
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.threadblock_graph import new_threadblock_graph

_SHAPE = (16, 64)
_TOLERANCE = 1e-4  # of the value; a wrong formula is further off
_NEAR_ZERO = 1e-5  # of the largest value for inputs up to 1: what float32 loses by cancellation
_FLOAT32_FACTOR = 100  # times the error of `numbers` itself in float32


def check_custom_ops() -> list[str]:
    """Check all custom ops, each once in a process; returns a note for those that could not be checked.

    Raises:
        GraphError: an expression fails, or its values differ from those of `numbers`.
    """
    unchecked = [op for op in REGISTRY.values() if op not in _CHECKED]
    if not unchecked:
        return []
    if find_spec("torch") is None:
        names = ", ".join(op.name for op in unchecked)
        return [f"{names}: the Triton and torch expressions were not compared with `numbers`: torch is not installed"]
    with interpreter() as run:
        for op in unchecked:
            _check(op, run)
            _CHECKED.add(op)
    return []


_CHECKED: set[OpSpec] = set()


def _check(op: OpSpec, run: RunProgram) -> None:
    x = _inputs()
    with np.errstate(all="ignore"):
        wanted = np.asarray(op.numbers(np, x), dtype=np.float64)
        rough = np.asarray(op.numbers(np, x.astype(np.float32)), dtype=np.float64)
    compared = np.isfinite(wanted) & np.isfinite(rough)
    if not compared.any():
        raise GraphError(f"register_op: {op.name}: `numbers` gives no finite value for inputs between -16 and 16")
    unit = np.abs(wanted[compared & (np.abs(x) <= 1)]).max(initial=0)
    allowed = _TOLERANCE * np.abs(wanted) + _NEAR_ZERO * unit + _FLOAT32_FACTOR * np.abs(rough - wanted)
    for language, text, graph in (
        ("Triton", op.triton, _kernel_program(op.name)),
        ("torch", op.torch, _library_program(op.name)),
    ):
        label = f"register_op: {op.name}: the {language} expression {text!r}"
        try:
            [got] = run(emit(graph), [x])
        except InterpreterError as error:
            raise GraphError(f"{label} fails: {str(error).strip().splitlines()[-1]}") from None
        with np.errstate(all="ignore"):
            wrong = compared & ~(np.abs(got - wanted) <= allowed)
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0])
            raise GraphError(f"{label} gives {got[at]:.6g} at x = {x[at]:.6g}, where `numbers` gives {wanted[at]:.6g}")


def _inputs() -> Any:
    """Random float32 numbers of both signs: 0, ±1, magnitudes from 10⁻³ to 16."""
    random = np.random.default_rng(0)
    values = random.choice([-1.0, 1.0], _SHAPE) * 10 ** random.uniform(-3, np.log10(16), _SHAPE)
    values[0, :3] = 1, -1, 0
    return values.astype(np.float32).astype(np.float64)


def _kernel_program(name: str) -> Graph:
    kernel, block = new_kernel_graph(), new_threadblock_graph((1,))
    x = kernel.new_input(_SHAPE, "float32", "x")
    block.new_output(block.op(name, block.new_input(x, (REPLICATED,))), (REPLICATED,))
    kernel.customized([x], block)
    return kernel.graph()


def _library_program(name: str) -> Graph:
    kernel = new_kernel_graph()
    kernel.mark_output(kernel.op(name, kernel.new_input(_SHAPE, "float32", "x")))
    return kernel.graph()


__all__ = ["check_custom_ops"]
