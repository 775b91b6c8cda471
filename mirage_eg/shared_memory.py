"""What shared memory Triton takes for a block graph: a model of its allocation, checked against what the compiler reports.

The ops are walked in the order in which they are emitted; each buffer lives from one place to another, and the most that lives
at once is the answer. Modelled, as seen in what Triton compiles (benchmarks/shared_memory.py measures the agreement):
- wgmma (sm_90, 64 rows or more, whole warp groups, no batch) reads both operands from shared memory; a computed left one comes
  through registers. mma loads both into registers when the operand is needed.
- a load in the loop behind a tl.dot is fetched ahead into a ring: `stages` buffers where wgmma reads it, else `stages` − 1; the
  weight of swapped operands under mma is not, nor a load of less than 4 bytes a thread;
- a load outside the loop lies there from the load to its last product; if they are in different phases, mma copies it late;
- a computed operand is stored where it stands, but for one whose product already lies as mma wants it;
- a product that is only added to something is computed there;
- results of products are stored in another layout than they are computed in; reductions across warps take a few bytes a row.
What other kinds of GPU do is not modelled; their kernels count as mma.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from mirage_eg.backends.warps import WARP
from mirage_eg.block_code import WGMMA_TARGETS, Code, Dot, lowered
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph, Phase
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.register_layouts import left_registers, mma_registers, row_registers, row_warps, scratch_share

_WGMMA_COLUMNS = 256  # most of one instruction
_ASYNC_BYTES = 4  # that a thread must at least copy


def shared_memory(block: Graph, stages: int, warps: int | None = None, swapped: bool = False, target: str = "sm_90") -> int:
    """Bytes of shared memory of one block."""
    code = Code(lowered(block), stages, warps or block.threads // WARP, swapped, target in WGMMA_TARGETS)
    buffers = [*_operand_buffers(code), *_result_buffers(code)]
    return max((sum(each.nbytes for each in buffers if each.first <= one.first <= each.last) for one in buffers), default=0)


@dataclass(frozen=True, slots=True)
class _Buffer:
    """Bytes and the first and last moment of their life: a node at place p reads at 2p and makes its value at 2p + 1."""

    nbytes: int
    first: int
    last: int


# --- What the products read --------------------------------------------------------------------------------------------------


def _operand_buffers(code: Code) -> Iterator[_Buffer]:
    rings = _rings(code)
    first, last = code.loop
    for load, count in rings.items():
        yield _Buffer(count * code.nbytes(load), 2 * first, 2 * last + 1)
    outside: dict[int, list[Dot]] = {}
    for dot in code.dots.values():
        for side, operand in enumerate(dot.operands):
            phase = code.graph.phases[operand]
            if not dot.half:
                halved = code.is_load(operand) and any(other.half and operand in other.operands for other in code.dots.values())
                itemsize = code.graph.types[operand if halved else dot.value].dtype.itemsize
                yield _Buffer(code.nbytes(operand, itemsize), 2 * code.place[operand] + 1, 2 * dot.at)
            elif operand in rings:
                pass
            elif code.is_load(operand) and phase is Phase.LOOP:
                yield _Buffer(code.nbytes(operand), 2 * dot.at, 2 * dot.at)
            elif code.is_load(operand) or (phase is not Phase.LOOP and dot.phase is Phase.LOOP):
                outside.setdefault(operand, []).append(dot)
            else:
                yield from _computed(code, dot, side, rings)
    for operand, dots in outside.items():
        yield from _kept(code, operand, dots, bool(rings))


def _rings(code: Code) -> dict[int, int]:
    """Of each load that is fetched ahead through shared memory, its buffers."""
    rings: dict[int, int] = {}
    for dot in code.dots.values():
        if dot.phase is not Phase.LOOP:
            continue
        for side, operand in enumerate(dot.operands):
            behind = code.behind(operand, until=code.dots)
            if not behind.isdisjoint(code.dots):
                continue  # what joins a product is fetched into registers
            direct = code.is_load(operand)
            for load in filter(code.is_load, behind):
                small = code.nbytes(load) < _ASYNC_BYTES * WARP * code.warps or _run_bytes(code, load) < _ASYNC_BYTES
                away = dot.turned and side == 0 and not (direct and dot.wgmma) and len(code.readers[load]) == 1
                if code.graph.phases[load] is not Phase.LOOP or small or away:
                    continue
                only = all(reader.op == "matmul" for reader, _ in code.readers[load])
                count = code.stages if direct and dot.wgmma and only else code.stages - 1
                rings[load] = max(rings.get(load, 0), count)
    return {load: count for load, count in rings.items() if count}


def _run_bytes(code: Code, load: int) -> int:
    """Bytes of a row-major tensor that a load finds side by side, as far as the last dim says."""
    long = [dim for dim, extent in enumerate(code.makers[load]["shape"]) if extent > 1]
    kind = code.graph.types[load]
    return (kind.shape[long[-1]] if long else 1) * kind.dtype.itemsize


def _kept(code: Code, operand: int, dots: list[Dot], pipelined: bool) -> Iterator[_Buffer]:
    """An operand that is loaded or computed outside the loop, or before it."""
    nbytes, made = code.nbytes(operand, code.graph.types[dots[0].value].dtype.itemsize), 2 * code.place[operand] + 1
    phase = code.graph.phases[operand]
    weights = [
        dot for dot in dots if dot.turned and dot.operands[0] == operand and not dot.wgmma and dot.phase is not Phase.LOOP
    ]
    for dot in weights:
        share = _turned_share(code, dot)
        yield _Buffer(int(nbytes * share), 2 * dot.at, 2 * dot.at)
    if not (dots := [dot for dot in dots if dot not in weights]):
        return
    ends = {dot.value: 2 * code.loop[1] + 1 if dot.phase is Phase.LOOP else 2 * dot.at for dot in dots}
    read_by_wgmma = [dot for dot in dots if dot.wgmma]
    same = [2 * dot.at for dot in dots if dot.phase is phase]
    looped = [dot for dot in dots if dot.phase is Phase.LOOP]
    if read_by_wgmma:
        if all(dot.turned and dot.phase is not phase for dot in read_by_wgmma):
            yield from (_Buffer(nbytes, 2 * dot.at, 2 * dot.at) for dot in read_by_wgmma)
        else:
            yield _Buffer(nbytes, made, max(ends[dot.value] for dot in read_by_wgmma))
    elif same:  # mma keeps in registers what it has read
        yield _Buffer(nbytes, made, min(same))
    elif looped:
        alike = len({dot.warps for dot in dots}) == 1
        yield _Buffer(nbytes, made, 2 * code.loop[0] - 1 if alike and len(looped) < len(dots) else max(ends.values()) - 1)
    elif pipelined:
        yield from (_Buffer(nbytes, 2 * dot.at, 2 * dot.at) for dot in dots)
    else:
        yield _Buffer(nbytes, made, max(ends.values()))


def _computed(code: Code, dot: Dot, side: int, rings: Mapping[int, int]) -> Iterator[_Buffer]:
    """An operand that ops made."""
    operand = dot.operands[side]
    itemsize = code.graph.types[dot.value].dtype.itemsize
    nbytes, made, read = code.nbytes(operand, itemsize), 2 * code.place[operand] + 1, 2 * dot.at
    if code.graph.phases[operand] is Phase.EPILOGUE:
        made = max(made, 2 * code.loop[1] + 2)
    behind = code.behind(operand, until=code.dots)
    late = [code.dots[i] for i in behind & code.dots.keys()]
    if dot.wgmma and side == 1:
        yield _Buffer(nbytes, made, max(made, read))
    elif dot.turned and side == 1 and late:
        yield _Buffer(nbytes, read - 1, read - 1)
    elif late or _stays(code, dot, side, behind - rings.keys()):
        if not any(_lies_right(dot, side, product) for product in late):
            yield _Buffer(nbytes, made, max(made, read if side else read - 1))
    else:  # elementwise ops of loads, which are brought where mma wants them beforehand
        for load in filter(code.is_load, behind):
            if load not in rings:
                when = 2 * dot.at if code.graph.phases[load] is Phase.LOOP else 2 * code.place[load] + 1
                yield _Buffer(code.nbytes(load), when, when)


def _stays(code: Code, dot: Dot, side: int, behind: set[int]) -> bool:
    """Whether an operand changes its layout where it is computed, and not its loads before that."""
    if dot.turned and side == 0:
        full = prod(code.padded[dot.operands[0]])
        return any(code.is_load(i) and prod(code.padded[i]) == full for i in behind)
    return any(OPS[code.makers[i].op].kind in (Kind.REDUCTION, Kind.ACCUMULATOR) for i in behind)


def _lies_right(dot: Dot, side: int, made: Dot) -> bool:
    """Whether a product lies in the registers in which another product wants it."""
    if dot.turned or made.turned or dot.wgmma != made.wgmma:
        return False
    return side == 0 if dot.wgmma else dot.warps == made.warps and made.warps[1 - side] == 1


# --- What becomes of results -------------------------------------------------------------------------------------------------


def _result_buffers(code: Code) -> Iterator[_Buffer]:
    for at, (item, values) in enumerate(code.order):
        if item.op == "output":
            behind = code.behind(item.operands[0], until=code.dots)
            if late := [code.dots[i] for i in behind & code.dots.keys()]:
                dtype = DType(item["dtype"]) if item.get("dtype") else code.graph.types[item.operands[0]].dtype
                nbytes = code.nbytes(item.operands[0], dtype.itemsize) * _changed_share(code, late[0], item.operands[0], dtype)
                yield _Buffer(int(nbytes), 2 * at, 2 * at)
        elif OPS[item.op].kind is Kind.REDUCTION:
            operand = item.operands[0]
            across = row_warps(code.padded[operand], 4, code.warps)[item["dim"]]
            if across > 1 and code.behind(operand).isdisjoint(code.dots):
                yield _Buffer(code.nbytes(values[0], 4) * across, 2 * at + 1, 2 * at + 1)
    for dot in code.dots.values():
        yield from _joined(code, dot)


def _joined(code: Code, dot: Dot) -> Iterator[_Buffer]:
    """What joins a product in an elementwise op changes its layout, or the product of swapped operands does."""
    for reader, at in code.readers[dot.value]:
        if OPS[reader.op].kind is not Kind.ELEMENTWISE:
            continue
        sources = {i for operand in reader.operands if operand != dot.value for i in _sources(code, operand)}
        for source in sources:
            if prod(code.padded[source]) < prod(code.padded[dot.value]) or code.makers[source].op == "matmul":
                continue
            if code.is_load(source) and not dot.turned:
                dtype = code.graph.types[source].dtype
                made = 2 * code.place[source] + 1
                yield _Buffer(int(code.nbytes(source) * _changed_share(code, dot, source, dtype)), made, made)
            elif OPS[code.makers[source].op].kind is not Kind.ACCUMULATOR:
                share = 1.0 if dot.turned else _changed_share(code, dot, source, DType.float32)
                yield _Buffer(int(code.nbytes(source, 4) * share), 2 * at, 2 * at)


def _sources(code: Code, value: int) -> set[int]:
    """What elementwise ops and changes of shape make a value from."""
    through = (Kind.ELEMENTWISE, Kind.REARRANGEMENT)
    ends = {i for i in code.makers if OPS[code.makers[i].op].kind not in through}
    return code.behind(value, until=ends) & ends


def _changed_share(code: Code, dot: Dot, value: int, dtype: DType) -> float:
    """How much of a tile is in shared memory at once while it changes between the layout of a product and that of its rows."""
    shape = tuple(extent for extent in code.padded[value] if extent > 1)
    if len(shape) != 2 or dot.batch > 1:
        return 1.0
    rows_columns = shape[::-1] if dot.turned else shape
    width = min(_WGMMA_COLUMNS, rows_columns[1] // dot.warps[1]) if dot.wgmma else 8
    steps = mma_registers(rows_columns, dot.warps, width)
    if dot.turned:
        steps = frozenset((row, column) for column, row in steps)
    return scratch_share(steps, row_registers((shape[0], shape[1]), dtype.itemsize, code.warps), dtype.itemsize)


def _turned_share(code: Code, dot: Dot) -> float:
    """How much of the weight of swapped operands is in shared memory at once while it becomes the left operand of mma."""
    rows, columns = dot.shape[0], code.padded[dot.operands[0]][-2]
    steps = frozenset((column, row) for row, column in left_registers((rows, columns), dot.warps))
    return scratch_share(steps, row_registers((columns, rows), 2, code.warps), 2)


__all__ = ["shared_memory"]
