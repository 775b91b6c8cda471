"""Exponentials that a program shifts by a maximum, as softmax is often written: recognised before the search.

exp(x − max x) is exp(x) times a factor that varies with the rows alone. Where every output is homogeneous of degree 0 in that
factor, as in a ratio, the shift changes nothing but the range of numbers, and the search works on exp(x); the lowering shifts
exponentials again, by itself.
"""

from dataclasses import dataclass

from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph, Node, node
from mirage_eg.ir.ops import OPS, Kind


def drop_shifts(program: Graph) -> Graph:
    """The program with exp(x − max x) written exp(x) wherever no output can tell.

    `program` holds primitive ops; it is given back as it is where its axes cannot be inferred.
    """
    for shifted in _shifted_exponentials(program):
        if _cancels(program, shifted):
            return drop_shifts(_without_dead_code(_replace(program, shifted)))
    return program


def shifted_values(program: Graph) -> frozenset[int]:
    """The values that vary with a shift of some exponential's argument that no output can tell; they may be out of range.

    A kernel that computes the exponential takes the maximum off and puts it back into what it makes of these (DESIGN §10); so
    they are not for other kernels to read.
    """
    found: set[int] = set()
    for item, values in program.numbered():
        if item.op == "exp":
            degrees = _invariant_degrees(program, values[0])
            found.update(value for value, degree in degrees.items() if degree)
    return frozenset(found)


def _invariant_degrees(program: Graph, exponential: int) -> dict[int, int]:
    """The degree of every value in a factor on `exponential` that is constant along what is reduced; empty if outputs tell.

    Axes are left alone here: a shift that varies along a reduced dim would not pass, one that does not always does.
    """
    degrees: dict[int, int] = {}
    for item, values in program.numbered():
        operands = [degrees[i] for i in item.operands]
        if item.op == "output":
            if operands[0]:
                return {}
            continue
        for value in values:
            degree = 1 if value == exponential else _degree(item, operands, None, frozenset())
            if degree is None:
                return {}
            degrees[value] = degree
    return degrees


@dataclass(frozen=True, slots=True)
class _Shifted:
    """exp(x − m) where m is the maximum of x over some dim, all as values."""

    exponential: int
    x: int
    maximum: int


def _shifted_exponentials(program: Graph) -> list[_Shifted]:
    makers = {value: item for item, values in program.numbered() for value in values}
    found = []
    for value, item in makers.items():
        difference = makers.get(item.operands[0]) if item.op == "exp" else None
        if difference is not None and difference.op == "sub":
            x, maximum = difference.operands
            if makers[maximum].op == "max" and makers[maximum].operands == (x,):
                found.append(_Shifted(value, x, maximum))
    return found


def _cancels(program: Graph, shifted: _Shifted) -> bool:
    """Whether no output can tell the shift: each value has a degree in it, and all outputs that of 0."""
    degrees = _invariant_degrees(program, shifted.exponential)
    if not degrees:
        return False
    told = _where_told(program, shifted, degrees)
    try:
        axes = infer_axes(told)
    except UnsupportedError:
        return False
    [own] = _shifted_exponentials(told)
    return _has_degree_0(told, axes, own.exponential, axes.of(own.maximum))


def _where_told(program: Graph, shifted: _Shifted, degrees: dict[int, int]) -> Graph:
    """The part of the program that has a degree in the shift, and what ends it; all else, the exponential's argument too, are
    inputs. Axes that only the rest of the program joins are apart in it."""
    nodes: list[Node] = []
    place: dict[int, int] = {}

    def read(value: int) -> int:
        if value not in place:
            place[value] = len(nodes)
            nodes.append(node("input", shape=program.types[value].shape, dtype=str(program.types[value].dtype)))
        return place[value]

    own = {shifted.exponential, shifted.maximum}
    ends: list[int] = []
    for item, values in program.numbered():
        shift = item.op == "sub" and item.operands == (shifted.x, shifted.maximum)
        if item.op == "output" or not (shift or own & {*values} or any(degrees[i] for i in item.operands)):
            continue
        operands = tuple(read(i) for i in item.operands)
        place[values[0]] = len(nodes)
        nodes.append(Node(item.op, operands, item.attributes))
        ends += [place[values[0]]] * (not degrees[values[0]] and any(degrees[i] for i in item.operands))
    return Graph((*nodes, *(node("output", end) for end in ends)))


def _has_degree_0(program: Graph, axes: Axes, exponential: int, rows: frozenset[int]) -> bool:
    """Whether all outputs have degree 0 in a factor on `exponential` that varies with the axes `rows`."""
    degrees: dict[int, int] = {}
    for item, values in program.numbered():
        operands = [degrees[i] for i in item.operands]
        if item.op == "output":
            if operands[0] != 0:
                return False
            continue
        degree = 1 if values[0] == exponential else _degree(item, operands, axes, rows)
        if degree is None:
            return False
        degrees[values[0]] = degree
    return True


def _degree(item: Node, operands: list[int], axes: Axes | None, rows: frozenset[int]) -> int | None:
    if not any(operands):
        return 0
    match item.op:
        case "mul":
            return sum(operands)
        case "div":
            return operands[0] - operands[1]
        case "add" | "sub":
            return operands[0] if operands[0] == operands[1] else None
        case "scale":
            return operands[0]
        case "log" if axes is None:
            return 0  # the kernel adds what the shift takes off
        case "square":
            return 2 * operands[0]
        case "sum" | "mean":
            reduced = axes.dims[item.operands[0]][item["dim"]] if axes else ()
            return operands[0] if rows.isdisjoint(reduced) else None
        case "matmul":
            contracted = axes.dims[item.operands[0]][-1] if axes else ()
            return sum(operands) if rows.isdisjoint(contracted) else None
        case _:
            return operands[0] if OPS[item.op].kind is Kind.REARRANGEMENT else None


def _replace(program: Graph, shifted: _Shifted) -> Graph:
    nodes = [node("exp", shifted.x) if shifted.exponential in values else item for item, values in program.numbered()]
    return Graph(tuple(nodes))


def _without_dead_code(program: Graph) -> Graph:
    """The graph without nodes that no output depends on; inputs stay."""
    needed: set[int] = set()
    for item, values in reversed(list(program.numbered())):
        if item.op in ("input", "output") or not needed.isdisjoint(values):
            needed.update(item.operands, values)
    place: dict[int, int] = {}
    nodes: list[Node] = []
    for item, values in program.numbered():
        if item.op != "output" and needed.isdisjoint(values):
            continue
        nodes.append(Node(item.op, tuple(place[i] for i in item.operands), item.attributes))
        place.update({value: len(place) + offset for offset, value in enumerate(values)})
    return Graph(tuple(nodes))
