"""Symbolic sizes of torch as named dims of a program, read off their expressions: no guard is added, no size becomes a number.

The symbols of one ShapeEnv are called n0, n1, … in the order in which import meets them: equal regions are equal programs.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import add, mul
from typing import Any
from weakref import WeakKeyDictionary

from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.sizes import Dim, SizeExpression

Extent = Any  # int or torch.SymInt
_DIMS: WeakKeyDictionary[Any, dict[Any, Dim]] = WeakKeyDictionary()  # of the symbols of a ShapeEnv


def is_size(value: object) -> bool:
    """Whether a value is a SymInt of torch."""
    return type(value).__name__ == "SymInt"


def extent_of(extent: Extent) -> int:
    """An extent as the IR has it: an int, which carries an expression of named dims if the extent is symbolic.

    Raises UnsupportedError: an expression with more than products and sums, or a range without sizes of at least 2.
    """
    return extent if type(extent) is int else _size(extent.node.expr, extent.node.shape_env)


def _size(expression: Any, env: Any) -> int:
    if expression.is_Integer and expression >= 0:
        return int(expression)
    if expression.is_Symbol:
        return _dim(expression, env)
    power = expression.is_Pow and expression.exp.is_Integer and 1 < expression.exp < 5
    if not (expression.is_Mul or expression.is_Add or power):
        raise UnsupportedError(f"got the symbolic extent {expression}, wanted products and sums of sizes")
    parts = [_size(expression.base, env)] * int(expression.exp) if power else [_size(part, env) for part in expression.args]
    result: int = reduce(add if expression.is_Add else mul, parts)
    return result


def _dim(symbol: Any, env: Any) -> Dim:
    """The dim of a symbol. Sizes 0 and 1 are not in its range: a dim of extent 1 is no axis."""
    known = _DIMS.setdefault(env, {})
    if symbol not in known:
        values = env.var_to_range.get(symbol)
        least = 2 if values is None or not values.lower.is_Integer else max(2, int(values.lower))
        largest = None if values is None or not values.upper.is_Integer or values.upper > 1 << 20 else int(values.upper)
        if largest is not None and largest < least:
            raise UnsupportedError(f"got the size {symbol} from {values.lower} to {values.upper}, wanted sizes of at least 2")
        used, number = {dim.hint for dim in known.values()}, 0
        taken = {dim.name for dim in known.values()}
        while (dim := Dim(f"n{number}", min=least, max=largest)).name in taken or (dim.hint in used and number < 100):
            number += 1
        known[symbol] = dim
    return known[symbol]


NAMED = "mirage_eg_named_dims"  # of a node's meta: its shape, or shapes, or size with named dims


def name_dims(graph: Any) -> None:
    """Note at each node with symbolic sizes its shape with named dims; a node without the note stays outside.

    Attention has as many keys as values: two symbols that differ in nothing else are one dim.
    """
    for node in graph.nodes:
        if "scaled_dot_product" in str(node.target):
            _unify(*(operand.meta["val"].shape[-2] for operand in node.args[1:3]))
    for node in graph.nodes:
        value = node.meta.get("val")
        several = value if isinstance(value, (list, tuple)) else [value]
        try:
            shapes = tuple(extent_of(it) if is_size(it) else tuple(map(extent_of, getattr(it, "shape", ()))) for it in several)
        except UnsupportedError:
            continue
        if any(
            isinstance(extent, SizeExpression) for shape in shapes for extent in (shape if type(shape) is tuple else [shape])
        ):
            node.meta[NAMED] = shapes if isinstance(value, (list, tuple)) else shapes[0]


def _unify(one: Extent, other: Extent) -> None:
    """Give the symbols in which two extents differ one dim, if they are two of one range: equal extents follow from it."""
    if type(one) is int or type(other) is int:
        return
    env = one.node.shape_env
    difference = (one.node.expr - other.node.expr).expand()
    symbols = sorted(difference.free_symbols, key=str)
    if len(symbols) == 2 and difference in (symbols[0] - symbols[1], symbols[1] - symbols[0]):
        known, ranges = _DIMS.setdefault(env, {}), [env.var_to_range.get(symbol) for symbol in symbols]
        if ranges[0] == ranges[1] and symbols[1] not in known:
            with suppress(UnsupportedError):
                known[symbols[1]] = _dim(symbols[0], env)


def number_at(extent: Extent, sizes: Mapping[str, int]) -> int:
    """An extent or stride at these sizes of the named dims."""
    if type(extent) is int:
        return extent
    dims = _DIMS.get(extent.node.shape_env, {})
    expression = extent.node.expr
    return int(expression.subs({symbol: sizes[dims[symbol].name] for symbol in expression.free_symbols}))


def strides_at(tensor: Any, sizes: Mapping[str, int]) -> list[int] | None:
    """The strides of a tensor at these sizes; None if one has another symbol, as in a slice of a wider tensor."""
    for stride in tensor.stride():
        dims = () if type(stride) is int else map(_DIMS.get(stride.node.shape_env, {}).get, stride.node.expr.free_symbols)
        if any(dim is None or dim.name not in sizes for dim in dims):
            return None
    return [number_at(stride, sizes) for stride in tensor.stride()]


def hinted_sizes(extents: Sequence[Extent]) -> dict[str, int]:
    """The sizes of named dims in the example of torch, where it has one."""
    found: dict[str, int] = {}
    for extent in extents:
        if type(extent) is not int and extent.node.expr.is_Symbol and extent.node.has_hint():
            dim = _DIMS.get(extent.node.shape_env, {}).get(extent.node.expr)
            if dim is not None:
                found[dim.name] = int(extent.node.hint)
    return found


def is_row_major(tensor: Any) -> bool:
    """Whether a tensor has dense row-major strides at all sizes; dims of extent 1 may have any."""
    import sympy

    def expression(extent: Extent) -> Any:
        return sympy.Integer(extent) if type(extent) is int else extent.node.expr

    step = sympy.Integer(1)
    for extent, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if expression(extent) == 1:
            continue
        if sympy.expand(expression(stride) - step) != 0:
            return False
        step *= expression(extent)
    return True
