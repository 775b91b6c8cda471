"""Checks custom ops before they are used: each given expression must compute the same function as the definition.

Triton expressions run in Triton's interpreter, torch expressions on the CPU; both need torch. Without torch they are used
unchecked, and a note says so. The reference is the definition of the op in other ops, or `numbers`.
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import reduce
from importlib.util import find_spec
from itertools import product
from math import prod
from typing import Any

import mpmath
import numpy as np

from mirage_eg.backends.evaluator import floating_point, mpmath_ops
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import InterpreterError, RunProgram, interpreter
from mirage_eg.frontend.custom_op import sample_attributes
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.op.elementwise import REGISTRY
from mirage_eg.ir.op.record import ElementwiseOp
from mirage_eg.ir.threadblock_graph import new_threadblock_graph

_SHAPE = (128, 128)
_EDGES = (0.0, 1.0, -1.0, 1e-6, -1e-6, 30.0, -30.0, 100.0, -100.0, 1e4, -1e4, 1e6, -1e6)
_GRID = 16.0  # the numbers of a fine grid are up to so large
_TOLERANCE = 1e-4  # of the value; a wrong formula is further off
_NEAR_ZERO = 1e-5  # of the largest value for inputs up to 1: what float32 loses by cancellation
_FLOAT32_FACTOR = 100  # times the error of the reference itself in float32
_EXACT_TOLERANCE = 1e-9  # of `exactly`, which is compared with float64
_EXACT_SAMPLES = 256

Setting = tuple[ElementwiseOp, tuple[tuple[str, Fraction], ...]]  # an op with values of its attributes
Array = Any


def check_custom_ops(program: Graph | None = None) -> list[str]:
    """Check all custom ops, each once in a process; returns a note for those that could not be checked.

    An op with attributes is checked for the values of `program`, and for sample values.

    Raises GraphError: an expression fails, or its values differ from those of the definition.
    """
    settings = [setting for setting in _settings(program) if setting not in _CHECKED]
    for setting in settings:
        if setting[0].exactly is not None:
            _check_exact(*setting)
    unchecked = [setting for setting in settings if setting[0].triton is not None or setting[0].torch is not None]
    if unchecked and find_spec("torch") is None:
        names = ", ".join(dict.fromkeys(spec.name for spec, _ in unchecked))
        return [f"{names}: the Triton and torch expressions were not compared with the definition: torch is not installed"]
    if unchecked:
        with interpreter() as run:
            for spec, attributes in unchecked:
                _check(spec, dict(attributes), run)
    _CHECKED.update(settings)
    return []


_CHECKED: set[Setting] = set()


def _settings(program: Graph | None) -> list[Setting]:
    used: dict[str, list[dict[str, Any]]] = {}
    for item in () if program is None else program.nodes:
        if item.op in REGISTRY and item.attributes:
            used.setdefault(item.op, []).append(item.mapping)
    given = [(spec, values) for spec in REGISTRY.values() for values in (*sample_attributes(spec), *used.get(spec.name, ()))]
    return list(dict.fromkeys((spec, tuple(sorted(values.items()))) for spec, values in given))


def _check(spec: ElementwiseOp, attributes: Mapping[str, Fraction], run: RunProgram) -> None:
    operands = _inputs(spec.arity)
    wanted, rough = (_reference(spec, attributes, [x.astype(dtype) for x in operands]) for dtype in (np.float64, np.float32))
    compared = np.isfinite(wanted) & np.isfinite(rough)
    reference = "`numbers`" if spec.definition is None else "the definition"
    if not compared.any():
        if attributes:
            return  # no values that the op allows
        raise GraphError(f"register_op: {spec.name}: {reference} gives no finite value for inputs between -16 and 16")
    near = reduce(np.logical_and, [np.abs(x) <= 1 for x in operands])
    unit = np.abs(wanted[compared & near]).max(initial=0)
    with np.errstate(all="ignore"):
        allowed = _TOLERANCE * np.abs(wanted) + _NEAR_ZERO * unit + _FLOAT32_FACTOR * np.abs(rough - wanted)
    for language, text, graph in (
        ("Triton", spec.triton, _kernel_program(spec, attributes)),
        ("torch", spec.torch, _library_program(spec, attributes)),
    ):
        if text is None:
            continue
        label = f"register_op: {spec.name}: the {language} expression {text!r}"
        try:
            [got] = run(emit(graph), operands)
        except InterpreterError as error:
            raise GraphError(f"{label} fails: {str(error).strip().splitlines()[-1]}") from None
        with np.errstate(all="ignore"):
            wrong = compared & ~(np.abs(got - wanted) <= allowed)
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0])
            place = _place(spec, [x[at] for x in operands], attributes)
            raise GraphError(f"{label} gives {got[at]:.6g} at {place}, where {reference} gives {wanted[at]:.6g}")


def _check_exact(spec: ElementwiseOp, attributes: tuple[tuple[str, Fraction], ...]) -> None:
    """Compare `exactly` with `numbers`."""
    given = dict(attributes)
    every = np.r_[:_EXACT_SAMPLES, _EXACT_SAMPLES : prod(_SHAPE) : prod(_SHAPE) // _EXACT_SAMPLES]  # edges are first
    operands = [x.ravel()[every] for x in _inputs(spec.arity)]
    wanted = _reference(spec, given, operands)
    for place in np.flatnonzero(np.isfinite(wanted)):
        numbers = [float(x[place]) for x in operands]
        try:
            got = mpmath_ops.ELEMENTWISE[spec.name](*map(mpmath.mpf, numbers), **given)
        except (ArithmeticError, ValueError):
            got = mpmath.nan  # undefined, where numbers round to something finite
        if mpmath.isfinite(got) and abs(got - wanted[place]) > _EXACT_TOLERANCE * max(1, abs(got)):
            where = _place(spec, numbers, given)
            raise GraphError(
                f"register_op: {spec.name}: `exactly` gives {float(got.real):.6g} at {where}, where `numbers` gives "
                f"{wanted[place]:.6g}"
            )


def _reference(spec: ElementwiseOp, attributes: Mapping[str, Fraction], operands: list[Array]) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(floating_point.ELEMENTWISE[spec.name](np, *operands, **attributes), dtype=np.float64)


def _place(spec: ElementwiseOp, numbers: list[Any], attributes: Mapping[str, Fraction]) -> str:
    places = [f"{name} = {number:.6g}" for name, number in zip(spec.operands, numbers, strict=True)]
    return ", ".join([*places, *(f"{name} = {value}" for name, value in attributes.items())])


def _inputs(arity: int) -> list[Array]:
    """For each operand float32 numbers of both signs: a fine grid, magnitudes from 10⁻³ to 10⁶, and the edges in combination.

    Of several operands each has the grid in an order of its own.
    """
    random = np.random.default_rng(0)
    count = prod(_SHAPE)
    operands = random.choice([-1.0, 1.0], (arity, count)) * 10 ** random.uniform(-3, 6, (arity, count))
    grid = np.linspace(-_GRID, _GRID, count // 2)
    for operand in range(arity):
        operands[operand, count // 2 :] = grid if arity == 1 else random.permutation(grid)
    combinations = list(product(_EDGES, repeat=arity))
    edges = np.array(combinations[:: -(-len(combinations) // (count // 2))]).T
    operands[:, 1 : 1 + edges.shape[1]] = edges
    operands[:, 0] = 1
    return [x.reshape(_SHAPE).astype(np.float32).astype(np.float64) for x in operands]


def _kernel_program(spec: ElementwiseOp, attributes: Mapping[str, Fraction]) -> Graph:
    kernel, block = new_kernel_graph(), new_threadblock_graph((1,))
    operands = [kernel.new_input(_SHAPE, "float32", name) for name in spec.operands]
    tiles = [block.new_input(x, (REPLICATED,)) for x in operands]
    block.new_output(block.op(spec.name, *tiles, **attributes), (REPLICATED,))
    kernel.customized(operands, block)
    return kernel.graph()


def _library_program(spec: ElementwiseOp, attributes: Mapping[str, Fraction]) -> Graph:
    kernel = new_kernel_graph()
    operands = (kernel.new_input(_SHAPE, "float32", name) for name in spec.operands)
    kernel.mark_output(kernel.op(spec.name, *operands, **attributes))
    return kernel.graph()
