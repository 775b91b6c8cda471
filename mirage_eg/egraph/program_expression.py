"""A program of any ops as an expression of a rule domain, with inputs in place of slices of inputs and of library ops."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from mirage_eg.egraph.expression import Expression, Split, express, parts_of
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.dissolve import dissolve
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.renamed_views import Renamed, rename_views


@dataclass(frozen=True, slots=True)
class ProgramExpression:
    """The outputs of a program as terms; `names` are those of the inputs, and `split` is in words."""

    expression: Expression
    names: tuple[str, ...]
    split: str
    extents: Mapping[str, int]  # of the parts of all axes; those of a split are examples


def program_expression(
    program: Graph, domain: str = "indexed", loop: str | None = None, grid: str | None = None
) -> ProgramExpression:
    """The program under the split with the loop over the axis `loop` and the axis `grid` divided over the grid.

    Slices of inputs and results of library ops are inputs, and the operands of a final concatenation are outputs. An input with
    two names of an axis, as W in X W W, is two inputs: W and W_2.

    Raises:
        OptionError: an axis that the program does not reduce.
        UnsupportedError: a program whose axes cannot be inferred.
    """
    renamed = rename_views(dissolve(_with_opaque_values(expand(program)), everywhere=True).graph)
    axes = infer_axes(renamed.program)
    split = Split(_axis(axes, loop, "loop"), _axis(axes, grid, "grid"))
    expression = express(renamed.program, axes, split, domain)
    names = _input_names(renamed, len(expression.inputs))
    return ProgramExpression(expression, names, split.label(axes), _extents(axes, split, domain))


def _extents(axes: Axes, split: Split, domain: str) -> dict[str, int]:
    """The sizes of axes that are not reduced, and of the parts of the others: up to 16 iterations, and up to 16 blocks."""
    found = dict(zip(axes.names, axes.sizes, strict=True))
    for axis, parts in parts_of(axes, split, domain).items():
        left = axes.sizes[axis]
        for names in (parts.grid, parts.loop):
            count = gcd(left, 16) if names else 1
            found |= {str(name): count for name in names}
            left //= count
        found |= {str(name): left for name in parts.tile}
    return found


def _input_names(renamed: Renamed, count: int) -> tuple[str, ...]:
    """The names of the inputs, their copies numbered; by position where two would be the same."""
    copies = Counter[int]()
    names = []
    for place in renamed.inputs:
        copies[place] += 1
        name = renamed.given[place].get("name") or f"x{place}"
        names.append(name if copies[place] == 1 else f"{name}_{copies[place]}")
    are_different = len(set(names)) == len(names) == count
    return tuple(names) if are_different else tuple(f"x{position}" for position in range(count))


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
    copy = GraphCopy(graph)
    for item, values in copy:
        if item.kind is not Kind.LIBRARY:
            copy.copy(item, values)
            continue
        for value in values:
            copy.read(value, name=f"{item.op}_{value}")
    return copy.graph()
