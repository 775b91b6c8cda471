"""What shared memory Triton takes for a block graph: a model of its allocation, checked against what the compiler reports.

Modelled, as seen in what Triton compiles for sm_90 (benchmarks/shared_memory.py measures the agreement):
- a load in the loop that feeds a tl.dot is fetched ahead into a ring of buffers: `stages` of them where wgmma multiplies (64
  rows or more, whole warp groups), `stages` − 1 where mma does; narrower than 4 bytes a thread it is not fetched ahead;
- what feeds it through other ops is fetched ahead for mma alone; the computed operand itself is stored once where it stands on
  the right, and stays in registers on the left;
- operands outside the loop are stored once; products before, in and behind the loop share the memory;
- changing the layout of the accumulator of swapped operands takes it in float32.
Not modelled: scratch of reductions (a few bytes a warp), reuse between products that run one after the other in one phase.
"""

from collections.abc import Mapping
from math import prod

from mirage_eg.backends.emit_tiles import MatmulForm, flatten, is_skinny, matmul_form
from mirage_eg.backends.warps import WARP
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph, Node, Phase
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.ir.shapes import Shape

_WGMMA_ROWS, _WARP_GROUP = 64, 4
_ASYNC_BYTES = 4  # that a thread must at least copy


def shared_memory(block: Graph, stages: int, warps: int | None = None, swapped: bool = False) -> int:
    """Bytes of shared memory of one block."""
    graph = lowered(block)
    padded = [_padded(kind.shape) for kind in graph.types]
    warps = block.threads // WARP if warps is None else warps
    makers = {value: item for item, values in graph.numbered() for value in values}

    def nbytes(value: int) -> int:
        return prod(padded[value]) * graph.types[value].dtype.itemsize

    taken: dict[Phase, dict[int, int]] = {phase: {} for phase in Phase}  # of each value, the bytes of its buffers
    scratch = 0
    for item, values in graph.numbered():
        if item.op != "matmul":
            continue
        shapes = [graph.types[i].shape for i in item.operands]
        if matmul_form(*shapes) is not MatmulForm.DOT:
            continue
        turned = swapped and is_skinny(*shapes)
        first, second = reversed(item.operands) if turned else item.operands
        rows = padded[values[0]][-1 if turned else -2]
        computed = makers[first].op != "input"
        wgmma = rows >= _WGMMA_ROWS and warps % _WARP_GROUP == 0 and not (turned and computed)
        phase = graph.phases[values[0]]
        if turned:
            scratch = max(scratch, prod(padded[values[0]]) * 4)
        buffers = taken[phase]
        for operand in (first, second):
            direct = makers[operand].op == "input"
            if graph.phases[operand] is Phase.LOOP:
                for load in _loads_behind(makers, operand):
                    ahead = nbytes(load) >= _ASYNC_BYTES * WARP * warps and (direct or not wgmma)
                    count = (stages if wgmma else stages - 1) if ahead else 0
                    if graph.phases[load] is Phase.LOOP:
                        buffers[load] = max(buffers.get(load, 0), max(count, int(direct)) * nbytes(load))
            kept = direct and (phase is not Phase.LOOP or wgmma)
            if graph.phases[operand] is not Phase.LOOP and (kept or (operand == second and phase is not Phase.LOOP)):
                buffers[operand] = nbytes(operand)
            if not direct and wgmma and operand == second:
                buffers[operand] = nbytes(operand)
    return max(*(sum(buffers.values()) for buffers in taken.values()), scratch)


def _padded(shape: Shape) -> Shape:
    """About what the lowering pads to: powers of two, 16 in the dims of a product (`emit_tiles.padding` knows which)."""
    last = len(shape) - 2
    return tuple(
        1 if extent == 1 else max(16 if dim >= last >= 0 else 1, 1 << (extent - 1).bit_length())
        for dim, extent in enumerate(shape)
    )


def lowered(block: Graph) -> Graph:
    """The block graph as it is lowered: without derived ops and thread graphs."""
    plain = all(OPS[item.op].kind not in (Kind.DERIVED, Kind.GRAPH) and item.op != "accum_rms" for item in block.nodes)
    return block if plain else flatten(expand(block))


def _loads_behind(makers: Mapping[int, Node], value: int) -> set[int]:
    """The loads from which a value is computed."""
    found, seen, frontier = set[int](), set[int](), [value]
    while frontier:
        at = frontier.pop()
        if at not in seen:
            seen.add(at)
            found |= {at} if makers[at].op == "input" else set()
            frontier += makers[at].operands
    return found


__all__ = ["lowered", "shared_memory"]
