"""The softmax shift: exp(x − max x) becomes exp(x) before the search.

The shifted exponential is exp(x) times a factor that varies with the rows only. If every output is homogeneous of degree 0 in
this factor, as in a ratio, the shift changes only the range of numbers. The search works on exp(x); the lowering shifts
exponentials again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from mirage_eg.ir import write
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, with_rewritten
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.op.elementwise import DIFFERENCES, FACTORS, SQUARES, TERMS
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.passes import without_dead_code
from mirage_eg.ir.written_softmax import WrittenSoftmax, written_softmax


def drop_shifts(program: Graph) -> Graph:
    """The program with exp(x) for each exp(x − max x) whose shift cancels in every output.

    `program` holds primitive ops; it is returned unchanged if its axes cannot be inferred.
    """
    for shifted in _shifted_exponentials(program):
        if _cancels(program, shifted):
            return drop_shifts(without_dead_code(_replace(program, shifted)))
    return program


def with_shifts(program: Graph) -> Graph:
    """The program with exp(x − max x) for each exp(x) that `drop_shifts` made, or with a softmax for all of its ops.

    A library kernel of exp shifts nothing.
    """
    unshifted = shifted_values(program)
    dims: dict[int, int] = {}
    for item, values in program.numbered():
        if item.op == "exp" and values[0] in unshifted:
            last_first = reversed(range(len(program.types[values[0]].shape)))
            found = (dim for dim in last_first if drop_shifts(_with_shifts(program, {values[0]: dim}, {})) == program)
            dims.update((values[0], dim) for dim in islice(found, 1))
    last = {value: len(program.types[value].shape) - 1 for value in dims}
    written = {value: written_softmax(program, value) for value in range(len(program.types))} if dims else {}
    whole = {value: it for value, it in written.items() if it and dims.get(it.exponential) == last.get(it.exponential, -1)}
    return without_dead_code(_with_shifts(program, dims, whole)) if dims else program


def _with_shifts(program: Graph, dims: Mapping[int, int], whole: Mapping[int, WrittenSoftmax]) -> Graph:
    """The program with these exponentials shifted by their argument's maximum over a dim; `whole` softmaxes become one op."""

    def rewrite(copy: GraphCopy, item: Node, value: int) -> int:
        if value in dims:
            x = copy.position[item.operands[0]]
            maximum = copy.append(node("max", x, dim=dims[value]))
            return copy.append(node("exp", copy.append(write.sub(x, maximum))))
        it = whole[value]
        masks = () if it.indicator is None else (it.indicator,)
        read = (copy.position[value] for value in (*program.node_of[it.exponential].operands, *masks))
        return copy.append(write.softmax(*read, dim=dims[it.exponential]))

    return with_rewritten(program, dims.keys() | whole.keys(), rewrite)


def shifted_values(program: Graph) -> frozenset[int]:
    """The values that vary with a shift of an exponential's argument which cancels in every output; they may be out of range.

    A kernel that computes the exponential subtracts the maximum and restores it in results of these values. So no
    other kernel may read them.
    """
    shifted: set[int] = set()
    for item, values in program.numbered():
        if item.op == "exp":
            degrees = _degrees(program, values[0])
            shifted.update(value for value, degree in degrees.items() if degree)
    return frozenset(shifted)


@dataclass(frozen=True, slots=True)
class _Shifted:
    """exp(x − m) where m is the maximum of x over some dim, all as values."""

    exponential: int
    x: int
    maximum: int


def _shifted_exponentials(program: Graph) -> list[_Shifted]:
    shifted = []
    for value, item in enumerate(program.node_of):
        difference = program.node_of[item.operands[0]] if item.op == "exp" else None
        if difference is not None and difference.op in DIFFERENCES:
            x, maximum = difference.operands
            if program.node_of[maximum].op == "max" and program.node_of[maximum].operands == (x,):
                shifted.append(_Shifted(value, x, maximum))
    return shifted


def _cancels(program: Graph, shifted: _Shifted) -> bool:
    """Whether the shift cancels in every output: each value has a degree in it, and all outputs have degree 0."""
    degrees = _degrees(program, shifted.exponential)
    if not degrees:
        return False
    affected = _affected(program, shifted, degrees)
    try:
        axes = infer_axes(affected)
    except UnsupportedError:
        return False
    [own] = _shifted_exponentials(affected)
    return bool(_degrees(affected, own.exponential, axes, axes.of(own.maximum)))


def _affected(program: Graph, shifted: _Shifted, degrees: dict[int, int]) -> Graph:
    """The part of the program that has a degree in the shift; everything else, the exponential's argument too, is an input.

    Axes that only the rest of the program joins are separate in it.
    """
    copy, ends = GraphCopy(program), list[int]()
    own = {shifted.exponential, shifted.maximum}
    for item, values in copy:
        shift = item.op in DIFFERENCES and item.operands == (shifted.x, shifted.maximum)
        if item.op == "output" or not (shift or own & {*values} or any(degrees[i] for i in item.operands)):
            continue
        for operand in item.operands:
            if operand not in copy.position:
                copy.read(operand)
        copy.copy(item, values)
        if not degrees[values[0]] and any(degrees[i] for i in item.operands):
            ends.append(values[0])
    for end in ends:
        copy.write(end)
    return copy.graph()


def _degrees(program: Graph, exponential: int, axes: Axes | None = None, rows: frozenset[int] = frozenset()) -> dict[int, int]:
    """The degree of every value in a factor on `exponential` that varies with the axes `rows`; empty if outputs depend on it.

    Without axes the factor is constant along reduced dims: one that varies along such a dim would not leave the reduction.
    """
    degrees: dict[int, int] = {}
    for item, values in program.numbered():
        operands = [degrees[i] for i in item.operands]
        if item.op == "output" and operands[0]:
            return {}
        for value in values:
            degree = 1 if value == exponential else _degree(item, operands, axes, rows)
            if degree is None:
                return {}
            degrees[value] = degree
    return degrees


def _degree(item: Node, operands: list[int], axes: Axes | None, rows: frozenset[int]) -> int | None:
    if not any(operands):
        return 0
    match item.op:
        case op if op in FACTORS:
            return sum(power * degree for power, degree in zip(FACTORS[op], operands, strict=True))
        case op if op in TERMS:
            return operands[0] if operands[0] == operands[1] else None
        case "scale":
            return operands[0]
        case "fill":
            return 0 if item["value"] else operands[0]  # 0 has every degree
        case "where":
            return operands[1] if operands[1] == operands[2] and not operands[0] else None
        case "log" if axes is None:
            return 0  # the kernel adds what the shift subtracts
        case op if op in SQUARES:
            return 2 * operands[0]
        case "sum" | "mean":
            reduced = axes.dims[item.operands[0]][item["dim"]] if axes else ()
            return operands[0] if rows.isdisjoint(reduced) else None
        case _ if item.kind is Kind.MATMUL:
            contracted = axes.dims[item.operands[0]][-1] if axes else ()
            return sum(operands) if rows.isdisjoint(contracted) else None
        case _:
            return operands[0] if item.kind is Kind.REARRANGEMENT else None


def _replace(program: Graph, shifted: _Shifted) -> Graph:
    nodes = [node("exp", shifted.x) if shifted.exponential in values else item for item, values in program.numbered()]
    return Graph(tuple(nodes))
