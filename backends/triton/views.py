"""Values of a kernel graph that alias the memory of another: reshapes, transposes, broadcasts between generated kernels.

A kernel reads such a value at the address of what it shows, with other strides; nothing is launched or copied for it.
"""

from collections.abc import Mapping, Sequence

from mirage_eg.ir.graph import Graph, Node
from mirage_eg.ir.shapes import Shape

_VIEWS = ("reshape", "transpose", "broadcast")


def views_of(graph: Graph, strides: Sequence[Shape], fixed: frozenset[int]) -> dict[int, tuple[int, Shape]]:
    """For each value that is such a view and read by generated kernels and other views alone: the value that it shows, which is
    none itself, and its strides. `strides` are those of all values, the `fixed` ones may be no views."""
    readers: dict[int, list[tuple[Node, range]]] = {value: [] for value in range(len(graph.types))}
    for item, values in graph.numbered():
        for operand in item.operands:
            readers[operand].append((item, values))
    made_here = {value for item, values in graph.numbered() if item.op in ("block", "input", *_VIEWS) for value in values}
    candidates: dict[int, tuple[int, Shape]] = {}
    for item, values in graph.numbered():
        if item.op not in _VIEWS or values[0] in fixed or item.operands[0] not in made_here:
            continue
        [operand] = item.operands
        if operand not in candidates and item.op in _VIEWS and _is_view(graph, operand):
            continue  # the library copies this view
        base, seen = candidates.get(operand, (operand, strides[operand]))
        shown = shown_strides(item, graph.types[operand].shape, seen)
        if shown is not None:
            candidates[values[0]] = base, shown
    while True:  # the library copies a view with another reader, and its bases
        views = {
            value: view
            for value, view in candidates.items()
            if readers[value]
            and all(item.op == "block" or (values and values[0] in candidates) for item, values in readers[value])
        }
        if len(views) == len(candidates):
            return views
        candidates = {value: view for value, view in views.items() if _has_base(graph, value, views)}


def _is_view(graph: Graph, value: int) -> bool:
    return any(value in values and item.op in _VIEWS for item, values in graph.numbered())


def _has_base(graph: Graph, value: int, views: Mapping[int, object]) -> bool:
    """Whether the base of a view is in `views`, or is no view."""
    operand = next(item.operands[0] for item, values in graph.numbered() if value in values)
    return operand in views or not _is_view(graph, operand)


def shown_strides(item: Node, shape: Shape, strides: Shape) -> Shape | None:
    """The strides of a reshape, transpose or broadcast of a tensor; None if it needs a copy."""
    match item.op:
        case "transpose":
            return tuple(strides[dim] for dim in item["permutation"])
        case "broadcast":
            wide: Shape = item["shape"]
            lead = len(wide) - len(shape)
            kept_strides = (
                0 if extent == 1 < want else stride for extent, want, stride in zip(shape, wide[lead:], strides, strict=True)
            )
            return (*(0,) * lead, *kept_strides)
        case "reshape":
            return reshaped_strides(shape, strides, item["shape"])
        case _:
            raise AssertionError(f"{item.op} is no view")


def reshaped_strides(shape: Shape, strides: Shape, wanted: Shape) -> Shape | None:
    """The strides under which a strided tensor has another shape, or None if it must be copied."""
    runs: list[tuple[int, int]] = []  # extent and stride of dims that lie in memory as one, the slowest first
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if runs and runs[-1][1] == extent * stride:
            runs[-1] = (runs[-1][0] * extent, stride)
        else:
            runs.append((extent, stride))
    strides_of_dims: list[int] = []
    left, step = 1, 1  # of the current run: elements left, and the stride of its last dim
    for extent in reversed(wanted):
        if left == 1 and runs:
            left, step = runs.pop()
        if left % extent:
            return None
        strides_of_dims.append(step)
        step *= extent
        left //= extent
    return tuple(reversed(strides_of_dims))


__all__ = ["reshaped_strides", "shown_strides", "views_of"]
