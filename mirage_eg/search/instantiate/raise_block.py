"""Raises a block graph to its structure and tiling: the inverse of `lower_structure`, for block graphs from anywhere.

A tile's layout has for each dim the axes that it walks, slowest first, as in lowering. Loads give them by their maps, ops hand
them on, rearrangements move them. An op on dims that walk different axes has no structure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import zip_longest
from math import ceil, prod

from mirage_eg.egraph.expression import Split
from mirage_eg.ir.axes import Axes, Dim, Dims
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import NEW_DIM, REPLICATED, Node
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.ragged import LOOP
from mirage_eg.search.instantiate.tiling import equal_or_ragged
from mirage_eg.search.structure import Load, Step, Structure, is_swappable


class OutsideError(MirageError):
    """A block graph that has no structure: `stage` of `prune_reasons`, and the value of the block graph, if it is one's."""

    def __init__(self, stage: str, message: str, value: int | None = None) -> None:
        super().__init__(message)
        self.stage, self.value = stage, value


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor that a block graph reads: its number among the inputs, and the axes of its dims."""

    number: int
    dims: Dims


@dataclass(frozen=True, slots=True)
class RaisedKernel:
    """A structure with the tiling of its block graph: the blocks along each axis, and the loop count.

    `values`: of each step the value of the block graph. `stored`: the axes of the dims of each output; the axis after the last
    is that of partial results.
    """

    structure: Structure
    blocks: tuple[tuple[int, int], ...]
    loop: int
    values: tuple[int, ...]
    stored: tuple[Dims, ...]


def raise_block(block: Graph, sources: Sequence[Source], axes: Axes) -> RaisedKernel:
    """The structure of a block graph of primitive ops without thread graphs, whose inputs are `sources`.

    Raises OutsideError: it has none.
    """
    return _Raising(block, axes).kernel(sources)


@dataclass(frozen=True, slots=True)
class _Tile:
    """A value: the load or step that computes it, the axes of its dims with their extents, what it was accumulated by before
    its tile was reduced."""

    place: int
    layout: Dims
    extents: dict[int, int]
    waiting: str | None = None

    def bare(self, dim: Dim) -> Dim:
        """The axes of a dim of which the tile has more than one index."""
        return tuple(axis for axis in dim if self.extents[axis] > 1)


@dataclass(slots=True)
class _Raising:
    block: Graph
    axes: Axes
    looped: int | None = None
    cuts: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)  # of each axis: grid dim and count
    tiles: list[_Tile] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    memo: dict[Step, int] = field(default_factory=dict)

    def kernel(self, sources: Sequence[Source]) -> RaisedKernel:
        inputs = [values[0] for item, values in self.block.numbered() if item.op == "input"]
        parts = [self.parts(*each) for each in zip(self.block.inputs, sources, inputs, strict=True)]
        for axis, cuts in ((axis, cuts) for part in parts for axis, (cuts, _) in part.items()):
            if cuts or axis not in self.cuts:
                self.cuts[axis] = cuts
        given = iter(zip(sources, parts, strict=True))
        outputs, stored = list[int](), list[Dims]()
        for item, values in self.block.numbered():
            if item.op == "output":
                tile = self.tiles[item.operands[0]]
                if tile.waiting is not None:
                    raise self.unreduced(item.operands[0])
                outputs.append(tile.place)
                stored.append(self.stored(item, tile))
            elif item.op == "input":
                self.tiles.append(self.load(item, *next(given), value=values[0]))
            else:
                self.tiles.append(self.node(item, values[0]))
        split = Split(self.looped, self.grid_axis(stored))
        blocks = tuple(sorted((axis, _product(cuts)) for axis, cuts in self.cuts.items() if _product(cuts) > 1))
        first = len(self.block.inputs)
        needed = self.needed(outputs)
        steps = [self.steps[i] for i in needed]
        loads = sorted({i for it in steps for i in it.operands if i < first})
        place = {old: new for new, old in enumerate([*loads, *(first + i for i in needed)])}
        if not place.keys() >= {*outputs}:
            raise OutsideError("boundary", "an output of it is an input")
        moved = (Step(it.op, _ordered(it.op, [place[i] for i in it.operands]), it.constants, it.reduced) for it in steps)
        ends = tuple(place[i] for i in outputs)
        structure = Structure(split, tuple(self.loads[i] for i in loads), tuple(moved), ends, proved=False)
        loop = self.block.loop if self.looped is not None else 1
        return RaisedKernel(structure, blocks, loop, tuple(self.values[i] for i in needed), tuple(stored))

    def needed(self, outputs: Sequence[int]) -> list[int]:
        """The numbers of the steps that the outputs depend on."""
        first = len(self.block.inputs)
        needed = {i for i in outputs if i >= first}
        for number in reversed(range(len(self.steps))):
            if first + number in needed:
                needed |= {i for i in self.steps[number].operands if i >= first}
        return [number - first for number in sorted(needed)]

    def name(self, axis: int) -> str:
        return self.axes.names[axis] if axis < len(self.axes.names) else "of partial results"

    def size(self, axis: int, dim: Dim, extent: int) -> int:
        """The size of an axis of a dim of a tensor; that of partial results is what is left."""
        if axis < len(self.axes.sizes):
            return self.axes.sizes[axis]
        for other in dim:
            extent //= self.axes.sizes[other] if other < len(self.axes.sizes) else 1
        return extent

    def parts(self, item: Node, source: Source, value: int) -> dict[int, tuple[tuple[tuple[int, int], ...], int]]:
        """For each axis of an input the grid dims that cut it, and its extent in the tile."""
        found: dict[int, tuple[tuple[tuple[int, int], ...], int]] = {}
        tile = self.block.types[value].shape
        for number, dim in enumerate(source.dims):
            splits = [(place, count) for place, count in enumerate(self.block.grid) if item["imap"][place] == number]
            if item["fmap"] == number and self.block.loop > 1:
                splits.append((LOOP, self.block.loop))
            left = [[axis, self.size(axis, dim, item["shape"][number])] for axis in dim]
            cuts: dict[int, list[tuple[int, int]]] = {axis: [] for axis in dim}
            at = 0
            for place, count in splits:
                while count > 1:
                    if at == len(left):
                        raise OutsideError("index", f"dim {number} of an input is cut, and has one index", value)
                    axis, extent = left[at]
                    if extent == 1 and len(left) > 1:
                        at += 1
                        continue
                    taken = count if len(dim) == 1 or extent % count == 0 else extent if count % extent == 0 else 0
                    if not taken:
                        names = "·".join(map(self.name, dim))
                        raise OutsideError("tiling", f"{count} parts of the axes {names} do not divide either of them", value)
                    if place == LOOP:
                        self.loop_over(axis, taken, value)
                    cuts[axis].append((place, taken))
                    left[at][1] = extent // taken
                    count //= taken
            for axis, extent in left:
                grid = tuple((place, count) for place, count in cuts[axis] if place != LOOP)
                found[axis] = grid, tile[number] if len(dim) == 1 else extent
        return found

    def loop_over(self, axis: int, count: int, value: int) -> None:
        if count != self.block.loop:
            raise OutsideError("loop", "its loop walks parts of two axes, and a loop of the search walks one", value)
        if self.looped not in (None, axis):
            assert self.looped is not None
            names = f"{self.name(self.looped)} and {self.name(axis)}"
            raise OutsideError("loop", f"its loop walks the axes {names} together, which are two in the program", value)
        self.looped = axis

    def load(self, item: Node, source: Source, parts: dict[int, tuple[tuple[tuple[int, int], ...], int]], value: int) -> _Tile:
        for axis, (cuts, _) in parts.items():
            if _product(cuts) != _product(self.cuts[axis]):
                text = f"the grid cuts the axis {self.name(axis)} in one input and not, or otherwise, in this one"
                raise OutsideError("index", text, value)
        self.loads.append(Load(source.number, item["fmap"] != REPLICATED and self.block.loop > 1))
        place = self.loads.index(self.loads[-1])
        return _Tile(place, source.dims, {axis: extent for axis, (_, extent) in parts.items()})

    def step(self, op: str, operands: Sequence[int], value: int, reduced: Dim = (), item: Node | None = None) -> int:
        """The place of a step; one that is there already is not repeated."""
        constants = () if item is None else tuple(item.get(name) for name in OPS[op].attributes)
        step = Step(op, _ordered(op, operands), constants, reduced)
        if step not in self.memo:
            self.memo[step] = len(self.block.inputs) + len(self.steps)
            self.steps.append(step)
            self.values.append(value)
        return self.memo[step]

    def unreduced(self, value: int) -> OutsideError:
        return OutsideError("loop", "it accumulates a tile over the loop, and uses the tile before it is reduced", value)

    def node(self, item: Node, value: int) -> _Tile:
        operands = [self.tiles[i] for i in item.operands]
        row = OPS[item.op]
        if any(tile.waiting for tile in operands) and row.kind not in (Kind.REARRANGEMENT, Kind.REDUCTION):
            raise self.unreduced(value)
        match row.kind:
            case Kind.ELEMENTWISE:
                layout, extents = self.joined([tile.layout for tile in operands], operands, value)
                return _Tile(self.step(item.op, [tile.place for tile in operands], value, item=item), layout, extents)
            case Kind.REDUCTION:
                return self.reduce(item.op, item, operands[0], item["dim"], value)
            case Kind.MATMUL:
                return self.matmul(operands[0], operands[1], value)
            case Kind.ACCUMULATOR if item.get("columns") is None:
                return self.accumulate(item, operands[0], value)
            case Kind.REARRANGEMENT:
                return self.rearrange(item, operands[0], value)
            case _:
                raise OutsideError("op", f"{item.op}: no block graph of the search has it", value)

    def joined(self, layouts: Sequence[Dims], tiles: Sequence[_Tile], value: int) -> tuple[Dims, dict[int, int]]:
        """The layout of a broadcast, and the extents of its axes."""
        extents: dict[int, int] = {}
        for tile in tiles:
            for axis, extent in tile.extents.items():
                if extents.setdefault(axis, extent) != extent:
                    text = f"the axis {self.name(axis)} is whole in one operand, a part in the other"
                    raise OutsideError("loop", text, value)
        pairs = list(zip_longest(*map(reversed, layouts), fillvalue=()))
        result: list[Dim] = []
        for dims in reversed(pairs):
            bare = {own for own in (tuple(a for a in dim if extents[a] > 1) for dim in dims) if own}
            if len(bare) > 1:
                one, other = (" and ".join(map(self.name, own)) for own in sorted(bare)[:2])
                text = f"it walks the axes {one} and {other} by one index, which are two in the program"
                raise OutsideError("index", text, value)
            result.append(tuple(dict.fromkeys(axis for dim in dims for axis in dim)))
        flat = [axis for dim in result for axis in dim if extents[axis] > 1]
        if len(flat) != len(set(flat)):
            raise OutsideError("index", "it has one axis of the program in two dims", value)
        return tuple(result), extents

    def reduce(self, op: str, item: Node | None, tile: _Tile, dim: int, value: int) -> _Tile:
        if item is not None:
            op, tile = self.unscaled(op, item, tile, dim)
        axes, place = tile.bare(tile.layout[dim]) or tile.layout[dim][:1], tile.place
        if not axes and self.block.types[value].shape != self.block.types[item.operands[0] if item else value].shape:
            raise OutsideError("op", f"{op} over a dim that a broadcast made", value)
        if tile.waiting is not None and (op != tile.waiting or self.looped not in axes):
            raise self.unreduced(value)
        for axis in axes:
            place = self.step(op, [place], value, (axis,))
        if tile.waiting is not None:
            place = self.step(f"accum_{op}", [place], value)
        layout = (*tile.layout[:dim], (), *tile.layout[dim + 1 :])
        return _Tile(place, layout, _extents_of(layout, tile))

    def unscaled(self, op: str, item: Node, tile: _Tile, dim: int) -> tuple[str, _Tile]:
        """A sum of a scaled ragged tile is its mean, as lowering writes it."""
        maker = self.block.node_of[item.operands[0]]
        cut = self.block.cuts.get(item.operands[0], {dim: None})[dim]
        if op != "sum" or cut is None or maker.op != "scale":
            return op, tile
        is_mean = maker["factor"] == Fraction(ceil(cut.extent / cut.part), cut.extent)
        return ("mean", self.tiles[maker.operands[0]]) if is_mean else (op, tile)

    def matmul(self, left: _Tile, right: _Tile, value: int) -> _Tile:
        lead, extents = self.joined([left.layout[:-2], right.layout[:-2]], [left, right], value)
        contracted = left.bare(left.layout[-1])
        if set(contracted) != set(right.bare(right.layout[-2])):
            names = (" and ".join(map(self.name, dim)) or "1" for dim in (left.layout[-1], right.layout[-2]))
            raise OutsideError("index", f"it contracts the axes {' with '.join(names)}, which are two in the program", value)
        ones = {*left.layout[-1]} & {*right.layout[-2]} & {self.looped}  # of an iteration, with one index
        contracted = (*contracted, *(ones - {*contracted})) or left.layout[-1][:1]
        layout = (*lead, left.layout[-2], right.layout[-1])
        one, other = ({axis for dim in tile.layout for axis in dim} for tile in (left, right))
        if one <= other and other <= one:  # no matmul for the search: neither operand has an axis of its own
            place = self.step("mul", [left.place, right.place], value)
            for axis in contracted:
                place = self.step("sum", [place], value, (axis,))
        else:
            place = self.step("matmul", [left.place, right.place], value, tuple(sorted(contracted)))
        return _Tile(place, layout, {axis: extents[axis] for dim in layout for axis in dim})

    def accumulate(self, item: Node, tile: _Tile, value: int) -> _Tile:
        kind = OPS[item.op].reduction
        assert kind is not None
        if self.block.loop == 1 or self.looped is None:
            if self.block.loop > 1:
                raise OutsideError("no loop", "it accumulates over a loop that walks no axis", value)
            return tile if item.get("dim") is None else self.reduce(kind, None, tile, item["dim"], value)
        if item.get("dim") is not None:
            tile = self.reduce(kind, None, tile, item["dim"], value)
        walked = [number for number, dim in enumerate(tile.layout) if self.looped in dim]
        if walked and self.is_piece(tile, self.looped):
            if tile.extents[self.looped] > 1:
                return _Tile(tile.place, tile.layout, tile.extents, kind)
            layout = tuple(tuple(axis for axis in dim if axis != self.looped) for dim in tile.layout)
            made = self.steps[tile.place - len(self.block.inputs)] if tile.place >= len(self.block.inputs) else None
            if made is not None and made.kind is Kind.MATMUL and kind == "sum":  # it contracts the one index, too
                place = self.step("matmul", made.operands, value, tuple(sorted((*made.reduced, self.looped))))
            else:
                place = self.step(kind, [tile.place], value, (self.looped,))
            tile = _Tile(place, layout, _extents_of(layout, tile))
        return _Tile(self.step(f"accum_{kind}", [tile.place], value), tile.layout, tile.extents)

    def is_piece(self, tile: _Tile, looped: int) -> bool:
        """Whether a tile has the part of one iteration of the looped axis, and not all that its block has."""
        return tile.extents[looped] < equal_or_ragged(self.axes.sizes[looped], _product(self.cuts[looped]))

    def rearrange(self, item: Node, tile: _Tile, value: int) -> _Tile:
        shape = self.block.types[value].shape
        match item.op:
            case "transpose":
                layout = tuple(tile.layout[dim] for dim in item["permutation"])
            case "reshape":
                layout = regrouped(tile.layout, tile.extents, shape, self.axes.names, value)
            case "broadcast":
                layout = ((),) * (len(shape) - len(tile.layout)) + tile.layout
            case _:
                raise OutsideError("op", f"{item.op}: no block graph of the search cuts, joins or repeats tiles", value)
        return _Tile(tile.place, layout, tile.extents, tile.waiting)

    def stored(self, item: Node, tile: _Tile) -> Dims:
        """The axes of the dims of the stored tensor."""
        spread = len(self.axes.sizes)
        dims, lead = [list(dim) for dim in tile.layout], list[Dim]()
        for place, target in enumerate(item["omap"]):
            walked = [axis for axis, cuts in self.cuts.items() if any(dim == place for dim, _ in cuts)]
            present = [axis for axis in walked if any(axis in dim for dim in dims)]
            if target == REPLICATED or self.block.grid[place] == 1:
                continue
            if target == NEW_DIM and not present:
                lead.append((spread,))
            elif not present:
                dims[target].insert(0, spread)
            elif target == NEW_DIM or not set(present) <= set(dims[target]):
                names = " and ".join(map(self.name, present))
                raise OutsideError("boundary", f"it stores the parts of the axis {names} in another dim than their tiles", None)
        return (*lead, *map(tuple, dims))

    def grid_axis(self, stored: Sequence[Dims]) -> int | None:
        """The axis that is split over the grid and reduced by a later kernel."""
        spread = len(self.axes.sizes)
        kept = [axis for dims in stored for dim in dims for axis in dim]
        split = [axis for axis, cuts in self.cuts.items() if _product(cuts) > 1 and axis not in kept]
        if spread not in kept:
            return None
        if len(split) != 1:
            names = ", ".join(map(self.name, split)) or "none"
            raise OutsideError("boundary", f"its partial results are those of parts of the axes {names}; wanted one axis")
        return split[0]


def regrouped(
    layout: Dims, extents: Mapping[int, int], shape: Sequence[int], names: Sequence[str], value: int | None = None
) -> Dims:
    """The axes of a layout, in their order, as dims of this shape. Raises OutsideError: an extent ends within an axis."""
    left = [axis for dim in layout for axis in dim]
    result: list[Dim] = []
    for extent in shape:
        own, product = list[int](), 1
        if extent == 1 and left and extents[left[0]] == 1:
            own.append(left.pop(0))
        while left and product < extent and product * extents[left[0]] <= extent:
            product *= extents[left[0]]
            own.append(left.pop(0))
        if product != extent:
            axis = (own or left or [len(names)])[-1]
            name = names[axis] if axis < len(names) else "of partial results"
            raise OutsideError("index", f"its reshape cuts the axis {name} in two", value)
        result.append(tuple(own))
    result[-1] += tuple(left)
    return tuple(result)


def _product(cuts: Sequence[tuple[int, int]]) -> int:
    return prod(count for _, count in cuts)


def _ordered(op: str, operands: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(operands)) if is_swappable(op) else tuple(operands)


def _extents_of(layout: Dims, tile: _Tile) -> dict[int, int]:
    return {axis: tile.extents[axis] for dim in layout for axis in dim}
