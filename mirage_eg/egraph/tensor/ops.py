"""The ops of kernel graphs that synthesis knows, with the values of each on arrays of whole numbers.

Values have two leading axes (terms, trials). An average is a sum here: whole numbers stay whole; the normal form has the
factor. All convolutions and poolings are `Same`: stride 1, centred odd kernel.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.ops import OPS as KERNEL_OPS
from mirage_eg.ir.ops import Kind

Array = Any


@dataclass(frozen=True, slots=True)
class TensorOp:
    """An op with fixed attributes: the ranks of its operands and its result (None: one common rank), and its values.

    `elementwise` is the op of kernel graphs that it is.
    """

    name: str
    ranks: tuple[int | None, ...]
    rank: int | None
    apply: Callable[..., Array]
    elementwise: str = ""

    @property
    def arity(self) -> int:
        """The number of operands."""
        return len(self.ranks)

    @property
    def base(self) -> str:
        """The constructor in rules/tensor."""
        return self.name.split()[0]

    @property
    def axis(self) -> int:
        """The axis of a concat or a split."""
        return int(self.name.split()[1])

    @property
    def activation(self) -> str:
        """The elementwise op that a convolution applies to its sums; empty without one."""
        [name] = self.name.split()[1:]
        return name if name in KERNEL_OPS else ""


def _taps(x: Array, height: int, width: int, fill: int) -> list[tuple[int, int, Array]]:
    """For each entry of a centred kernel: the plane moved there, with `fill` outside."""
    top, left = height // 2, width // 2
    widths = [(0, 0)] * (x.ndim - 2) + [(top, top), (left, left)]
    padded = np.pad(x, widths, constant_values=fill)
    rows, columns = x.shape[-2:]
    return [(i, j, padded[..., i : i + rows, j : j + columns]) for i in range(height) for j in range(width)]


def _conv(x: Array, w: Array) -> Array:
    terms = [np.einsum("...nchw,...oc->...nohw", moved, w[..., i, j]) for i, j, moved in _taps(x, w.shape[-2], w.shape[-1], 0)]
    return sum(terms[1:], terms[0])


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


def _pool(kind: str) -> Callable[..., Array]:
    def apply(x: Array, height: int = 3, width: int = 3) -> Array:
        if kind == "avg":
            return sum(moved for _, _, moved in _taps(x, height, width, 0))
        return np.maximum.reduce([moved for _, _, moved in _taps(x, height, width, np.iinfo(np.int64).min)])

    return apply


def _part(axis: int, second: bool) -> Callable[..., Array]:
    def apply(x: Array, position: int) -> Array:
        taken = slice(position, None) if second else slice(None, position)
        return x[(slice(None),) * (axis + 2) + (taken,)]

    return apply


def _move(base: str, axis: int) -> TensorOp:
    name = f"{base} {axis}"
    if base == "Concat":
        return TensorOp(name, (None, None), None, lambda x, y: np.concatenate((x, y), axis + 2))
    return TensorOp(name, (None,), None, _part(axis, base == "Split1"))


def enlarged(w: Array, height: int = 3, width: int = 3) -> Array:
    """A centred kernel with zeros around."""
    top, left = (height - w.shape[-2]) // 2, (width - w.shape[-1]) // 2
    return np.pad(w, [(0, 0)] * (w.ndim - 2) + [(top, top), (left, left)])


def _entrywise(name: str) -> Callable[..., Array]:
    """Any function of entries of one operand or two: random, with f(0) ≠ 0."""
    salt = sum(ord(letter) * 31**place for place, letter in enumerate(name)) % 1009
    return lambda x, y=0: (x * x * 37 + x * 11 + y * y * 23 + x * y * 5 + y * 3 + salt) % 31 - 12


def constant(name: str, shape: tuple[int, ...]) -> Array:
    """The values of a constant op; Cpool is 1 where its entries are equal, as averages are sums."""
    if name == "One":
        return np.ones(shape, np.int64)
    if name == "Imatmul":
        return np.eye(shape[0], shape[1], dtype=np.int64)
    kernel = np.zeros(shape[2:], np.int64)
    kernel[(shape[2] // 2, shape[3] // 2) if name == "Iconv" else ...] = 1
    return np.eye(shape[0], shape[1], dtype=np.int64)[:, :, None, None] * kernel


CONSTANTS: Mapping[str, int | None] = {"One": None, "Imatmul": 2, "Iconv": 4, "Cpool": 4}  # the rank
_ROWS = (
    TensorOp("Matmul", (2, 2), 2, lambda x, y: np.einsum("...mk,...kn->...mn", x, y)),
    TensorOp("Add", (None, None), None, np.add, "add"),
    TensorOp("Mul", (None, None), None, np.multiply, "mul"),
    TensorOp("Smul", (None, 0), None, lambda x, scalar: x * scalar.reshape(scalar.shape + (1,) * (x.ndim - scalar.ndim))),
    TensorOp("Conv2d none", (4, 4), 4, _conv),
    TensorOp("Conv2d relu", (4, 4), 4, lambda x, w: _relu(_conv(x, w))),
    TensorOp("AvgPool", (4,), 4, _pool("avg")),
    TensorOp("MaxPool", (4,), 4, _pool("max")),
    TensorOp("Relu", (None,), None, _relu, "relu"),
    *(_move(name, axis) for name in ("Concat", "Split0", "Split1") for axis in (0, 1)),
    TensorOp("Transpose", (2,), 2, lambda x: np.swapaxes(x, -1, -2)),
    TensorOp("Enlarge", (4,), 4, enlarged),
    *(TensorOp(name, (), rank, lambda: None) for name, rank in CONSTANTS.items()),
)
MOVES = frozenset({"Concat", "Split0", "Split1"})  # they have an axis
_FUNCTIONS = {(1, 1): "Unary", (2, 2): "Binary"}
BASES = tuple(dict.fromkeys(row.base for row in _ROWS))
ELEMENTWISE = {row.name: row.elementwise for row in _ROWS if row.elementwise}
ACTIVATIONS = tuple(row.name.split()[1] for row in _ROWS if row.base == "Conv2d")


def op(name: str) -> TensorOp:
    """The op of a name with attributes; `Unary f` and `Binary f` are the elementwise function f of one operand or two."""
    if name in _OPS:
        return _OPS[name]
    kind, function = name.split(maxsplit=1)
    if kind in MOVES:
        return _move(kind, int(function))
    return TensorOp(name, (None,) if kind == "Unary" else (None, None), None, _entrywise(function))


_OPS = {row.name: row for row in _ROWS}


def chosen_ops(names: Iterable[str]) -> tuple[TensorOp, ...]:
    """The ops of some names, in the order of the table: constructors of rules/tensor, `all`, elementwise ops.

    Raises OptionError: there is no such op.
    """
    chosen, functions = set[str](), set[str]()
    for name in names:
        simple = name.replace("_", "").lower()
        found = [base for base in BASES if simple in (base.lower(), "all") or (simple == "split" and base.startswith("Split"))]
        chosen |= set(found)
        if not found:
            row = KERNEL_OPS.get(name)
            if row is None or row.kind is not Kind.ELEMENTWISE or row.arity not in _FUNCTIONS or row.attributes:
                wanted = ", ".join(["all", *BASES])
                raise OptionError(
                    f"--ops: got {name!r}, wanted {wanted}, or an elementwise op of one operand or two, without attributes"
                )
            functions.add(f"{_FUNCTIONS[row.arity]} {name}")
    if not chosen | functions:
        raise OptionError("--ops: got no op, wanted at least one, such as Matmul,Add")
    return (*(row for row in _ROWS if row.base in chosen), *map(op, sorted(functions)))
