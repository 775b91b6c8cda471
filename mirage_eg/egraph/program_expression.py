"""A program of any ops as an expression of a rule domain, with inputs in place of slices of inputs and of library ops."""

from dataclasses import dataclass

from mirage_eg.egraph.expression import Expression, Split, express
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.dissolve import dissolved
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.program_ends import core_of


@dataclass(frozen=True, slots=True)
class ProgramExpression:
    """The outputs of a program as terms; `names` are those of the inputs, and `split` is in words."""

    expression: Expression
    names: tuple[str, ...]
    split: str


def program_expression(
    program: Graph, domain: str = "indexed", loop: str | None = None, grid: str | None = None
) -> ProgramExpression:
    """The program under the split with the loop over the axis `loop` and the axis `grid` divided over the grid.

    Slices of inputs and results of library ops are inputs, and the operands of a final concatenation are outputs.

    Raises:
        OptionError: an axis that the program does not reduce.
        UnsupportedError: a program whose axes cannot be inferred.
    """
    graph = dissolved(_with_opaque_values(expand(program)), everywhere=True)
    core = core_of(graph)
    graph = graph if core is None else core.program
    axes = infer_axes(graph)
    split = Split(_axis(axes, loop, "loop"), _axis(axes, grid, "grid"))
    expression = express(graph, axes, split, domain)
    names = graph.input_names
    if len(set(names)) < len(names) or len(names) != len(expression.inputs):
        names = tuple(f"x{position}" for position in range(len(expression.inputs)))
    return ProgramExpression(expression, tuple(names), split.label(axes))


def _axis(axes: Axes, name: str | None, option: str) -> int | None:
    if name is None:
        return None
    reduced = {axes.names[axis]: axis for axis in sorted(axes.reduced)}
    if name not in reduced:
        wanted = f"a reduced axis ({', '.join(reduced)})" if reduced else "none: the program reduces no axis"
        raise OptionError(f"{option}: got {name!r}, wanted {wanted}")
    return reduced[name]


def _with_opaque_values(graph: Graph) -> Graph:
    """The graph with inputs in place of the results of library ops."""
    nodes: list[Node] = []
    for item, values in graph.numbered():
        if OPS[item.op].kind is not Kind.LIBRARY:
            nodes.append(item)
            continue
        for value in values:
            kind = graph.types[value]
            nodes.append(node("input", shape=kind.shape, dtype=str(kind.dtype), name=f"{item.op}_{value}"))
    return Graph(tuple(nodes))
