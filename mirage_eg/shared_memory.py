"""What shared memory Triton takes for a block graph: a model of its allocation, checked against what the compiler reports.

The ops are walked in the order in which they are emitted; each buffer lives from one place to another, and `allocation` places
them as the compiler does. Modelled, as seen in what Triton compiles (benchmarks/shared_memory.py measures the agreement):
- wgmma (sm_90, 64 rows or more, whole warp groups, no batch) reads both operands from shared memory; a computed left one comes
  through registers. mma loads both into registers when the operand is needed.
- a load in the loop behind a tl.dot is fetched ahead into a ring: `stages` buffers where wgmma reads it, else `stages` − 1; the
  weight of swapped operands under mma is not, nor a load of less than 4 bytes a thread, nor one whose elements are moved;
- a load outside the loop lies there from the load to its last product; if they are in different phases, mma copies it late;
- where nothing is fetched ahead (one stage, or loads too small for it), a load of the loop lies there from the load to its
  product; swapped operands of mma change their layout at the load instead, and computed ones at each load behind them;
- a computed operand is stored where it stands, once, but for one whose product already lies as mma wants it; so is the copy of
  a load that is kept apart from what wgmma reads;
- a product that is only added to something is computed there;
- results change their layout (`result_buffers`).
Where a kernel does what few kernels do that were looked at, the guess is not sure and says so; who must know asks the compiler
(`mirage_eg.room`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mirage_eg.allocation import Buffer, allocated
from mirage_eg.backends.allocate import knows_triton
from mirage_eg.backends.warps import WARP
from mirage_eg.block_code import WGMMA_TARGETS, Code, Dot, kept_apart, lowered
from mirage_eg.ir.graph import Graph, Phase
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.linear_layouts import conversion_bytes, permuted, reshaped
from mirage_eg.linear_layouts import operand as operand_layout
from mirage_eg.result_buffers import result_buffers
from mirage_eg.tile_layouts import held_tiles, spread

_ASYNC_BYTES = 4  # that a thread must at least copy
_MODELLED = frozenset({"sm_80", "sm_90"})


@dataclass(frozen=True, slots=True)
class Guess:
    """What the model says of one block, in bytes; `sure`: the kernel does nothing that the model has been wrong about."""

    nbytes: int
    sure: bool

    @property
    def least(self) -> float:
        """What the kernel takes at least: the guess divided by 1.1, or by 1.5 if it is not sure."""
        return self.nbytes / (1.1 if self.sure else 1.5)

    @property
    def most(self) -> float:
        """What it takes at most: so many times the guess."""
        return self.nbytes * (1.1 if self.sure else 1.5)


def shared_memory(block: Graph, stages: int, warps: int | None = None, swapped: bool = False, target: str = "sm_90") -> int:
    """Bytes of shared memory of one block."""
    return guess(block, stages, warps, swapped, target).nbytes


def guess(block: Graph, stages: int, warps: int | None = None, swapped: bool = False, target: str = "sm_90") -> Guess:
    """Bytes of shared memory of one block, and whether that is sure."""
    plain = kept_apart(lowered(block), swapped)
    code = Code(plain, stages, warps or block.threads // WARP, swapped, target in WGMMA_TARGETS)
    nbytes = allocated([*_operand_buffers(code), *result_buffers(code)])
    return Guess(nbytes, target in _MODELLED and knows_triton() and _is_usual(code))


def _is_usual(code: Code) -> bool:
    """Products in float16, not swapped, of operands as they are loaded or computed where they are read."""
    return bool(code.dots) and not any(
        dot.turned or not dot.half or any(_is_odd(code, dot, operand) for operand in dot.operands) for dot in code.dots.values()
    )


def _is_odd(code: Code, dot: Dot, operand: int) -> bool:
    """Moved elements, what mma reads both in the loop and outside, and sums of a batch beside the product in a loop."""
    if code.rearranged(operand):
        return True
    others = [other for other in code.dots.values() if operand in other.operands]
    apart = len({other.phase for other in others}) > 1 and not code.is_load(operand) and not dot.wgmma
    summed = dot.batch > 1 and code.is_load(operand) and any(reader.op != "matmul" for reader, _ in code.readers[operand])
    return apart or (summed and dot.phase is Phase.LOOP)


def _operand_buffers(code: Code) -> Iterator[Buffer]:
    rings = _rings(code)
    first, last = code.loop
    for load, count in rings.items():
        yield Buffer(count * code.nbytes(load), 4 * first, 4 * last + 2)
    outside: dict[int, list[Dot]] = {}
    for dot in code.dots.values():
        for side, operand in enumerate(dot.operands):
            phase = code.graph.phases[operand]
            if not dot.half:
                halved = code.is_load(operand) and any(other.half and operand in other.operands for other in code.dots.values())
                itemsize = code.graph.types[operand if halved else dot.value].dtype.itemsize
                yield Buffer(code.nbytes(operand, itemsize), 4 * code.place[operand] + 2, 4 * dot.at)
            elif operand in rings:
                pass
            elif not dot.wgmma and code.rearranged(operand):
                made = 4 * code.place[operand] + 2
                yield Buffer(code.nbytes(operand), made, 4 * dot.at if phase is Phase.LOOP else made)
            elif code.is_load(operand) and phase is Phase.LOOP:
                yield from _fetched_late(code, dot, operand)
            elif any(_lies_right(dot, side, code.dots[i]) for i in code.behind(operand, until=code.dots) & code.dots.keys()):
                pass  # in registers, before the loop too
            elif code.is_load(operand) or (phase is not Phase.LOOP and dot.phase is Phase.LOOP):
                outside.setdefault(operand, []).append(dot)
            else:
                alike = [other for other in code.dots.values() if _reads_alike(other, dot, side)]
                if dot == (alike[-1] if dot.wgmma else alike[0]):  # mma keeps in registers what the first of them has read
                    yield from _computed(code, dot, side, rings)
    for operand, dots in outside.items():
        yield from _kept(code, operand, dots, bool(rings))


def _reads_alike(one: Dot, other: Dot, side: int) -> bool:
    return (one.operands[side], one.phase, one.wgmma) == (other.operands[side], other.phase, other.wgmma)


def _rings(code: Code) -> dict[int, int]:
    """Of each load that is fetched ahead through shared memory, its buffers."""
    rings: dict[int, int] = {}
    if code.stages == 1:
        return rings
    for dot in code.dots.values():
        if dot.phase is not Phase.LOOP:
            continue
        for side, operand in enumerate(dot.operands):
            behind = code.behind(operand, until=code.dots)
            if not behind.isdisjoint(code.dots):
                continue  # what joins a product is fetched into registers
            if not dot.wgmma and code.rearranged(operand):
                continue
            direct = code.is_load(operand)
            for load in filter(code.is_load, behind):
                small = _is_small(code, load) or _run_bytes(code, load) < _ASYNC_BYTES
                away = dot.turned and side == 0 and not (direct and dot.wgmma) and _read_once(code, load)
                if code.graph.phases[load] is not Phase.LOOP or small or away:
                    continue
                only = all(reader.op == "matmul" for reader, _ in code.readers[load])
                count = code.stages if direct and dot.wgmma and only else code.stages - 1
                rings[load] = max(rings.get(load, 0), count)
    return {load: count for load, count in rings.items() if count}


def _is_small(code: Code, load: int) -> bool:
    """Whether a load has not enough bytes for all threads."""
    return code.nbytes(load) < _ASYNC_BYTES * WARP * code.warps


def _is_pipelined(code: Code) -> bool:
    """Whether loads of the loop are fetched ahead, be it into registers."""
    looped = [i for i in code.makers if code.is_load(i) and code.graph.phases[i] is Phase.LOOP]
    return code.stages > 1 and not all(_is_small(code, load) for load in looped)


def _read_once(code: Code, load: int) -> bool:
    """Whether one op alone reads a load, or its copy."""
    [(_, at), *others] = code.readers[load]
    copy = code.order[at][1]
    return not others and not (copy and code.is_copy(copy[0]) and len(code.readers[copy[0]]) > 1)


def _fetched_late(code: Code, dot: Dot, load: int) -> Iterator[Buffer]:
    """A load in the loop that is no ring: stored at its product in a pipeline, else where it stands, for all that read it."""
    if _is_pipelined(code):
        yield Buffer(code.nbytes(load), 4 * dot.at, 4 * dot.at)
        return
    readers = [other for other in code.dots.values() if load in other.operands and other.phase is Phase.LOOP]
    if dot.turned and not dot.wgmma:
        alike = [other for other in readers if other.turned and other.operands.index(load) == dot.operands.index(load)]
        if dot is alike[0] and (brought := _turned(code, dot, dot.operands.index(load), load)):
            yield brought
    elif dot is readers[0]:
        last = max((other.at for other in readers if other.wgmma), default=min(other.at for other in readers))
        yield Buffer(code.nbytes(load), 4 * code.place[load] + 2, 4 * last)


def _run_bytes(code: Code, load: int) -> int:
    """Bytes of a row-major tensor that a load finds side by side, as far as the last dim says."""
    long = [dim for dim, extent in enumerate(code.makers[load]["shape"]) if extent > 1]
    kind = code.graph.types[load]
    return (kind.shape[long[-1]] if long else 1) * kind.dtype.itemsize


def _kept(code: Code, operand: int, dots: list[Dot], pipelined: bool) -> Iterator[Buffer]:
    """An operand that is loaded or computed outside the loop, or before it."""
    nbytes, made = code.nbytes(operand, code.graph.types[dots[0].value].dtype.itemsize), 4 * code.place[operand] + 2
    phase = code.graph.phases[operand]
    weights = [dot for dot in dots if dot.turned and code.is_load(operand) and not dot.wgmma and dot.phase is not Phase.LOOP]
    yield from filter(None, (_turned(code, dot, dot.operands.index(operand), operand) for dot in weights))
    brought = {(dot.warps, dot.operands.index(operand)) for dot in weights}
    dots = [dot for dot in dots if dot.wgmma or not dot.turned or (dot.warps, dot.operands.index(operand)) not in brought]
    if not dots:
        return
    ends = {dot.value: 4 * code.loop[1] + 2 if dot.phase is Phase.LOOP else 4 * dot.at for dot in dots}
    read_by_wgmma = [dot for dot in dots if dot.wgmma]
    if read_by_wgmma:
        if pipelined and all(dot.turned and dot.phase is not phase for dot in read_by_wgmma):
            yield from (Buffer(nbytes, 4 * dot.at, 4 * dot.at) for dot in read_by_wgmma)
        else:
            yield Buffer(nbytes, made, max(ends[dot.value] for dot in read_by_wgmma))
    if not (dots := [dot for dot in dots if not dot.wgmma]):
        return
    same = [4 * dot.at for dot in dots if dot.phase is phase]
    looped = [dot for dot in dots if dot.phase is Phase.LOOP]
    if same:  # mma keeps in registers what it has read
        yield Buffer(nbytes, made, min(same))
    elif looped and _hoisted(code, operand):
        yield Buffer(nbytes, made, made)
    elif looped:
        alike = len({dot.warps for dot in dots}) == 1
        yield Buffer(nbytes, made, 4 * code.loop[0] - 1 if alike and len(looped) < len(dots) else max(ends.values()) - 1)
    elif pipelined:
        yield from (Buffer(nbytes, 4 * dot.at, 4 * dot.at) for dot in dots)
    else:
        yield Buffer(nbytes, made, max(ends.values()))


def _hoisted(code: Code, operand: int) -> bool:
    """Whether the loads of an operand are stored, and it is computed in the registers in which the loop wants it.

    Seen where a product follows the loop; else it is computed first, and stored.
    """
    from_loads = not code.is_load(operand) and code.behind(operand).isdisjoint(code.dots)
    return from_loads and any(dot.phase is Phase.EPILOGUE for dot in code.dots.values())


def _computed(code: Code, dot: Dot, side: int, rings: Mapping[int, int]) -> Iterator[Buffer]:
    """An operand that ops made."""
    operand = dot.operands[side]
    itemsize = code.graph.types[dot.value].dtype.itemsize
    nbytes, made, read = code.nbytes(operand, itemsize), 4 * code.place[operand] + 2, 4 * dot.at
    if code.graph.phases[operand] is Phase.EPILOGUE:
        made = max(made, 4 * code.loop[1] + 3)
    behind = code.behind(operand, until=code.dots)
    late, copy, sums = not behind.isdisjoint(code.dots), code.is_copy(operand), _sums(code, behind)
    here = code.graph.phases[operand] is dot.phase and (not _is_pipelined(code) or (side == 1 and dot.phase is not Phase.LOOP))
    if here and dot.turned and not (dot.wgmma and side == 1) and not (late or copy or sums):
        yield from filter(None, (_turned(code, dot, side, load) for load in behind if code.is_load(load)))
    elif dot.wgmma and side == 1:
        yield Buffer(nbytes, made, max(made, read))
    elif dot.turned and side == 1 and late:
        yield Buffer(nbytes, read - 1, read - 1)
    elif sums and not late and not dot.turned and _is_added(code, operand, behind, sums):
        yield from (Buffer(code.nbytes(i, 4), read - 1, read - 1) for i in sums)
        yield from _brought(code, dot, behind, rings)
    elif late or _stays(code, dot, side, behind - rings.keys()):
        yield Buffer(nbytes, made, max(made, read if side or copy else read - 1))
    else:
        yield from _brought(code, dot, code.behind(operand, until={*code.dots, *sums}), rings)


def _is_added(code: Code, operand: int, behind: set[int], sums: Sequence[int]) -> bool:
    """Whether loads join what the loop has summed up behind it: then each is brought where mma wants it, before that."""
    full = prod(code.padded[operand])
    loads = [i for i in behind if code.is_load(i) and code.graph.phases[i] is not Phase.LOOP]
    return all(OPS[code.makers[i].op].kind is Kind.ACCUMULATOR and prod(code.padded[i]) == full for i in sums) and any(
        prod(code.padded[i]) == full for i in loads
    )


def _brought(code: Code, dot: Dot, behind: Iterable[int], rings: Mapping[int, int]) -> Iterator[Buffer]:
    """The loads of which elementwise ops make an operand: they are brought where mma wants them beforehand."""
    for load in filter(code.is_load, behind):
        looped = code.graph.phases[load] is Phase.LOOP
        if load not in rings:
            when = 4 * dot.at if looped and _is_pipelined(code) else 4 * code.place[load] + 2
            yield Buffer(code.nbytes(load), when, when)


def _stays(code: Code, dot: Dot, side: int, behind: set[int]) -> bool:
    """Whether an operand changes its layout where it is computed, and not its loads before that."""
    if code.is_copy(dot.operands[side]):
        return True
    if dot.turned and side == 0:
        full = prod(code.padded[dot.operands[0]])
        if any(code.is_load(i) and prod(code.padded[i]) == full for i in behind):
            return True
    return any(_is_pipelined(code) or code.graph.phases[i] is dot.phase for i in _sums(code, behind))


def _sums(code: Code, values: Iterable[int]) -> list[int]:
    """The reductions and accumulators among values."""
    return [i for i in values if OPS[code.makers[i].op].kind in (Kind.REDUCTION, Kind.ACCUMULATOR)]


def _lies_right(dot: Dot, side: int, made: Dot) -> bool:
    """Whether a product lies in the registers in which another product wants it."""
    if dot.turned != made.turned or dot.wgmma != made.wgmma or (dot.turned and side == 1):
        return False
    return side == 0 if dot.wgmma else dot.warps == made.warps and made.warps[1 - side] == 1


def _turned(code: Code, dot: Dot, side: int, load: int) -> Buffer | None:
    """What a load goes through when it becomes an operand of swapped operands, or is spread over one: full size or less."""
    operand = dot.operands[side]
    inner = prod(code.padded[dot.operands[0]]) // dot.shape[0]
    shape = (dot.shape[0], inner) if side == 0 else (inner, dot.shape[1])
    wanted = reshaped(permuted(operand_layout(shape, side, dot.warps, dot.wgmma), (1, 0)), code.tile(operand))
    over, source = spread(code, wanted, load, operand), held_tiles(code)[load]
    if over is None or source.free:
        return None
    nbytes = conversion_bytes(source.layout, over, code.graph.types[load].dtype.itemsize, code.wgmma)
    return Buffer(nbytes, 4 * code.place[load] + 2, 4 * code.place[load] + 2)


__all__ = ["Guess", "guess", "shared_memory"]
