"""Chains of products are associated for the fewest multiplications, and nothing else about a program changes."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from math import prod

from hypothesis import given
from hypothesis import strategies as st
from numpy import broadcast_shapes

import mirage_eg as mi
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.make_report import simplification_summary
from mirage_eg.transforms.matrix_chains import associate
from mirage_eg.transforms.simplify import simplify
from mirage_eg.verify.reference import verify

SIZES = st.lists(st.integers(1, 9), min_size=3, max_size=8)
Shapes = tuple[tuple[int, ...], ...]


def multiplied(program: Graph) -> int:
    """The multiplications of all products of a program."""
    count = 0
    for item in program.nodes:
        if item.op == "matmul":
            left, right = (program.types[i].shape for i in item.operands)
            count += prod(broadcast_shapes(left[:-2], right[:-2])) * left[-2] * left[-1] * right[-1]
    return count


@cache
def fewest(shapes: Shapes) -> int:
    """The same of the best of all bracketings."""
    if len(shapes) == 1:
        return 0
    ends = [(broadcast_all(shapes), shapes[0][-2], shapes[cut - 1][-1], shapes[-1][-1]) for cut in range(1, len(shapes))]
    return min(
        fewest(shapes[:cut]) + fewest(shapes[cut:]) + prod(lead) * m * k * n for cut, (lead, m, k, n) in enumerate(ends, 1)
    )


def broadcast_all(shapes: Shapes) -> tuple[int, ...]:
    return broadcast_shapes(*(shape[:-2] for shape in shapes))


def bracketed(program: KernelGraph, factors: Sequence[Tensor], draw: st.DrawFn) -> Tensor:
    if len(factors) == 1:
        return factors[0]
    cut = draw(st.integers(1, len(factors) - 1))
    return program.matmul(bracketed(program, factors[:cut], draw), bracketed(program, factors[cut:], draw))


@st.composite
def chains(draw: st.DrawFn) -> tuple[Graph, Shapes]:
    sizes = draw(SIZES)
    batched = draw(st.booleans())
    shapes = [((draw(st.sampled_from((1, 3))),) if batched and draw(st.booleans()) else ()) + pair for pair in pairwise(sizes)]
    program = mi.new_kernel_graph()
    factors = [program.new_input(shape, "float32", name=f"x{number}") for number, shape in enumerate(shapes)]
    program.mark_output(bracketed(program, factors, draw))
    return program.graph(), tuple(shapes)


@given(chain=chains())
def test_a_chain_takes_the_fewest_multiplications_of_all_bracketings(chain: tuple[Graph, Shapes]) -> None:
    program, shapes = chain
    after = associate(program)
    assert multiplied(after) == fewest(shapes) <= multiplied(program)
    assert (after.input_types, after.output_types) == (program.input_types, program.output_types)
    assert verify(program, after).equal
    assert (after is program) == (multiplied(program) == fewest(shapes))


def narrow_end(between: bool, twice: bool) -> Graph:
    """(A·B)·x of a column x; something `between` the products, or A·B read `twice`."""
    program = mi.new_kernel_graph()
    a, b, x = (program.new_input(shape, "float32", name=name) for name, shape in (("a", (8, 8)), ("b", (8, 8)), ("x", (8, 1))))
    product = program.matmul(a, b)
    if twice:
        program.mark_output(program.exp(product))
    program.mark_output(program.matmul(program.tanh(product) if between else product, x))
    return program.graph()


def test_a_product_that_another_op_reads_is_not_taken_apart() -> None:
    assert associate(narrow_end(False, True)) == narrow_end(False, True)
    assert associate(narrow_end(True, False)) == narrow_end(True, False)
    assert multiplied(associate(narrow_end(False, False))) == 128


def test_clean_up_associates_chains_and_shows_it() -> None:
    summary = simplification_summary(simplify(narrow_end(False, False)))
    assert [step.pass_ for step in summary.passes] == ["chains of products"]


def test_a_chain_of_forty_factors_is_associated_at_once() -> None:
    program = mi.new_kernel_graph()
    y = program.new_input((9, 9), "float32", name="x")
    for number in range(39):
        y = program.matmul(y, program.new_input((9, 1 if number == 38 else 9), "float32", name=f"w{number}"))
    program.mark_output(y)
    assert multiplied(associate(program.graph())) == 39 * 81
