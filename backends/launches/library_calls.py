"""Library kernels of several ops: attentions, convolutions and products, with the ops behind them."""

from mirage_eg.backends.launches.activated_product import activated_products
from mirage_eg.backends.launches.attention import LibraryAttention, library_attentions
from mirage_eg.backends.launches.convolution import FusedConvolution, fused_convolutions
from mirage_eg.ir.biased_product import BiasedProduct
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.remembered import once_per_graph

LibraryCall = LibraryAttention | FusedConvolution | BiasedProduct


@once_per_graph
def library_calls(graph: Graph) -> tuple[LibraryCall, ...]:
    """The library kernels of several ops of a kernel graph."""
    return (*library_attentions(graph), *fused_convolutions(graph), *activated_products(graph))


def made_by_calls(graph: Graph) -> frozenset[int]:
    """The values that they compute, inside and at the end: generated kernels compute none of them."""
    return frozenset(value for it in library_calls(graph) for value in it.values)
