"""The op table of the emitter: each op in PyTorch, and the elementwise ones in Triton, by their records.

Nothing here is trusted: emitted kernels are checked against float64.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from mirage_eg.backends.triton.cluster_helpers import CLUSTER_HELPERS
from mirage_eg.backends.triton.field_helpers import FIELD_HELPERS
from mirage_eg.backends.triton.product_helpers import PRODUCT_HELPERS
from mirage_eg.ir.definitions import by_definition, definition_of
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.node import Node
from mirage_eg.ir.op import selections
from mirage_eg.ir.op.elementwise import PACKAGED, REGISTRY, elementwise_table
from mirage_eg.ir.op.literals import number
from mirage_eg.ir.op.record import OPERANDS, ElementwiseOp, Helper, holds
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.shapes import Attributes

Write = Callable[[Sequence[str], Attributes], str]


@dataclass(frozen=True, slots=True)
class ElementwiseRow:
    """One op as source text, and its effect on the padding of a tile.

    `keeps_zero`: zero in gives zero out (of binary ops: zero in all operands). `bounded`: finite in gives finite out, overflow
    aside. `helpers` are the functions that the Triton expression calls; `noun` names the result in emitted
    kernels.
    """

    noun: str
    triton: Write
    torch: Write
    keeps_zero: Callable[[Attributes], bool]
    bounded: bool
    helpers: tuple[Helper, ...]


def torch_attributes(item: Node, dtype: DType) -> Attributes:
    """The attributes of a node for `torch_call`: ints among integers, whose type torch would change for a float."""
    if not dtype.is_integer:
        return item.mapping
    return {key: int(value) if isinstance(value, Fraction) else value for key, value in item.attributes}


def triton_attributes(item: Node, dtype: DType) -> Attributes:
    """As `torch_attributes`, for Triton, which computes in float32 where an operand is a float; bounds are those of int64."""
    given = torch_attributes(item, dtype)
    return {key: max(-_INT64, min(value, _INT64)) if type(value) is int else value for key, value in given.items()}


_INT64 = (1 << 63) - 1


def torch_text(
    item: Node, operands: Sequence[str], dtype: DType, attributes: Attributes, shapes: Sequence[tuple[int, ...]]
) -> str:
    """The PyTorch expression of a node with this element type; on a GPU torch has products of integers in float64 alone."""
    if item.kind is not Kind.MATMUL or not dtype.is_integer:
        return torch_call(item.op, operands, attributes, shapes)
    return f"{torch_call(item.op, [f'{x}.double()' for x in operands], attributes, shapes)}.to(torch.{dtype})"


def triton_type(dtype: DType) -> str:
    return f"tl.{_TRITON_NAMES.get(dtype, dtype)}"


_TRITON_NAMES = {
    DType.bool: "int1",
    DType.float8_e4m3fn: "float8e4nv",
    DType.float8_e5m2: "float8e5",
    DType.float8_e8m0fnu: "uint8",
}


def _write(expression: str | Callable[..., str]) -> Write:
    if not isinstance(expression, str):
        return lambda x, attributes: expression(*x, **attributes)
    return lambda x, attributes: expression.format(
        **dict(zip(OPERANDS, x, strict=False)), **{name: number(value) for name, value in attributes.items()}
    )


def _derived(op: ElementwiseOp) -> ElementwiseRow:
    """An op without a Triton expression is written out before kernels are emitted; its torch expression is nested calls."""
    if op.keeps_zero is None:
        keeps_zero = partial(_keeps_zero, op.name, op.arity)
    else:
        keeps_zero = partial(holds, value=op.keeps_zero)
    return ElementwiseRow(
        noun=op.noun or op.name,
        triton=_written_out if op.triton is None else _write(op.triton),
        torch=partial(_torch_by_definition, op.name) if op.torch is None else _write(op.torch),
        keeps_zero=keeps_zero,
        bounded=op.bounded,
        helpers=op.helpers,
    )


def _keeps_zero(name: str, arity: int, attributes: Attributes) -> bool:
    import mpmath  # here: a result from the cache is printed without it

    from mirage_eg.backends.evaluator import mpmath_ops

    try:
        return bool(mpmath_ops.ELEMENTWISE[name](*[mpmath.mpf(0)] * arity, **attributes) == 0)
    except ZeroDivisionError:
        return False


def _written_out(x: Sequence[str], attributes: Attributes) -> str:
    raise AssertionError("an op without a Triton expression is replaced by its definition before kernels are emitted")


def _torch_by_definition(name: str, x: Sequence[str], attributes: Attributes) -> str:
    definition = definition_of(name, attributes)
    assert definition is not None
    return by_definition(definition, x, lambda op, *parts, **given: f"({ELEMENTWISE[op].torch(parts, given)})")


ELEMENTWISE = elementwise_table(_derived)
PACKAGED_HELPERS: Mapping[str, str] = {
    **FIELD_HELPERS,
    **CLUSTER_HELPERS,
    **PRODUCT_HELPERS,
    **dict(helper for op in PACKAGED.values() for helper in op.helpers),
}
NAN_MAX, _ = selections.NAN_MAX  # the helper by which maxima are taken, reductions too


def helper_source(name: str) -> str:
    """The source of a function that Triton expressions call."""
    if name in PACKAGED_HELPERS:
        return PACKAGED_HELPERS[name]
    return next(source for op in REGISTRY.values() for helper, source in op.helpers if helper == name)


def helper_names() -> frozenset[str]:
    """The names of all functions that Triton expressions may call."""
    return frozenset(PACKAGED_HELPERS).union(name for op in REGISTRY.values() for name, _ in op.helpers)


def torch_call(name: str, x: Sequence[str], attributes: Attributes, shapes: Sequence[tuple[int, ...]]) -> str:
    """The PyTorch expression of any op of the kernel level except `block`; `shapes` are those of the operands."""
    if name in ELEMENTWISE:
        return ELEMENTWISE[name].torch(x, attributes)
    call = OPS[name].call
    assert call is not None
    return call(x, attributes, shapes)
