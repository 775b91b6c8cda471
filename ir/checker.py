"""The rules of a legal graph, checked node by node: form, types, phases, dependence on the grid, ragged dims."""

from collections.abc import Sequence
from fractions import Fraction
from math import log10, prod
from sys import float_info
from typing import Any

from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import ElementTypeError, GraphError
from mirage_eg.ir.node import NEW_DIM, REPLICATED, NestedGraph, Node, Phase, TensorType
from mirage_eg.ir.ops import OPS, Kind, Level
from mirage_eg.ir.plurals import counted
from mirage_eg.ir.ragged import LOOP, Cut, Cuts, check_empty_iterations, given_part, part_extent, result_cuts
from mirage_eg.ir.result_dtypes import WRAPPING, result_dtype
from mirage_eg.ir.shapes import Shape, text
from mirage_eg.ir.sizes import SizeExpression, divisor, read_dims

MAX_GRID_DIMS = 3  # CUDA has no more
_NO_DIMS = frozenset[int]()


class Checker:
    """The nodes of a graph that grows, with types, phases and grid dependence; `Graph` and the builders use it."""

    def __init__(self, level: Level, grid: tuple[int, ...] = (), loop: int = 1) -> None:
        if level is Level.BLOCK:
            if not 1 <= len(grid) <= MAX_GRID_DIMS or any(extent < 1 for extent in grid) or loop < 1:
                raise GraphError(f"got grid {text(grid)} and loop {loop}; wanted one to three grid extents and a loop, all ≥ 1")
        elif grid or loop != 1:
            raise GraphError(f"got grid {text(grid)} and loop {loop} at the {level} level; only block graphs have them")
        self.level, self.grid, self.loop = level, grid, loop
        self.nodes: list[Node] = []
        self.types: list[TensorType] = []
        self.phases: list[Phase] = []
        self.grid_dims: list[frozenset[int]] = []
        self.cuts: dict[int, Cuts] = {}  # of values that have a ragged dim
        self.inputs: list[TensorType] = []
        self.written: set[int] = set()  # the places of inputs whose memory receives a result
        self.outputs: list[TensorType] = []

    def append(self, item: Node) -> range:
        """Check one more node and return the positions of its values; an error changes nothing."""
        try:
            _check_form(self, item)
            operands = [self.types[i] for i in item.operands]
            phase, varies = Phase.PROLOGUE, _NO_DIMS
            if self.level is Level.BLOCK:
                phase, varies = _block_dependence(self, item)
            outputs = [_output_type(self, item, operands[0], varies)] if item.op == "output" else []
            results = [] if outputs else _result_types(self, item, operands)
            cuts = _cuts(self, item, operands, results)
            if outputs and self.cuts:
                check_empty_iterations(self.nodes, self.cuts, (*self.grid, self.loop))
        except GraphError as error:
            raise type(error)(f"node {len(self.nodes)}: {item.op}: {error}") from None
        start = len(self.types)
        if any(cuts):
            self.cuts[start] = cuts
        self.nodes.append(item)
        self.outputs += outputs
        self.inputs += results if item.op == "input" else []
        if item.op == "output" and item.get("into") is not None:
            self.written.add(item["into"])
        self.types += results
        self.phases += [phase] * len(results)
        self.grid_dims += [varies] * len(results)
        return range(start, len(self.types))


def _check_form(checker: Checker, item: Node) -> None:
    row = OPS.get(item.op)
    if row is None:
        raise GraphError(f"no such op; the op table has {', '.join(sorted(OPS))}")
    if checker.level not in row.levels:
        raise GraphError(f"got it at the {checker.level} level, wanted {', '.join(sorted(row.levels))}")
    if not row.arity[0] <= len(item.operands) <= row.arity[1]:
        wanted = row.arity[0] if row.arity[0] == row.arity[1] else f"{row.arity[0]} to {row.arity[1]}"
        raise GraphError(f"got {counted(len(item.operands), 'operand')}, wanted {wanted}")
    for operand in item.operands:
        if not 0 <= operand < len(checker.types):
            raise GraphError(f"got operand %{operand}; wanted one of the {len(checker.types)} values before this node")
    given, kinds = item.mapping, row.given
    for name in row.required:
        if given.get(name) is None:
            raise GraphError(f"attribute `{name}` is missing")
    for name, value in given.items():
        kind = kinds.get(name)
        if kind is None:
            raise GraphError(f"got unknown attribute `{name}`; it takes {', '.join(kinds) or 'none'}")
        if value is None:
            continue
        if not _is_of(value, kind):
            raise GraphError(f"got {name} = {value!r}, wanted {kind}")
        if kind == "rational" and abs(value) > _LARGEST:
            raise GraphError(f"got {name} of about 10^{decimal_exponent(value)}, wanted at most 1.8e308, as a float64 holds")
        if name == "dtype" and value not in DType.__members__:
            raise GraphError(f"got dtype {value!r}, wanted one of {', '.join(DType)}")


_LARGEST = Fraction(float_info.max)


def decimal_exponent(value: Fraction) -> int:
    """About log₁₀ |value| of a number of any size."""
    return round((value.numerator.bit_length() - value.denominator.bit_length()) * log10(2))


def _is_of(value: Any, kind: str) -> bool:
    match kind:
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "ints":
            return isinstance(value, tuple) and all(isinstance(i, int) and not isinstance(i, bool) for i in value)
        case "rational":
            return isinstance(value, Fraction)
        case "flag":
            return value is True
        case "text":
            return isinstance(value, str) and value.isprintable()  # for listings and messages of one line
        case "graph":
            return isinstance(value, NestedGraph)
        case _:
            raise AssertionError(kind)


def _result_types(checker: Checker, item: Node, operands: Sequence[TensorType]) -> list[TensorType]:
    match item.op:
        case "input":
            return [_input_type(checker, item)]
        case "block" | "thread":
            return _call_types(item, operands)
        case _:
            shape = OPS[item.op].shape([operand.shape for operand in operands], item.mapping)
            dtype = result_dtype(item, [operand.dtype for operand in operands])
            if checker.level is not Level.KERNEL and dtype.is_integer and dtype.itemsize < 4 and item.op in WRAPPING:
                raise ElementTypeError(f"got {dtype}, in which kernels do not wrap; cast the operands to int32")
            return [TensorType(shape, dtype)]


def _call_types(item: Node, operands: Sequence[TensorType]) -> list[TensorType]:
    inner = item["graph"]
    if str(inner.level) != item.op:
        raise GraphError(f"got a {inner.level} graph inside, wanted a {item.op} graph")
    wanted = inner.input_types
    if len(wanted) != len(operands):
        raise GraphError(f"got {counted(len(operands), 'operand')} for a graph of {counted(len(wanted), 'input')}")
    for place, (got, want) in enumerate(zip(operands, wanted, strict=True)):
        if got != want:
            raise GraphError(f"got {got} as operand {place}, but input {place} of the graph inside is {want}")
    if item.op == "thread" and len(inner.outputs) != 1:
        raise GraphError(f"got a thread graph of {counted(len(inner.outputs), 'output')}, wanted one")
    return list(inner.output_types)


def _input_type(checker: Checker, item: Node) -> TensorType:
    dtype = DType(item["dtype"])
    shape: Shape = item["shape"]
    if any(extent < 1 for extent in shape):
        raise GraphError(f"got shape {text(shape)}; extents must be at least 1")
    if (strides := item.get("strides")) is not None and len(strides) != len(shape):
        raise GraphError(f"got {counted(len(strides), 'stride')} for the {counted(len(shape), 'dim')} of {text(shape)}")
    if checker.level is not Level.BLOCK:
        if any(item.get(name) is not None for name in ("imap", "fmap", "tile")):
            raise GraphError("got imap, fmap or tile outside a block graph")
        read_dims(item.get("dims"), len(shape))
        return TensorType(shape, dtype)
    if item.get("weight") is not None:
        raise GraphError("got weight in a block graph, wanted it at an input of the kernel graph")
    imap, fmap = item.get("imap"), item.get("fmap", REPLICATED)
    if imap is None or len(imap) != len(checker.grid):
        raise GraphError(f"got imap {imap}, wanted one entry for each of the {len(checker.grid)} grid dims")
    for target in (*imap, fmap):
        if target != REPLICATED and not 0 <= target < len(shape):
            raise GraphError(f"got a map to dim {target} of {text(shape)}; wanted a dim, or -1 for replicated")
    tile = []
    given: Shape | None = item.get("tile")
    if given is not None and len(given) != len(shape):
        raise GraphError(f"got a tile of {len(given)} dims for the {len(shape)} dims of {text(shape)}")
    for dim, extent in enumerate(shape):
        splits = _splits(checker, item, dim)
        count = prod(count for _, count in splits)
        part = part_extent(extent, count) if given is None else given_part(extent, given[dim], splits)
        if part is None:
            if given is not None:
                raise GraphError(
                    f"got a tile of {given[dim]} for {count} parts of dim {dim} of {text(shape)}; wanted none empty"
                )
            raise GraphError(
                f"got {count} parts of dim {dim} of {text(shape)} (grid {checker.grid}, imap {imap}, loop "
                f"{checker.loop}, fmap {fmap}); {extent} is not divisible by {count}, and parts of "
                f"{-(-extent // count)} leave the last one empty"
            )
        tile.append(part)
    return TensorType(tuple(tile), dtype)


def _splits(checker: Checker, item: Node, dim: int) -> list[tuple[int, int]]:
    """The grid dims and the loop that split a dim of an input, slowest first: (grid dim or LOOP, how many parts)."""
    targets = (*zip(range(len(checker.grid)), checker.grid, item["imap"], strict=True),)
    splits = [(place, count) for place, count, target in targets if target == dim]
    return [*splits, (LOOP, checker.loop)] if item.get("fmap", REPLICATED) == dim else splits


def _cuts(checker: Checker, item: Node, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Cuts:
    """How the dims of a node's result are cut, where tiles are not all of one extent; else nothing."""
    if item.op == "input" and checker.level is Level.BLOCK:
        parts = enumerate(zip(item["shape"], results[0].shape, strict=True))
        return tuple(_cut(extent, part, _splits(checker, item, dim)) for dim, (extent, part) in parts)
    if not checker.cuts or item.op == "output" or not any(operand in checker.cuts for operand in item.operands):
        return ()
    known = [checker.cuts.get(i, (None,) * len(kind.shape)) for i, kind in zip(item.operands, operands, strict=True)]
    shapes = [kind.shape for kind in operands]
    return result_cuts(item.op, list(zip(shapes, known, strict=True)), results[0].shape, item.mapping)


def _cut(extent: int, part: int, splits: Sequence[tuple[int, int]]) -> Cut | None:
    moved = part * prod(count for _, count in splits[1:])  # by a step of the slowest split, whose count follows from the size
    held = not splits  # by one tile, which another size may not fill
    sized = isinstance(extent, SizeExpression)
    if (not held and divisor(extent) % moved == 0) if sized else extent == moved * prod(count for _, count in splits[:1]):
        return None
    if part == 1 and splits:
        raise GraphError(
            f"got tiles of one element of a dim of {extent} in {prod(count for _, count in splits)} parts; "
            "wanted none empty, or larger tiles"
        )
    steps, moved = [], part
    for place, count in reversed(splits):
        if _may_be_several(count):
            steps.append((place, moved))
        moved *= count
    return Cut(extent, part, tuple(reversed(steps)))


def _may_be_several(count: int) -> bool:
    """Whether a grid dim or the loop has more than one step; a count that depends on sizes, whether it has at one of them."""
    return count > 1 or isinstance(count, SizeExpression)


def _block_dependence(checker: Checker, item: Node) -> tuple[Phase, frozenset[int]]:
    operand_phases = {checker.phases[i] for i in item.operands}
    phase = max(operand_phases, default=Phase.PROLOGUE)
    varies = _NO_DIMS.union(*(checker.grid_dims[i] for i in item.operands))
    if item.op == "input":
        looped = item.get("fmap", REPLICATED) != REPLICATED and _may_be_several(checker.loop)
        maps = enumerate(zip(checker.grid, item.get("imap") or (), strict=False))
        varies = frozenset(dim for dim, (extent, target) in maps if target != REPLICATED and _may_be_several(extent))
        return (Phase.LOOP if looped else Phase.PROLOGUE), varies
    if operand_phases >= {Phase.LOOP, Phase.EPILOGUE}:
        raise GraphError("got one operand that varies over the loop and one computed after it; accumulate the first")
    if item.kind is Kind.ACCUMULATOR:
        if phase is Phase.EPILOGUE:
            raise GraphError("got an operand computed after the loop; an accumulator takes one from the loop or before it")
        return Phase.EPILOGUE, varies
    if item.op == "output" and phase is Phase.LOOP:
        raise GraphError("got a value that varies over the loop; accumulate it first")
    return phase, varies


def _check_written_input(checker: Checker, into: int, result: TensorType) -> None:
    if not 0 <= into < len(checker.inputs) or into in checker.written:
        free = [place for place in range(len(checker.inputs)) if place not in checker.written]
        raise GraphError(
            f"got into = {into}; wanted the place of an input before it that no other result is written into: {free}"
        )
    if checker.inputs[into] != result:
        raise GraphError(f"got a result of {result} into input {into} of {checker.inputs[into]}; wanted equal types")


def _check_strides(item: Node, dims: int) -> None:
    if (strides := item.get("strides")) is not None and len(strides) != dims:
        raise GraphError(f"got {counted(len(strides), 'stride')} for an output of {counted(dims, 'dim')}")


def _output_type(checker: Checker, item: Node, tile: TensorType, varies: frozenset[int]) -> TensorType:
    dtype = DType(item["dtype"]) if item.get("dtype") else tile.dtype
    if checker.level is not Level.BLOCK:
        if item.get("omap") is not None:
            raise GraphError("got an omap of an output outside a block graph")
        result = TensorType(tile.shape, dtype)
        _check_strides(item, len(tile.shape))
        if (into := item.get("into")) is not None:
            _check_written_input(checker, into, result)
        return result
    if item.get("into") is not None:
        raise GraphError("got into in a block graph, wanted it at an output of the kernel graph")
    omap = item.get("omap")
    if omap is None or len(omap) != len(checker.grid):
        raise GraphError(f"got omap {omap}, wanted one entry for each of the {len(checker.grid)} grid dims")
    shape = list(tile.shape)
    new: list[int] = []
    _check_strides(item, len(shape) + omap.count(NEW_DIM))
    for dim, (extent, target) in enumerate(zip(checker.grid, omap, strict=True)):
        if target == NEW_DIM:
            new.append(extent)
        elif target == REPLICATED:
            if dim in varies:
                raise GraphError(f"got omap {omap}: the value varies with grid dim {dim}, which must map to a dim or a new one")
        elif 0 <= target < len(tile.shape):
            shape[target] *= extent
        else:
            raise GraphError(f"got omap {omap} for tile {text(tile.shape)}; wanted dims, -1 or -2 (a new dim)")
    for target, cut in enumerate(checker.cuts.get(item.operands[0], ())):
        if cut is None:
            continue
        mapped = {dim for dim, extent in enumerate(checker.grid) if omap[dim] == target and _may_be_several(extent)}
        if {place for place, _ in cut.steps} != mapped:
            raise GraphError(
                f"got omap {omap}: dim {target} of the tile is in parts of {cut.part} with a rest of {cut.rest}; wanted the "
                "grid dims that cut it, and no others, mapped to it"
            )
        shape[target] = cut.extent
    return TensorType((*new, *shape), dtype)
