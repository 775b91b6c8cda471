"""Narrow attentions: one written out in float32, of queries, keys and v of 16 bits, is computed in these 16 bits.

So torch writes its own attention where no kernel of its library takes it, such as with a mask that has one number for a row.
These kernels, too, have the scores and all sums in float32; of 16 bits are the shares of the softmax. So this is for attentions
that the user has not written out: there rounded shares would be an error.
"""

from collections.abc import Iterable, Iterator

from mirage_eg.backends.launches.attention import HALVES, library_attentions
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import with_rewritten
from mirage_eg.ir.op.elementwise import CASTS
from mirage_eg.ir.op.moves import PLAIN_VIEWS, VIEWS_OF_ALL

_MOVED = PLAIN_VIEWS | VIEWS_OF_ALL  # ops that a cast may move past


def with_narrow_attentions(program: Graph) -> Graph:
    """The program without the casts to float32 of such attentions, and those of their results; itself without any."""
    dropped: set[int] = set()
    for attention in library_attentions(program, {DType.float32}):
        read = [value for value in attention.read if program.types[value].dtype is not DType.bool]
        casts = [*_widened(program, read), *_narrowed(program, attention.values[-1])]
        kinds = {program.types[program.node_of[value].operands[0]].dtype for value in casts[:-1]}
        kinds |= {program.types[value].dtype for value in casts[-1:]}
        if len(casts) == len(read) + 1 and len(kinds) == 1 and kinds <= HALVES:
            dropped.update(casts)
    return with_rewritten(program, dropped, lambda copy, item, value: copy.position[item.operands[0]])


def _widened(program: Graph, read: Iterable[int]) -> Iterator[int]:
    """The casts of these operands that nothing else reads."""
    for value in read:
        while (item := program.node_of[value]).op in {*_MOVED, "scale"} and len(program.readers[value]) == 1:
            [value] = item.operands
        if item.op in CASTS and len(program.readers[value]) == 1:
            yield value


def _narrowed(program: Graph, value: int) -> Iterator[int]:
    """The cast of a result that nothing else reads."""
    while len(program.readers[value]) == 1:
        [reader] = program.readers[value]
        if program.nodes[reader].op not in {*_MOVED, *CASTS}:
            return
        value = program.makers.index(reader)
        if program.nodes[reader].op in CASTS:
            yield value
            return
