"""The part of an emitted program that computes values of weights alone: once, and again where a weight has changed.

`prepare` computes them by torch, and the iterations that a constant mask leaves (`skipped_iterations`). `prepared` keeps them
by the addresses of the weights and torch's counter of changes in place, which inference tensors lack. In a CUDA graph that is
being captured nothing is kept.
"""

from collections.abc import Iterator, Sequence
from math import inf

from mirage_eg.backends.triton.block_order import prepared as in_order
from mirage_eg.backends.triton.program_file import ProgramFile
from mirage_eg.backends.triton.skipped_iterations import SkippedIterations, skipped_iterations, tile_splits
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED, TensorType
from mirage_eg.ir.weights import marked_weights

MOST_KEPT = 256  # sets of weights: equal layers of a model share one program
NAMES = ("PREPARED", "WEIGHTS", "KEPT", "prepare", "prepared", "live_iterations")


def values_kept(file: ProgramFile) -> list[int]:
    """The values of weights alone that the rest of the program reads, in their order; then filters, and the bounds of loops."""
    outside = {
        operand for item, values in file.graph.numbered() if file.prepared.isdisjoint(values) for operand in item.operands
    }
    return [*sorted(file.prepared & outside), *file.filters.values(), *file.loop_bounds.values()]


def weights_read(file: ProgramFile) -> list[int]:
    """The inputs that `prepare` takes; the first weight where it computes constants alone."""
    inputs = file.graph.input_values
    read = {
        operand for item, values in file.graph.numbered() if not file.prepared.isdisjoint(values) for operand in item.operands
    }
    read |= {value for value in marked_weights(file.graph) if file.names[value] in file.masks or value in file.filters}
    return [value for value in inputs if value in read] or [file.first_weight]


def preparation_tables(file: ProgramFile) -> Iterator[str]:
    """The lines of the tables PREPARED (types of prepared values) and WEIGHTS (positions of the weights among the inputs)."""
    if not file.prepares:
        return
    yield from ("", "# what `prepare` computes of the weights, once", "PREPARED = {")
    for value in values_kept(file):
        kind = file.types[value]
        yield f'    "{file.names[value]}": ({kind.shape}, "{kind.dtype}", {file.strides[value]}),'
    places = [file.graph.input_values.index(value) for value in weights_read(file)]
    yield from ("}", f"WEIGHTS = {tuple(places)}  # their places among the inputs", "KEPT = {}")


def preparation_functions(file: ProgramFile) -> Iterator[str]:
    """The lines of `prepare` and `prepared`."""
    if not file.prepares:
        return
    if file.loop_bounds:
        yield _LIVE_ITERATIONS
    names = [file.names[value] for value in values_kept(file)]
    weights = ", ".join(file.names[value] for value in weights_read(file))
    yield f"def prepare({weights}):"
    yield f'    """{", ".join(names)}: what depends on weights alone."""'
    yield "    import torch"
    yield ""
    yield from file.preparation
    yield f"    return [{', '.join(names)}]\n\n"
    yield _PREPARED


def add_loop_bounds(file: ProgramFile, block: Graph, operands: Sequence[int]) -> tuple[SkippedIterations, int] | None:
    """Which iterations of a block graph have no effect, and the value with the bounds of the others; None if all have one."""
    if file.sizes:
        return None
    held = {file.names[value] for value in marked_weights(file.graph) | file.prepared if value in file.names}
    constants = [
        position
        for position, operand in enumerate(operands)
        if file.names[operand] in held and operand not in file.placement.gathered
    ]
    skipped = skipped_iterations(in_order(block), constants)
    if skipped is None:
        return None
    grid = tuple(block.grid[dim] for dim in skipped.grid_dims)
    places = {dim: place for place, dim in enumerate(skipped.grid_dims)} | {REPLICATED: len(grid)}

    def tiles_of(position: int, number: float) -> str:
        splits = [([(places[dim], count) for dim, count in split], size) for split, size in tile_splits(block, position)]
        text = repr(number) if number not in (inf, -inf) else f'float("{number}")'
        return f"({_as_read(file, operands[position])}, {text}, {splits})"

    cases = []
    for case in skipped.cases:
        cases.append(f"[{', '.join(tiles_of(tile.position, tile.number) for tile in case)}]")
        file.masks.update(file.names[operands[tile.position]] for tile in case)
    masks = [tiles_of(position, 0.0) for position in skipped.masks]
    call = f"live_iterations({grid}, {block.loop}, [{', '.join(cases)}], [{', '.join(masks)}])"
    if call not in file.loop_bounds:
        value = file.add_value(
            TensorType((*grid, 4), DType.int32), f"{file.names[operands[skipped.cases[0][0].position]]}_bounds"
        )
        file.loop_bounds[call] = value
        file.preparation.append(f"    {file.names[value]} = {call}")
    return skipped, file.loop_bounds[call]


def _as_read(file: ProgramFile, value: int) -> str:
    """The tensor that a kernel reads: an argument or a result of `prepare`, or a view of one."""
    name = file.names[value]
    if value in file.prepared or value in file.graph.input_values:
        return name
    offset = file.placement.offsets[value]
    return f"{name}.as_strided({file.types[value].shape}, {file.strides[value]}, {name}.storage_offset() + {offset})"


_LIVE_ITERATIONS = '''def live_iterations(grid, loop, cases, masks):
    """For each block along the dims of `grid` the first iteration that has an effect and the end of the last; and the first and
    the end of the longest run between them in which no entry of a mask is 0.

    An iteration has none where all tiles of a case have its number everywhere. A tile is given by its tensor, the number, and
    for each dim the parts, (dim of `grid` or its length for the loop, count), and the extent.
    """
    import torch

    def others(tensor, number, splits):
        pads, shape, places, tiles = [], [], {}, []
        for (parts, size), extent in zip(splits, tensor.shape):
            places |= {place: len(shape) + step for step, (place, _) in enumerate(parts)}
            whole = size
            for _, count in parts:
                whole *= count
            shape += [*(count for _, count in parts), size]
            pads = [0, whole - extent, *pads]
            tiles.append(len(shape) - 1)
        entries = torch.nn.functional.pad(tensor != number, pads).reshape(shape)
        entries = entries.permute(*(places[place] for place in sorted(places)), *tiles).flatten(len(places))
        return entries.reshape(*(n if place in places else 1 for place, n in enumerate((*grid, loop))), -1)

    live = whole = torch.ones((), dtype=torch.bool, device=cases[0][0][0].device)
    for case in cases:
        differs = False
        for tile in case:
            differs = differs | others(*tile).any(-1)
        live = live & differs
    for mask in masks:
        whole = whole & others(*mask).all(-1)
    live, whole = live.expand(*grid, loop).int(), whole.expand(*grid, loop)
    some = live.amax(-1)
    first, end = some * live.argmax(-1), some * (loop - live.flip(-1).argmax(-1))
    steps = torch.arange(loop, device=live.device)
    whole = whole & (steps >= first[..., None]) & (steps < end[..., None])
    length = steps + 1 - torch.where(whole, 0, steps + 1).cummax(-1).values
    stop = length.argmax(-1) + 1
    return torch.stack([first, end, stop - length.amax(-1), stop], -1).int()

'''

_PREPARED = f'''def prepared(*weights):
    """The results of `prepare`, kept until a weight is another tensor or has changed in place."""
    import torch

    addresses = tuple(each.data_ptr() for each in weights)
    versions = [0 if each.is_inference() else each._version for each in weights]
    kept = KEPT.get(addresses)
    if kept is not None and kept[0] == versions:
        return kept[2]
    results = prepare(*weights)
    if weights[0].is_cuda:
        if torch.cuda.is_current_stream_capturing():
            return results
        torch.cuda.current_stream(weights[0].device).synchronize()
    if len(KEPT) >= {MOST_KEPT}:
        del KEPT[next(iter(KEPT))]
    KEPT[addresses] = versions, weights, results
    return results

'''
