"""Smaller sizes for a Python file whose sizes are numbers at its top level, so that its results can be computed on a CPU.

A shrinking maps every size that is assigned at the top level. Several are tried, as shapes must stay consistent: a number of
groups must divide a number of channels.
"""

import ast
from collections.abc import Callable, Mapping
from types import ModuleType

Shrinking = Callable[[list[int]], list[int]]

_SMALL = 16  # sizes up to this one stay: kernels, groups, heads, dims
_LARGEST, _LARGER = 64, 1024  # after shrinking by one factor
_LEAST = 4


def _by_one_factor(largest: int) -> Shrinking:
    """All sizes over one power of two, so that their quotients stay."""

    def shrinking(sizes: list[int]) -> list[int]:
        factor = 1
        while max(sizes, default=0) > largest * factor:
            factor *= 2
        return [max(_LEAST, size // factor) for size in sizes]

    return shrinking


def _each(least: int) -> Shrinking:
    """Each size over a power of two of its own, to `least` … 2 · `least` − 1."""
    return lambda sizes: [size >> max(0, size.bit_length() - least.bit_length()) for size in sizes]


def _first(sizes: list[int]) -> list[int]:
    """The first size alone, which as a rule is that of the batch."""
    return [_LEAST, *sizes[1:]] if sizes else []


SHRINKINGS: Mapping[str, Shrinking] = {
    "by one factor": _by_one_factor(_LARGEST),
    "each to 16 … 31": _each(_SMALL),
    "each to 64 … 127": _each(_LARGEST),  # reductions stay longer than kernels
    "by one factor, to 1,024": _by_one_factor(_LARGER),
    "the first to 4": _first,
}


def run_source(source: str, path: str, shrinking: str | None = None) -> ModuleType:
    """The module of a Python source, with the sizes at its top level shrunk by one of SHRINKINGS."""
    tree = ast.parse(source, path)
    if shrinking is not None:
        sizes = [constant for statement in tree.body for constant in _sizes(statement)]
        smaller = SHRINKINGS[shrinking]([size.value for size in sizes if isinstance(size.value, int)])
        for size, value in zip(sizes, smaller, strict=True):
            size.value = value
    module = ModuleType("problem")
    module.__file__ = path
    exec(compile(tree, path, "exec"), module.__dict__)
    return module


def _sizes(statement: ast.stmt) -> list[ast.Constant]:
    """The whole numbers above _SMALL that a statement assigns, alone or in lists and tuples."""
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
        return []
    return [
        node
        for node in ast.walk(statement.value)
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value > _SMALL
    ]
