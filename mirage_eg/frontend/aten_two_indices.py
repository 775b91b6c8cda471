"""x[rows, columns]: two neighbouring dims indexed by tensors that are broadcast, as a mask of padding is for each key.

The rows vary along some first dims of the common shape. They are gathered first; then the columns, along the rest of the common
shape. Where columns vary with the rows, each pair is one index of both dims.
"""

from math import prod

from mirage_eg.frontend.aten_call import SAME_ELEMENTS, Call, behind, expanded, reshaped
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
        given = (_broadcast(call, name, shape, common) for name, shape in zip(names, (of_rows, of_columns), strict=True))
        extents = x.shape[dim : dim + 2]
        rows, columns = (it - it // extent * extent for it, extent in zip(given, extents, strict=True))  # −1 is the last
        flat = reshaped(x, (*lead, prod(extents), *rest))
        return reshaped(call.graph.gather(flat, rows * extents[1] + columns, dim), call.result.shape)
    if not every_row:
        x = call.graph.gather(x, _broadcast(call, names[0], of_rows[:split], before), dim)
    if in_step:
        pairs = (prod(before), prod(after))
        columns = reshaped(_broadcast(call, names[1], of_columns, common), (*[1] * dim, *pairs, *[1] * len(rest)))
        x = call.graph.take_along_dim(x, expanded(columns, (*lead, *pairs, *rest)), dim + 1)
    elif not _is_range(call, names[1], x.shape[dim + 1]):
        x = call.graph.gather(x, _broadcast(call, names[1], of_columns[split:], after), dim + 1)
    return reshaped(x, call.result.shape)


def _broadcast(call: Call, name: str, shape: Shape, wanted: Shape) -> Tensor:
    """Indices of one dim: those of an argument under a shape, broadcast to another."""
    indices = call.integers(name)
    return reshaped(indices if shape == wanted else expanded(reshaped(indices, shape), wanted), (prod(wanted),))


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
