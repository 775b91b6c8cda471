"""Long sums of functions that are not linear: few indices decide, each counted as often as it stands for."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.threadblock_graph import new_threadblock_graph
from mirage_eg.testing import every_mutant
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.repeated_indices import repeated_axes
from mirage_eg.verify.restriction import JointAxes, restricted
from mirage_eg.verify.verdict import Equality

ROWS, COLUMNS = 4, 1 << 19  # more elements than a restriction may have
PARTS, LOOP, TILE = 8, 64, 1024


def program_of(write: Callable[[Any, Any], Any], rows: int = ROWS, columns: int = COLUMNS) -> Graph:
    graph = new_kernel_graph()
    graph.mark_output(write(graph, graph.new_input((rows, columns), "float32", "x")))
    return graph.graph()


def variance(graph: Any, x: Any) -> Any:
    return graph.mean(graph.square(graph.sub(x, graph.mean(x, 1))), 1)


def layer_norm(graph: Any, x: Any) -> Any:
    return graph.layer_norm(x, COLUMNS, eps=1e-5)


def partial_sums(n: int = COLUMNS, loop: int = LOOP, twice: bool = False, tile: int = TILE, outside: bool = True) -> Graph:
    """The variance by sums of x and x² over parts of rows in one kernel, and their sums in the next."""
    graph = new_kernel_graph()
    x = graph.new_input((ROWS, COLUMNS), "float32", "x")
    read = x if loop * tile * PARTS == COLUMNS else graph.slice(x, 1, 0, loop * tile * PARTS)
    block = new_threadblock_graph((ROWS, PARTS), forloop_range=loop)
    part = block.new_input(read, (0, 1), 1)
    squares = block.square(part)
    for value in (block.add(part, part) if twice else part, squares):
        block.new_output(block.reduction(block.forloop_accum(value), 1), (0, 1))
    first, second = (graph.sum(it, 1) for it in graph.customized([read], block))
    mean = graph.scale(first, Fraction(1, n))
    within = graph.sub(graph.scale(second, Fraction(1, n)), graph.square(mean))
    graph.mark_output(within if outside else graph.scale(within, 2))
    return graph.graph()


def kept(program: Graph, candidate: Graph, sums: bool = True) -> int:
    small = restricted(expand(program), candidate, sums)
    return (small.program if small else program).input_types[0].shape[1]


def test_few_elements_of_long_rows_decide_about_a_variance() -> None:
    program, candidate = program_of(variance), partial_sums()
    assert kept(program, candidate) <= 16
    assert 1 << 16 <= kept(program, candidate, sums=False) < COLUMNS
    assert BlockReference(program).check(candidate).verdict is Equality.EQUAL


WRONG = {
    "n": {"n": COLUMNS - 1},
    "one iteration too few": {"loop": LOOP - 1},
    "half of each part": {"tile": TILE // 2},
    "a sum counted twice": {"twice": True},
    "another factor": {"outside": False},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_variance_is_not_equal(wrong: dict[str, Any]) -> None:
    assert BlockReference(program_of(variance)).check(partial_sums(**wrong)).verdict is Equality.NOT_EQUAL


@pytest.mark.slow
def test_mutants_of_a_variance_are_refused() -> None:
    program, candidate = program_of(variance), partial_sums()
    reference, place = BlockReference(program), next(i for i, item in enumerate(candidate.nodes) if "graph" in item.mapping)
    before, item, after = candidate.nodes[:place], candidate.nodes[place], candidate.nodes[place + 1 :]
    mutants = [*every_mutant(item["graph"])]
    assert mutants
    for mutant in mutants:
        changed = Graph((*before, Node(item.op, item.operands, (("graph", mutant),)), *after))
        assert reference.check(changed).verdict is not Equality.EQUAL


def test_graphs_that_agree_on_two_elements_alone_are_not_equal() -> None:
    """Of two elements e₃ = 0, whatever they are: (p₁³ − 3 p₁ p₂ + 2 p₃) / 6 in their power sums."""

    def power_sums(graph: Any, x: Any) -> list[Any]:
        square = graph.square(x)
        return [graph.scale(graph.sum(it, 1), Fraction(2, COLUMNS)) for it in (x, square, graph.mul(square, x))]

    def third(graph: Any, x: Any) -> Any:
        p, q, r = power_sums(graph, x)
        cubes = graph.add(graph.mul(graph.square(p), p), graph.scale(r, 2))
        return graph.sub(cubes, graph.scale(graph.mul(p, q), 3))

    program, candidate = program_of(lambda graph, x: graph.scale(graph.sum(x, 1), 0)), program_of(third)
    assert 4 <= kept(program, candidate) < COLUMNS
    assert BlockReference(program).check(candidate).verdict is Equality.NOT_EQUAL


def test_a_library_form_with_a_sum_inside_keeps_its_length_in_floats() -> None:
    program = program_of(lambda graph, x: graph.softmax(x, 1))
    assert kept(program, program, sums=False) == COLUMNS


def positive(graph: Any, x: Any) -> Any:
    return graph.where(graph.less(x, graph.scale(x, 2)), x, graph.fill(x, 3))


def halves(graph: Any, x: Any, above: int = COLUMNS // 2) -> Any:
    """The sum of positive elements, by parts of rows."""
    parts = [graph.sum(positive(graph, graph.slice(x, 1, *it)), 1) for it in ((0, COLUMNS // 2), (COLUMNS - above, COLUMNS))]
    return graph.add(*parts)


def test_few_elements_decide_about_sums_of_functions_with_steps() -> None:
    program = program_of(lambda graph, x: graph.sum(positive(graph, x), 1))
    assert kept(program, program) <= 16
    reference = BlockReference(program)
    assert reference.check(program_of(halves)).verdict is Equality.EQUAL
    for wrong in (lambda graph, x: halves(graph, x, COLUMNS // 4), lambda graph, x: graph.sum(graph.relu(x), 1)):
        assert reference.check(program_of(wrong)).verdict is Equality.NOT_EQUAL


NOT_SHORTENED = {
    "square of a sum of steps": lambda graph, x: graph.square(graph.sum(positive(graph, x), 1)),
    "steps times a mean": lambda graph, x: graph.sum(graph.mul(positive(graph, x), graph.mean(x, 1)), 1),
    "step of a difference from the mean": lambda graph, x: graph.sum(positive(graph, graph.sub(x, graph.mean(x, 1))), 1),
    "maximum": lambda graph, x: graph.max(graph.square(x), 1),
    "function of a sum at each index": lambda graph, x: graph.sum(graph.exp(graph.mul(x, graph.mean(x, 1))), 1),
    "distinguished": lambda graph, x: graph.sum(graph.square(graph.cumsum(x, 1)), 1),
}


@pytest.mark.parametrize("op", NOT_SHORTENED)
def test_sums_of_other_functions_keep_their_length(op: str) -> None:
    program = program_of(NOT_SHORTENED[op])
    assert kept(program, program) == COLUMNS


def test_sums_of_whole_numbers_which_wrap_keep_their_length() -> None:
    graph = new_kernel_graph()
    graph.mark_output(graph.sum(graph.square(graph.new_input((ROWS, COLUMNS), "int32", "x")), 1))
    assert kept(graph.graph(), graph.graph()) == COLUMNS


def weighted(mean_of_weights: bool) -> Graph:
    """The sum over a row of its norm with a weight for each channel, or with the mean of the weights."""
    graph, channels = new_kernel_graph(), 64
    x, weight = (graph.new_input(shape, "float32") for shape in ((ROWS, COLUMNS), (channels, 1)))
    norm = graph.reshape(layer_norm(graph, x), (ROWS, channels, COLUMNS // channels))
    weight = graph.mean(weight, 0) if mean_of_weights else weight
    graph.mark_output(graph.sum(graph.sum(graph.mul(norm, weight), 2), 1))
    return graph.graph()


def test_weights_of_channels_are_told_apart() -> None:
    program = weighted(mean_of_weights=False)
    assert BlockReference(program).check(weighted(mean_of_weights=True)).verdict is Equality.NOT_EQUAL
    assert kept(program, program) < COLUMNS


EXACT: dict[str, tuple[Callable[[Any, Any], Any], Callable[[], Graph] | None]] = {
    "variance": (variance, partial_sums),
    "norm": (layer_norm, None),
    "length": (lambda graph, x: graph.div(x, graph.sqrt(graph.sum(graph.square(x), 1))), None),
    "product": (lambda graph, x: graph.matmul(x, graph.transpose(graph.square(graph.mean(x, 0)), (1, 0))), None),
    "gelu": (lambda graph, x: graph.sum(graph.gelu(x), 1), None),
    "steps": (lambda graph, x: graph.scale(graph.mean(graph.square(positive(graph, x)), 1), 2), None),
}


@pytest.mark.parametrize("name", EXACT)
def test_the_small_graphs_compute_the_large_ones_on_inputs_that_repeat(name: str) -> None:
    write, other = EXACT[name]
    program = expand(program_of(write))
    candidate = other() if other else program
    joint = JointAxes(program, expand(candidate))
    [found] = repeated_axes(joint.whole, joint.axes, [1])
    assert found
    sizes = [found.get(axis, size) for axis, size in enumerate(joint.axes.sizes)]

    def repeated(x: Any, value: int) -> Any:
        own = [axis for dim in joint.axes.dims[value] for axis in dim]
        x = x.reshape([sizes[axis] for axis in own])
        for place, axis in enumerate(own):
            x = np.repeat(x, joint.axes.sizes[axis] // sizes[axis], place)
        return x

    [input_value], outputs = joint.whole.input_values, [item.operands[0] for item in joint.whole.outputs]
    graphs = zip((program, candidate), joint.at(sizes, "sum"), outputs, strict=True)
    for graph, small, output in graphs:
        x = np.random.default_rng(0).uniform(-1, 1, small.input_types[0].shape)
        [got] = evaluate(small, [x], FloatAlgebra(np))
        whole = repeated(x, input_value).reshape(graph.input_types[0].shape)
        [want] = evaluate(graph, [whole], FloatAlgebra(np))
        assert x.size < whole.size
        assert np.allclose(want, repeated(got, output).reshape(want.shape), rtol=1e-9)


def test_floats_of_library_kernels_are_those_of_the_kernels() -> None:
    """The library's softmax shifts its exponentials; scores beyond float16's range alone overflow in it as written out."""
    program, library = (new_kernel_graph() for _ in range(2))
    for graph in (program, library):
        q, k = (graph.new_input(shape, "float16", name) for name, shape in (("Q", (8, 4, 128)), ("K", (8, 128, 4096))))
        scores = graph.scale(graph.matmul(q, k), Fraction(1, 11))
        if graph is library:
            graph.mark_output(graph.softmax(scores, 2))
        else:
            shares = graph.exp(scores)
            graph.mark_output(graph.div(shares, graph.sum(shares, 2)))
    [check] = BlockReference(program.graph()).float_checks([library.graph()])
    assert check.ok, check.problem
