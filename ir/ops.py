"""The op table: the row of every op, from its record in `ir/op` where it has one.

A row says how many operands an op takes, which attributes, at which levels it is allowed, the shape of its result, how it moves
data (rearrangements) or what it expands to (derived ops), and the algebraic properties that the search uses. Records say what
ops compute: the algebras, the emitter and the rules are functions of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import prod
from typing import Any

from mirage_eg.ir import shapes
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.op import derived, library
from mirage_eg.ir.op.elementwise import PACKAGED, OpTable
from mirage_eg.ir.op.moves import MOVES, MoveOp, Rearrange
from mirage_eg.ir.op.record import Apply, ElementwiseOp, OpOnShapes
from mirage_eg.ir.shapes import Attributes, Shape


class Level(StrEnum):
    """The level of the GPU's hierarchy at which a graph runs."""

    KERNEL = "kernel"
    BLOCK = "block"
    THREAD = "thread"


class Kind(StrEnum):
    """What an op is to the evaluator, the search and the lowering."""

    BOUNDARY = "boundary"  # input, output
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"  # over one dim, which stays with extent 1
    MATMUL = "matmul"
    REARRANGEMENT = "rearrangement"  # moves elements, computes nothing
    ACCUMULATOR = "accumulator"  # over the loop of a block graph
    LIBRARY = "library"  # always a kernel of its own, of the library: convolutions, moves by indices, scans, orders
    DERIVED = "derived"  # expands into other ops
    GRAPH = "graph"  # holds a graph of the next level


ShapeRule = Callable[[Sequence[Shape], Attributes], Shape]
Call = Callable[[Sequence[str], Attributes, Sequence[Shape]], str]

KERNEL = frozenset({Level.KERNEL})
BLOCK = frozenset({Level.BLOCK})
KERNEL_AND_BLOCK = KERNEL | BLOCK
EVERYWHERE = frozenset(Level)


@dataclass(frozen=True, kw_only=True)
class Op:
    """One row of the op table.

    `attributes` maps each attribute to its type: `int`, `ints`, `rational`, `text`, `graph`, with `?` where it may be absent.
    An attribute `dtype` is the element type of the result.
    `rearrange(xp, arrays, lead, attributes)` moves arrays whose first `lead` dims are not the op's business. The operand at
    `indices` is a tensor of integers that says where.
    `expand(apply, operands, shapes, attributes)` writes a derived op through `apply(name, *operands, **attributes)`, and a
    library op that others define.
    """

    name: str
    kind: Kind
    arity: tuple[int, int]
    levels: frozenset[Level]
    shape: ShapeRule
    attributes: Mapping[str, str] = field(default_factory=dict)
    commutative: bool = False
    conditions: int = 0  # so many first operands are indicators, which do not count for the element type
    selects: bool = False  # the result may be defined where an operand other than a condition is undefined
    rearrange: Rearrange | None = None
    move: MoveOp | None = None  # of an op that only moves elements, to where its attributes say
    indices: int | None = None
    dtype: DType | None = None  # of the result of a library op; without it that of the first operand
    expand: Callable[[Apply, Sequence[Any], Sequence[Shape], Attributes], Any] | None = None
    combines: str = ""  # of a reduction the op that combines two elements; a mean is divided afterwards
    reduction: str = ""  # the reduction that an accumulator performs over the loop
    call: Call | None = None  # torch's expression, of operands, attributes and shapes; of an elementwise op its record has it
    noun: str = ""  # names the result in emitted kernels

    @cached_property
    def given(self) -> Mapping[str, str]:
        """The type of each attribute, where it is given."""
        return {name: kind.rstrip("?") for name, kind in self.attributes.items()}

    @cached_property
    def required(self) -> tuple[str, ...]:
        """The attributes that may not be absent."""
        return tuple(name for name, kind in self.attributes.items() if not kind.endswith("?"))


def _rms(apply: Apply, operands: Sequence[Any], shapes: Sequence[Shape], attributes: Attributes) -> Any:
    dim = {"dim": attributes["dim"]} if attributes.get("dim") is not None else {}
    return apply("sqrt", apply("accum_mean", apply("square", operands[0]), **dim))


def folded_batch(left: Shape, right: Shape) -> Shape | None:
    """The first batch dims of a product whose right operand has the others at 1, if that has a batch and not all of it.

    Those others are rows of the left operand's matrices.
    """
    (*batch, _, _), (*others, _, _) = left, right
    ones = next((place for place, extent in enumerate(reversed(others)) if extent != 1), len(others))
    lead = batch[: len(batch) - ones]
    is_folded = len(batch) == len(others) and lead == others[: len(lead)] and prod(batch) != prod(lead) != 1
    return tuple(lead) if is_folded and all(type(extent) is int for extent in (*left, *right)) else None


def _matmul_call(x: Sequence[str], rows: Shape, columns: Shape) -> str:
    """A call that copies no operand whose last batch dims are 1: torch writes it for each matrix that it multiplies."""
    lead, (*batch, m, k), n = folded_batch(rows, columns), rows, columns[-1]
    if lead is None:
        return f"torch.matmul({x[0]}, {x[1]})"
    folded = f"{x[0]}.reshape({(*lead, prod(batch[len(lead) :]) * m, k)}), {x[1]}.reshape({(*lead, k, n)})"
    return f"torch.matmul({folded}).reshape({(*batch, m, n)})"


def _elementwise(op: ElementwiseOp) -> Op:
    return Op(
        name=op.name,
        kind=Kind.ELEMENTWISE,
        arity=(op.arity, op.arity),
        levels=EVERYWHERE,
        shape=shapes.broadcast,
        attributes={name: "text" if name == "dtype" else "rational" for name in op.attributes},
        commutative=op.commutative,
        conditions=op.conditions,
        selects=op.selects,
        noun=op.noun or op.name,
    )


def _reduction(name: str, combines: str, function: str, noun: str) -> Op:
    return Op(
        name=name,
        kind=Kind.REDUCTION,
        arity=(1, 1),
        levels=KERNEL_AND_BLOCK,
        shape=shapes.reduce_dim,
        attributes={"dim": "int"},
        combines=combines,
        call=lambda x, given, _: f"{function}({x[0]}, dim={given['dim']}, keepdim=True)",
        noun=noun,
    )


def _row(op: OpOnShapes, kind: Kind, in_blocks: bool, arity: tuple[int, int], **given: Any) -> Op:
    same = {name: getattr(op, name) for name in ("name", "shape", "attributes", "expand", "call", "noun")}
    return Op(kind=kind, arity=arity, levels=KERNEL_AND_BLOCK if in_blocks else KERNEL, **same, **given)


def _move(op: MoveOp) -> Op:
    own = Kind.REARRANGEMENT if op.in_blocks else Kind.LIBRARY
    kind = own if op.expand is None else Kind.DERIVED
    return _row(op, kind, op.in_blocks, op.arity, rearrange=op.numpy or op.on_arrays, move=op)


def _accumulator(name: str, reduction: str, **given: Any) -> Op:
    rest: dict[str, Any] = {"shape": shapes.accumulate, "attributes": {"dim": "int?"}} | given
    return Op(name=name, kind=Kind.ACCUMULATOR, arity=(1, 1), levels=BLOCK, reduction=reduction, **rest)


_ROWS = (
    # Boundaries. At the kernel level an input has a shape and a name; in a block graph also its maps.
    Op(
        name="input",
        kind=Kind.BOUNDARY,
        arity=(0, 0),
        levels=EVERYWHERE,
        shape=shapes.no_rule,
        attributes={
            "shape": "ints",
            "dtype": "text",
            "name": "text?",
            "strides": "ints?",
            "imap": "ints?",
            "fmap": "int?",
            "dims": "text?",  # of a program: the declarations of dims that are chosen later (`ir.sizes`)
            "weight": "flag?",  # of a program: whether it stays the same from call to call (`ir.weights`)
            "tile": "ints?",  # of a block graph: the extents of tiles, where sizes are chosen later
        },
    ),
    Op(
        name="output",
        kind=Kind.BOUNDARY,
        arity=(1, 1),
        levels=EVERYWHERE,
        shape=shapes.no_rule,
        attributes={
            "name": "text?",
            "omap": "ints?",
            "dtype": "text?",
            "strides": "ints?",  # the steps in memory that the caller of a program wants (`ir.written_inputs`)
            "into": "int?",  # of a program: the place of the input whose memory receives the result (`ir.written_inputs`)
        },
    ),
    *map(_elementwise, PACKAGED.values()),  # with NumPy's broadcasting
    # Contractions.
    Op(
        name="matmul",
        kind=Kind.MATMUL,
        arity=(2, 2),
        levels=KERNEL_AND_BLOCK,
        shape=shapes.matmul,
        call=lambda x, given, operands: _matmul_call(x, *operands),
        noun="product",
    ),
    _reduction("sum", "add", "torch.sum", "sum"),
    _reduction("mean", "add", "torch.mean", "mean"),
    _reduction("max", "maximum", "torch.amax", "peak"),
    *map(_move, MOVES.values()),
    *(
        _row(op, Kind.LIBRARY, False, (op.arity, op.arity), rearrange=op.move, indices=op.indices, dtype=op.dtype)
        for op in library.OPS
    ),
    # Accumulators over the loop of a block graph; with `dim` they reduce that dim of the tile too.
    _accumulator("accum_sum", "sum", noun="acc"),
    _accumulator("accum_mean", "mean", noun="acc_mean"),
    _accumulator("accum_max", "max", noun="acc_max"),
    _accumulator("accum_rms", "", expand=_rms),  # sqrt of the mean of squares
    _accumulator(  # out[i] = Σ_loop Σ_k x[i + k·columns]
        "accum_strided_sum",
        "sum",
        shape=shapes.accumulate_strided,
        attributes={"dim": "int", "columns": "int"},
        noun="acc_columns",
    ),
    # Derived ops: defined by what they expand to.
    *(_row(op, Kind.DERIVED, op.in_blocks, op.arity) for op in derived.OPS),
    # Graphs of the next level.
    Op(name="block", kind=Kind.GRAPH, arity=(1, 256), levels=KERNEL, shape=shapes.no_rule, attributes={"graph": "graph"}),
    Op(name="thread", kind=Kind.GRAPH, arity=(1, 256), levels=BLOCK, shape=shapes.no_rule, attributes={"graph": "graph"}),
)

OPS = OpTable({row.name: row for row in _ROWS}, _elementwise)
KINDS = {row.name: row.kind for row in _ROWS}
"""The kinds of the package's ops, which searches look up millions of times; the ops of the user are elementwise."""
