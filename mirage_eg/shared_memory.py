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

from mirage_eg.backends.emit_tiles import MatmulForm, flatten, is_skinny, matmul_form, padding
from mirage_eg.backends.warps import WARP
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph, Node, Phase

_WGMMA_ROWS, _WARP_GROUP = 64, 4
_ASYNC_BYTES = 4  # that a thread must at least copy


def shared_memory(block: Graph, stages: int, warps: int | None = None, swapped: bool = False) -> int:
    """Bytes of shared memory of one block."""
    graph = flatten(expand(block))
    padded = padding(graph)
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


__all__ = ["shared_memory"]
