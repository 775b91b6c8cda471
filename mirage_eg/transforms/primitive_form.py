"""The form of a program that the search takes: simplified, with exponentials unshifted and reductions merged."""

from mirage_eg.ir.graph import Graph
from mirage_eg.transforms.merged_reductions import with_merged_reductions
from mirage_eg.transforms.simplify import simplify
from mirage_eg.transforms.softmax_shift import drop_shifts


def primitive_form(expanded: Graph) -> Graph:
    """The form that is searched of a program of primitive ops."""
    return as_searched(simplify(expanded).after)


def as_searched(simplified: Graph) -> Graph:
    """The form that is searched of a simplified program."""
    return with_merged_reductions(drop_shifts(simplified))
