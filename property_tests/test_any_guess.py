"""The model of shared memory has an answer for whatever block graph there is."""

from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.ir.graph import Graph
from mirage_eg.shared_memory import guess
from property_tests.graphs import block_graphs


@given(
    block_graphs(),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.booleans(),
    st.sampled_from(["sm_80", "sm_90"]),
)
def test_every_block_graph_gets_a_guess(block: Graph, stages: int, warps: int, swapped: bool, target: str) -> None:
    guessed = guess(block, stages, warps, swapped, target)
    assert 0 <= guessed.least <= guessed.nbytes <= guessed.most
