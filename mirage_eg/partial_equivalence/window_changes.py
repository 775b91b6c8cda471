"""Changes of windowed ops (convolutions, pools) that go with moves: strides, dilations, padding and groups."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from math import gcd, prod
from typing import Any

from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.windows import AVG_POOL2D, CONV2D
from mirage_eg.partial_equivalence.moves import WHOLE, LayoutMove

WINDOWED = (CONV2D, AVG_POOL2D)
NAMES = {WHOLE[0]: "batch", WHOLE[2]: "height", WHOLE[3]: "width"}
EXTENT = 0  # as a dilation: the extent of the side before the moves


@dataclass(frozen=True, slots=True)
class SideChange:
    """The window along one side: strides, dilations and padding times `times[i]`, over `over`; EXTENT as a dilation."""

    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (1, 1)


SAME = SideChange()


@dataclass(frozen=True, slots=True)
class Change:
    """The changes of a windowed op: of both sides, and of the groups (times, over); then height and width may change places.

    The dilation and the padding of a side follow the moves of digits to its inner end and from there, in `follows`.
    """

    sides: tuple[SideChange, SideChange] = (SAME, SAME)
    groups: tuple[int, int] = (1, 1)
    exchanged: bool = False
    follows: tuple[tuple[LayoutMove, ...], tuple[LayoutMove, ...]] = ((), ())

    def with_factor(self, old: int, new: int) -> "Change":
        """The change with another factor in the place of one."""
        sides = []
        for side in self.sides:
            ratios = [(side.stride, side.dilation, side.padding)[place] for place in range(3)]
            sides.append(SideChange(*((new if times == old else times, over) for times, over in ratios)))
        down, across = sides
        first, second = (
            tuple(replace(move, factor=new) if move.factor == old else move for move in moves) for moves in self.follows
        )
        return replace(self, sides=(down, across), follows=(first, second))

    def show(self, item: Node) -> str:
        """The change in words: h stride × 2, padding × 2."""
        words = list[str]()
        for side, one in zip("hw", self.sides, strict=True):
            for name in ("stride", "dilation", "padding"):
                times, over = getattr(one, name)
                if (times, over) != (1, 1):
                    how = f"/ {over}" if over > 1 else f"× {NAMES.get(times, times)}"
                    words.append(f"{side} {name} {'is 0' if name == 'padding' and not times else how if times else '= extent'}")
        for place, letter in enumerate("hw"):
            for how, factors in zip("×/", inner_factors(self.follows[place], place), strict=True):
                words += [f"{letter} dilation {how} {NAMES.get(it, it)}" for it in factors]
        if self.groups != (1, 1):
            words.append(f"groups {'/ ' + str(self.groups[1]) if self.groups[1] > 1 else '× ' + str(self.groups[0])}")
        if self.exchanged:
            words.append("h and w exchanged")
        return f"{item.op} with {', '.join(words)}"


def inner_factors(moves: Sequence[LayoutMove], side: int) -> tuple[list[int], list[int]]:
    """The digits that moves bring to the inner end of a side, and those that they take from it."""
    inside = [move.factor for move in moves if move.target == 2 + side and not move.to_outer]
    return inside, [move.factor for move in moves if move.source == 2 + side and not move.from_outer]


def following(item: Node, program: Graph, moves: Sequence[LayoutMove]) -> Change:
    """The change of a windowed op that follows moves of its images, along sides with several taps."""
    down, across = (
        tuple(it for it in moves if taps > 1 and any(inner_factors((it,), side)))
        for side, taps in enumerate(taps_of(item, program))
    )
    return Change(follows=(down, across))


def _times(number: int, ratio: tuple[int, int]) -> int:
    """number · times / over, rounded down."""
    return number * ratio[0] // ratio[1]


def with_changes(item: Node, change: Change, program: Graph) -> Mapping[str, Any]:
    """The attributes of a windowed op after a change; the padding grows and shrinks at both ends."""
    attributes = item.mapping
    extents = program.types[item.operands[0]].shape[2:]
    strides, dilations, pads = [], [], [0] * 4
    for side, (one, extent) in enumerate(zip(change.sides, extents, strict=True)):
        times, over = map(prod, inner_factors(change.follows[side], side))
        dilation = extent if one.dilation == (EXTENT, 1) else _times(dilations_of(item)[side], one.dilation)
        if dilation * times % over:
            raise GraphError(f"got a dilation of {dilation}, wanted a multiple of {over}")
        strides.append(_times(item["strides"][side], one.stride))
        dilations.append(dilation * times // over)
        for end in (side, side + 2):
            pads[end] = _times(item["pads"][end], one.padding) * times // over
    attributes |= {"strides": tuple(strides), "pads": tuple(pads)}
    if "dilations" in attributes:
        attributes["dilations"] = tuple(dilations)
    elif any(it != 1 for it in dilations):
        raise GraphError(f"got dilations {dilations} for {item.op}, wanted 1")
    if "groups" in attributes:
        attributes["groups"] = _times(item["groups"], change.groups)
    if change.exchanged:
        top, left, bottom, right = attributes["pads"]
        attributes |= {name: attributes[name][::-1] for name in ("strides", "dilations", "window") if name in attributes}
        attributes["pads"] = (left, top, right, bottom)
    return attributes


def taps_of(item: Node, program: Graph) -> Shape:
    """The taps of a window along both sides."""
    taps: Shape = item.get("window") or program.types[item.operands[1]].shape[2:]
    return taps


def dilations_of(item: Node) -> tuple[int, int]:
    """The dilations of a windowed op; 1 where it has none."""
    down, across = item.get("dilations", (1, 1))
    return down, across


def changes_of(
    program: Graph, before: Sequence[Sequence[LayoutMove]], factors: Sequence[int]
) -> Iterator[tuple[tuple[int, Change], ...]]:
    """Changes of all windowed ops of a program for moves of its inputs, first none; without moves those of one dilation."""
    if any(move.exchanges for moves in before for move in moves):
        yield tuple((number, Change(exchanged=True)) for number, item in enumerate(program.nodes) if item.op in WINDOWED)
        return
    given = dict(zip(program.input_values, before, strict=True))
    first = {value: program.types[value].shape for value in given}
    shapes = {value: reduce(lambda shape, move: move.shape(shape), moves, first[value]) for value, moves in given.items()}
    options = []
    for number, item in enumerate(program.nodes):
        if item.op in WINDOWED:
            moves = [move for operand in item.operands for move in given.get(operand, ())]
            filters = item.operands[-1]
            window = item.get("window") or shapes.get(filters, program.types[filters].shape)[2:]
            images = shapes.get(item.operands[0], program.types[item.operands[0]].shape)[2:]
            options.append([(number, change) for change in _changes(item, moves, images, window, factors)])
    for chosen in product(*options):
        yield tuple((number, change) for number, change in chosen if change != Change())


def _changes(item: Node, moves: Sequence[LayoutMove], images: Shape, window: Shape, factors: Sequence[int]) -> list[Change]:
    """The changes of one op: of the sides that a move touches and leaves, and of the groups where one touches the channels."""
    if not moves:
        wide = [SideChange(dilation=(factor, 1), padding=(factor, 1)) for factor in factors]
        narrow = [SideChange(dilation=(1, it), padding=(1, it)) for it in factors if not gcd(*dilations_of(item)) % it]
        return [Change(), *(Change((side, side)) for side in (*wide, *narrow) if max(window) > 1)]
    touched = [_factors([move for move in moves if side in (move.source, move.target)]) for side in (2, 3)]
    channels = {move.factor for move in moves if {0, 1} & {move.source, move.target}}
    groups = [(1, 1)]
    if "groups" in item.mapping:
        groups += [(factor, 1) for factor in sorted(channels)]
        groups += [(1, factor) for factor in sorted(channels) if item["groups"] % factor == 0]
    sides = [
        _side_changes(item["strides"][side], dilations_of(item)[side], taps, sorted(found) if images[side] > 1 else ())
        for side, (found, taps) in enumerate(zip(touched, window, strict=True))
    ]
    return [Change((down, across), group) for down, across in product(*sides) for group in groups]


def _factors(moves: Sequence[LayoutMove]) -> set[int]:
    """The factors of moves, and that of all of them together."""
    return {move.factor for move in moves} | ({prod(move.factor for move in moves)} if moves else set())


def _side_changes(stride: int, dilation: int, taps: int, factors: Sequence[int]) -> list[SideChange]:
    """The changes along a side for the factors that move; those of the dilation only for a window of several taps."""
    changes = [SAME]
    for factor in factors:
        wide, narrow = (factor, 1), (1, factor)
        changes.append(SideChange(stride=wide, padding=wide))
        if taps > 1:
            changes += [SideChange(dilation=wide, padding=wide), SideChange(dilation=(EXTENT, 1), padding=(0, 1))]
        if taps > 1 and dilation % factor == 0:
            changes.append(SideChange(dilation=narrow, padding=narrow))
        if stride % factor == 0 and (taps == 1 or dilation % factor == 0):
            changes.append(SideChange(stride=narrow, dilation=narrow if taps > 1 else (1, 1), padding=narrow))
    return changes
