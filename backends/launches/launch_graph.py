"""A kernel graph as the launches that compute it: one kernel may compute several nodes, and some nodes need no kernel.

The emitter, the cost model, the search for segments and reports read this one grouping. A library op that only moves elements
may still be a view for generated kernels: that depends on strides (`placement`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from mirage_eg.backends.launches.attention import LibraryAttention
from mirage_eg.backends.launches.concatenation import JointConcat, copying_nodes, joint_concats, launch_order, read_by_copies
from mirage_eg.backends.launches.convolution import FusedConvolution
from mirage_eg.backends.launches.generated_ops import poolings, scans
from mirage_eg.backends.launches.implicit_products import implicit_products
from mirage_eg.backends.launches.library_calls import LibraryCall, library_calls
from mirage_eg.backends.launches.placement import placement_of
from mirage_eg.backends.launches.top_k import top_ks
from mirage_eg.backends.launches.views import transposed_operands
from mirage_eg.ir.biased_product import BiasedProduct
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.library import ROW_READS
from mirage_eg.ir.op.moves import JOINS, TRANSPOSES, VIEWS_IN_ORDER
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.remembered import once_per_graph
from mirage_eg.ir.weights import prepared_values


class LaunchKind(Enum):
    """What computes the nodes of a launch."""

    BLOCK = "a generated kernel of a block graph"
    LIBRARY = "a library kernel of one op"
    ATTENTION = "a library kernel of an attention"
    CONVOLUTION = "a library kernel of a convolution and the ops behind it up to a relu"
    PRODUCT = "a library kernel of a product, the bias behind it, and an activation of their sum"
    CONCATENATION = "a generated kernel of concatenations, and of rows that are written in place"
    POOLING = "a generated kernel of a pooling"
    IMPLICIT_PRODUCT = "a generated kernel of a convolution, and of elementwise ops behind it"
    SCAN = "a generated kernel of a cumulative sum, and of the moves around it"
    TOP_K = "a generated kernel of a top-k of rows, with the ops before and behind it"
    PREPARED = "library kernels before the first call, of weights alone"
    VIEW = "no kernel: readers read its operands, or the makers of its operands write it"

    @property
    def is_kernel(self) -> bool:
        """Whether a kernel runs in each call."""
        return self not in (LaunchKind.PREPARED, LaunchKind.VIEW)


@dataclass(frozen=True, slots=True)
class Launch:
    """Positions of nodes that are computed together; `operands` are the values read from memory, `results` the values written.

    `step`: its place in the order of the nodes. `call`: the arguments of a library kernel of several ops. `views`: positions of
    views that it alone reads.
    """

    kind: LaunchKind
    step: int
    nodes: tuple[int, ...]
    operands: tuple[int, ...]
    results: tuple[int, ...]
    call: LibraryCall | None = None
    views: tuple[int, ...] = ()


@dataclass(frozen=True)
class LaunchGraph:
    """The launches of a kernel graph in order; each node but inputs and outputs is in one of them.

    `order`: the positions of all nodes; members of a joint launch follow each other, other kernels keep their order.
    """

    order: tuple[int, ...]
    launches: tuple[Launch, ...]

    @cached_property
    def kernels(self) -> tuple[Launch, ...]:
        """The launches for which a kernel runs in each call."""
        return tuple(launch for launch in self.launches if launch.kind.is_kernel)

    @cached_property
    def computed(self) -> tuple[int, ...]:
        """The positions of the nodes that these kernels compute."""
        return tuple(position for launch in self.kernels for position in launch.nodes)

    @cached_property
    def at(self) -> Mapping[int, Launch]:
        """The launch of each node."""
        return {position: launch for launch in self.launches for position in launch.nodes}

    def of_kind(self, kind: LaunchKind) -> Iterator[Launch]:
        return (launch for launch in self.launches if launch.kind is kind)


@once_per_graph
def launches_of(graph: Graph) -> LaunchGraph:
    copying = copying_nodes(graph)
    joint = joint_concats(graph, copying)
    order = launch_order(graph, joint)
    steps = {position: step for step, position in enumerate(order)}
    launches = [*_of_concatenations(graph, joint, steps), *_of_library_calls(graph, steps), *_of_generated_ops(graph, steps)]
    grouped = {position for launch in launches for position in launch.nodes}
    prepared, pooled = prepared_values(graph), poolings(graph)
    in_place = transposed_operands(graph).union(*(launch.views for launch in launches))
    in_place |= {graph.makers[value] for value in read_by_copies(graph)}
    ops = {item.op for item in graph.nodes}
    if ops & ROW_READS:
        in_place |= {graph.makers[value] for value in placement_of(graph).gathered}
    if ops & TRANSPOSES and "block" in ops:  # generated kernels read it with other strides
        in_place |= {graph.makers[value] for value in placement_of(graph).views}
    for position, (item, values) in enumerate(graph.numbered()):
        if position in grouped or item.kind is Kind.BOUNDARY:
            continue
        if item.op == "block":
            kind = LaunchKind.BLOCK
        elif values[0] in prepared:
            kind = LaunchKind.PREPARED
        elif item.op in VIEWS_IN_ORDER or position in in_place or (item.op in JOINS and position not in copying):
            kind = LaunchKind.VIEW
        elif position in pooled:
            kind = LaunchKind.POOLING
        else:
            kind = LaunchKind.LIBRARY
        operands = tuple(dict.fromkeys(item.operands))
        launches.append(Launch(kind, steps[position], (position,), operands, tuple(values)))
    return LaunchGraph(order, tuple(sorted(launches, key=lambda launch: launch.step)))


def _of_concatenations(graph: Graph, joint: Sequence[JointConcat], steps: Mapping[int, int]) -> Iterator[Launch]:
    read = read_by_copies(graph)
    for it in joint:
        named = [operand for place in it.members for operand in graph.nodes[place].operands]
        operands = dict.fromkeys(each for operand in named for each in read.get(operand, (operand,)))
        results = tuple(graph.numbered()[place][1][0] for place in it.members)
        yield Launch(LaunchKind.CONCATENATION, steps[it.members[0]], it.members, tuple(operands), results)


def _of_generated_ops(graph: Graph, steps: Mapping[int, int]) -> Iterator[Launch]:
    for kind, found in ((LaunchKind.SCAN, scans(graph)), (LaunchKind.IMPLICIT_PRODUCT, implicit_products(graph))):
        for it in found:
            yield Launch(kind, steps[it.nodes[-1]], it.nodes, it.operands, (it.value,))
    for top in top_ks(graph):
        yield Launch(LaunchKind.TOP_K, steps[top.order], top.nodes, top.operands, top.results)


_KINDS: Mapping[type, LaunchKind] = {
    LibraryAttention: LaunchKind.ATTENTION,
    FusedConvolution: LaunchKind.CONVOLUTION,
    BiasedProduct: LaunchKind.PRODUCT,
}


def _of_library_calls(graph: Graph, steps: Mapping[int, int]) -> Iterator[Launch]:
    for it in library_calls(graph):
        views = it.views if isinstance(it, LibraryAttention) else ()
        nodes, shown = (tuple(map(graph.makers.__getitem__, values)) for values in (it.values, views))
        yield Launch(_KINDS[type(it)], steps[nodes[-1]], nodes, tuple(dict.fromkeys(it.read)), it.values[-1:], it, shown)


def generates_kernels(graph: Graph) -> bool:
    """Whether poolings, convolutions, cumulative sums or largest elements among its ops are generated kernels."""
    return bool(poolings(graph) or implicit_products(graph) or scans(graph) or top_ks(graph))
