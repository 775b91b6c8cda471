"""Reductions of neighbouring dims as one reduction: Σₕ Σ𝓌 x is Σ over H·W of a reshape of x, which is a view.

A program of fewer ops has far fewer plans, and a tile with one long dim takes fewer registers than one with several. Nothing
here is trusted: candidates are verified against the program as the user wrote it.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from mirage_eg.ir import write
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, with_rewritten
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.passes import without_dead_code


class _Chain(NamedTuple):
    """Reductions of a value by one op, and the dims that they reduce."""

    source: int
    dims: tuple[int, ...]


def with_merged_reductions(program: Graph) -> Graph:
    """The program of primitive ops with chains of reductions in as few ops as their dims allow; itself where that is all."""
    chains = _chains(program)
    groups = {value: _groups(len(program.types[value].shape), chain.dims) for value, chain in chains.items()}
    fewer = {value for value, chain in chains.items() if len(groups[value]) < len(program.types[value].shape)}

    def rewrite(copy: GraphCopy, item: Node, value: int) -> int:
        chain, shape = chains[value], program.types[chains[value].source].shape
        merged = tuple(prod(shape[dim] for dim in dims) for dims in groups[value])
        made = copy.append(write.reshape(copy.position[chain.source], merged))
        for place, dims in reversed([*enumerate(groups[value])]):
            if dims[0] in chain.dims:
                made = copy.append(node(item.op, made, dim=place))
        return copy.append(write.reshape(made, program.types[value].shape))

    return without_dead_code(with_rewritten(program, fewer, rewrite))


def _chains(program: Graph) -> dict[int, _Chain]:
    """The chains of reductions by their last values, of which no part has another reader."""
    chains: dict[int, _Chain] = {}
    for item, values in program.numbered():
        if item.kind is Kind.REDUCTION:
            [source] = item.operands
            before = _Chain(source, ())
            if source in chains and program.node_of[source].op == item.op and len(program.readers[source]) == 1:
                before = chains.pop(source)
            chains[values[0]] = _Chain(before.source, (*before.dims, item["dim"]))
    return chains


def _groups(rank: int, reduced: Sequence[int]) -> list[list[int]]:
    """The dims in order, in groups: neighbouring reduced dims are one group, each other dim is one of its own."""
    groups: list[list[int]] = []
    for dim in range(rank):
        if groups and dim in reduced and groups[-1][-1] in reduced:
            groups[-1].append(dim)
        else:
            groups.append([dim])
    return groups
