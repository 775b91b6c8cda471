"""Products whose weight an index chooses: exact in the field, and no wrong expert, weight or token is equal."""

from collections.abc import Callable

import pytest

from mirage_eg.ir.builder import KernelGraph, Tensor, new_kernel_graph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Equality

TOKENS, CHOSEN, EXPERTS, WIDTH, COLUMNS = 5, 2, 4, 32, 16
Write = Callable[[KernelGraph, Tensor, Tensor, Tensor, Tensor], Tensor]


def _graph(write: Write) -> Graph:
    g = new_kernel_graph()
    x = g.new_input((TOKENS, WIDTH), "float32", name="x")
    weights = g.new_input((EXPERTS, WIDTH, COLUMNS), "float32", name="weights")
    chosen = g.new_input((TOKENS, CHOSEN), "int64", name="chosen")
    shares = g.new_input((TOKENS, CHOSEN), "float32", name="shares")
    g.mark_output(write(g, x, weights, chosen, shares))
    return expand(g.graph())


def layer(g: KernelGraph, x: Tensor, weights: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
    """Σ over the chosen experts of their shares of x times their weights."""
    products = g.matmul(g.reshape(x, (TOKENS, 1, 1, WIDTH)), g.gather(weights, chosen))
    shared = g.mul(g.reshape(products, (TOKENS, CHOSEN, COLUMNS)), g.reshape(shares, (TOKENS, CHOSEN, 1)))
    return g.reshape(g.sum(shared, 1), (TOKENS, COLUMNS))


def kernel(g: KernelGraph, x: Tensor, weights: Tensor, chosen: Tensor, shares: Tensor, tokens: int = 2) -> Tensor:
    """The layer as one kernel, of some tokens and half of the columns a block: the last block has fewer tokens."""
    rows = g.gather(weights, chosen)
    block = new_threadblock_graph((-(-TOKENS // tokens), 2), forloop_range=2)
    left = block.new_input(g.reshape(x, (TOKENS, 1, 1, WIDTH)), (0, -1), 3)
    product = block.forloop_accum(block.matmul(left, block.new_input(rows, (0, 3), 2)))
    own = block.new_input(g.reshape(shares, (TOKENS, CHOSEN, 1, 1)), (0, -1))
    block.new_output(block.sum(block.mul(product, own), 1), (0, 3))
    [result] = g.customized([g.reshape(x, (TOKENS, 1, 1, WIDTH)), rows, g.reshape(shares, (TOKENS, CHOSEN, 1, 1))], block)
    return g.reshape(result, (TOKENS, COLUMNS))


def expert_off_by_one(g: KernelGraph, x: Tensor, weights: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
    return kernel(g, x, g.concat([g.slice(weights, 0, 1, EXPERTS), g.slice(weights, 0, 0, 1)], 0), chosen, shares)


def experts_of_another_token(g: KernelGraph, x: Tensor, weights: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
    return kernel(g, x, weights, g.op("flip", chosen, dims=(0,)), shares)


def shares_swapped(g: KernelGraph, x: Tensor, weights: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
    return kernel(g, x, weights, chosen, g.op("flip", shares, dims=(1,)))


def last_token_dropped(g: KernelGraph, x: Tensor, weights: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
    kept = g.slice(x, 0, 0, TOKENS - 1)
    return kernel(g, g.op("pad", kept, before=(0, 0), after=(1, 0), value=0), weights, chosen, shares)


@pytest.mark.parametrize("tokens", [1, 2, TOKENS])
def test_a_kernel_with_chosen_weights_is_equal(tokens: int) -> None:
    reference = Reference(_graph(layer))
    assert reference.check(_graph(lambda *given: kernel(*given, tokens=tokens))).verdict is Equality.EQUAL


@pytest.mark.parametrize("mutant", [expert_off_by_one, experts_of_another_token, shares_swapped, last_token_dropped])
def test_a_wrong_expert_share_or_token_is_not_equal(mutant: Write) -> None:
    reference = Reference(_graph(layer))
    assert reference.check(_graph(mutant)).verdict is Equality.NOT_EQUAL
