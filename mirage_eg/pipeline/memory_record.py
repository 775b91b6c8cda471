"""What the report says of a µGraph's memory: where its intermediates lie, and how far that is from the least possible."""

from typing import Any

from mirage_eg.backends.triton.emit import memory_of
from mirage_eg.ir.graph import Graph


def memory_record(graph: Graph, program: Graph) -> dict[str, Any]:
    """The arena of a µGraph in JSON's types; sizes in bytes, each buffer's counted in whole alignments of the arena.

    `steps` of a buffer are the nodes of the µGraph that first and last use it. Results of library kernels are the library's to
    allocate, outputs are the caller's; neither is among the buffers.
    """
    arena = memory_of(graph, program=program)
    return {
        "arena_bytes": arena.arena_bytes,
        "sum_bytes": arena.sum_bytes,
        "lower_bound_bytes": arena.lower_bound_bytes,
        "proved_bound_bytes": arena.bound_bytes,
        "optimal": arena.optimal,
        "buffers": [
            {"name": buffer.name, "bytes": buffer.nbytes, "offset": offset, "steps": [buffer.first, buffer.last]}
            for buffer, offset in zip(arena.buffers, arena.offsets, strict=True)
        ],
    }
