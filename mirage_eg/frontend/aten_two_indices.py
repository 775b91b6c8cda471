"""x[rows, columns]: two neighbouring dims indexed by tensors that are broadcast, as a mask of padding is for each key.

The rows vary along some first dims of the common shape. They are gathered first; then the columns, along the rest of the common
shape. Where columns vary with the rows, each pair is one index of both dims.
"""

from math import prod

from mirage_eg.frontend.aten_call import SAME_ELEMENTS, Call, behind
from mirage_eg.frontend.symbolic_sizes import NAMED
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.shapes import Shape


def at_rows_and_columns(call: Call, x: Tensor, dim: int) -> Tensor:
    """x at tensors of indices for `dim` and the dim after it."""
    lead, rest = x.shape[:dim], x.shape[dim + 2 :]
    common = call.result.shape[dim : len(call.result.shape) - len(rest)]
    names = [f"indices.{dim}", f"indices.{dim + 1}"]
    of_rows, of_columns = ((1,) * (len(common) - len(shape)) + shape for shape in (call.types[name].shape for name in names))
    split = max((place + 1 for place, extent in enumerate(of_rows) if extent != 1), default=0)
    before, after = common[:split], common[split:]
    in_step = any(extent != 1 for extent in of_columns[:split])
    every_row = _is_range(call, names[0], x.shape[dim]) and prod(before) == x.shape[dim]
    if in_step and not every_row:
        rows, columns = (
            _from_the_front(_broadcast(call, name, shape, common), extent)
            for name, shape, extent in zip(names, (of_rows, of_columns), x.shape[dim : dim + 2], strict=True)
        )
        flat = call.graph.reshape(x, (*lead, x.shape[dim] * x.shape[dim + 1], *rest))
        return call.graph.reshape(call.graph.gather(flat, rows * x.shape[dim + 1] + columns, dim), call.result.shape)
    if not every_row:
        x = call.graph.gather(x, _broadcast(call, names[0], of_rows[:split], before), dim)
    if in_step:
        columns = call.graph.reshape(
            _broadcast(call, names[1], of_columns, common), (1,) * dim + (prod(before), prod(after)) + (1,) * len(rest)
        )
        wanted = (*lead, prod(before), prod(after), *rest)
        columns = columns if columns.shape == wanted else call.graph.broadcast(columns, wanted)
        x = call.graph.take_along_dim(x, columns, dim + 1)
    elif not _is_range(call, names[1], x.shape[dim + 1]):
        x = call.graph.gather(x, _broadcast(call, names[1], of_columns[split:], after), dim + 1)
    return x if x.shape == call.result.shape else call.graph.reshape(x, call.result.shape)


def _broadcast(call: Call, name: str, shape: Shape, wanted: Shape) -> Tensor:
    """Indices of one dim: those of an argument under a shape, broadcast to another."""
    indices = call.integers(name)
    if shape != wanted:
        indices = indices if indices.shape == shape else call.graph.reshape(indices, shape)
        indices = call.graph.broadcast(indices, wanted)
    return indices if len(indices.shape) == 1 else call.graph.reshape(indices, (prod(wanted),))


def _from_the_front(indices: Tensor, extent: int) -> Tensor:
    """The indices, of which those below 0 count from the end."""
    return indices - indices // extent * extent


def _is_range(call: Call, name: str, extent: int) -> bool:
    """Whether indices are 0, 1, … up to an extent: a constant, or by a symbolic size of that extent."""
    array = call.known_array(name)
    if array is not None:
        return bool(array.size == extent and (array.reshape(-1) == range(extent)).all())
    place, _, number = name.partition(".")
    node = behind(call.arguments[place][int(number)], SAME_ELEMENTS)
    match str(node.target):
        case "prims.iota.default":
            counts = node.kwargs["start"] == 0 and node.kwargs["step"] == 1
        case "aten.arange.default":
            counts = True
        case "aten.arange.start":
            counts = node.args[0] == 0
        case _:
            return False
    return bool(counts and node.meta.get(NAMED) == (extent,))
