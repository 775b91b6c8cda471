"""Mutation testing: a single change of a right µGraph that stays legal is rejected, or float64 shows it equal after all."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.load import load_program
from mirage_eg.frontend.mirage_json import read_published
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir import serialize
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.ops import OPS, Kind, Level
from mirage_eg.search.instantiate.instantiate import small_instance
from mirage_eg.search.partition.segments import segment_program
from mirage_eg.search.structure_search import SearchLimits, search
from mirage_eg.testing import every_mutant
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Equality
from property_tests.frontend.test_mirage_json import FOLDER, PROGRAMS, published
from property_tests.search.partition.test_partition import cut
from property_tests.support.parameters import few

_PLAIN = [row.name for row in OPS.values() if row.kind is Kind.ELEMENTWISE and not row.attributes]
_STRUCTURES = 3  # of each workload
CUT = "decoder_layer"  # too large for one block graph


def changed_extents(block: Graph) -> Iterator[tuple[tuple[int, ...], int]]:
    """Other loops and grids: one extent doubled, halved, or set to one."""
    for loop in {1, block.loop * 2, max(1, block.loop // 2), block.loop + 1} - {block.loop}:
        yield block.grid, loop
    for place, extent in enumerate(block.grid):
        for other in {1, extent * 2, max(1, extent // 2), extent + 1} - {extent}:
            yield (*block.grid[:place], other, *block.grid[place + 1 :]), block.loop


def changed_ops(block: Graph) -> Iterator[tuple[Node, ...]]:
    """One elementwise op exchanged for another of as many operands, or one reduction for another."""
    for place, item in enumerate(block.nodes):
        others = _PLAIN if OPS[item.op].kind is Kind.ELEMENTWISE else ["sum", "mean", "max"]
        if OPS[item.op].kind in (Kind.ELEMENTWISE, Kind.REDUCTION):
            for op in others:
                if op != item.op and OPS[op].arity == OPS[item.op].arity and not OPS[item.op].attributes.keys() - {"dim"}:
                    yield (*block.nodes[:place], Node(op, item.operands, item.attributes), *block.nodes[place + 1 :])


def all_mutants(block: Graph) -> Iterator[Graph]:
    """Every legal single change of the same input and output types."""
    yield from every_mutant(block)
    changes = [(nodes, block.grid, block.loop) for nodes in changed_ops(block)]
    changes += [(block.nodes, grid, loop) for grid, loop in changed_extents(block)]
    for nodes, grid, loop in changes:
        try:
            mutant = Graph(nodes, Level.BLOCK, grid, loop)
        except GraphError:
            continue
        if (mutant.input_types, mutant.output_types) == (block.input_types, block.output_types):
            yield mutant


def mutated(graph: Graph) -> Iterator[Graph]:
    """A kernel graph with one of its block graphs mutated, or with one operand of a kernel exchanged for another value."""
    made = 0
    for place, item in enumerate(graph.nodes):
        for i, operand in enumerate(item.operands):
            for other in range(made):
                operands = (*item.operands[:i], other, *item.operands[i + 1 :])
                if other != operand and graph.types[other] == graph.types[operand]:
                    yield Graph((*graph.nodes[:place], Node(item.op, operands, item.attributes), *graph.nodes[place + 1 :]))
        made += len(item["graph"].outputs) if item.op == "block" else item.op != "output"
        if item.op == "block":
            for mutant in all_mutants(item["graph"]):
                yield Graph(
                    (*graph.nodes[:place], Node("block", item.operands, (("graph", mutant),)), *graph.nodes[place + 1 :])
                )


def check_mutants(program: Graph, graph: Graph) -> tuple[int, int]:
    """How many mutants were rejected, and how many are equal in float64."""
    reference = Reference(program)
    assert reference.check(graph).equal
    inputs = [np.random.default_rng(7).random(kind.shape) + 0.5 for kind in program.input_types]
    wanted = evaluate(program, inputs, FloatAlgebra())
    rejected = equal = 0
    for mutant in mutated(graph):
        if reference.check(mutant).verdict is not Equality.EQUAL:
            rejected += 1
            continue
        equal += 1
        for got, want in zip(evaluate(mutant, inputs, FloatAlgebra()), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9)
    return rejected, equal


def all_examples(workload: str) -> list[tuple[Graph, Graph]]:
    """The small instances of all structures found; of a program that is cut, those of the first of each of its kernels."""
    primitive = expand(WORKLOADS[workload](1))
    if workload != CUT:
        return examples_of(primitive, SearchLimits())
    _, found, _ = cut(primitive)
    parts = {part for plan in found.plans for part in plan.parts if part.kernels.fused}
    programs = [segment_program(primitive, part.segment) for part in parts]
    return [example for program in programs for example in examples_of(program, SearchLimits(max_states=2000))[:_STRUCTURES]]


def examples_of(primitive: Graph, limits: SearchLimits) -> list[tuple[Graph, Graph]]:
    axes = infer_axes(primitive)
    structures = search(primitive, axes, load_rules("indexed"), limits).structures
    return [small_instance(structure, primitive, axes) for structure in structures]


@cache
def small_examples(workload: str) -> list[tuple[Graph, Graph]]:
    examples = all_examples(workload)
    return examples[:: max(1, len(examples) // _STRUCTURES)][:_STRUCTURES]


LONG = {"mlp_block", "qknorm", "ntrans", "gqa", "mha"}


@pytest.mark.parametrize(
    "workload", few([pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in WORKLOADS if name != CUT], 1)
)
def test_each_single_change_of_a_workloads_graph_is_rejected_or_equal(workload: str) -> None:
    rejected = 0
    for program, graph in small_examples(workload):
        found, _ = check_mutants(program, graph)
        rejected += found
    assert rejected >= 5


@published
@pytest.mark.slow
def test_each_single_change_of_published_lora_graphs_is_rejected_or_equal() -> None:
    _, program = load_program(str(PROGRAMS / "lora.py"))
    graphs = serialize.read(FOLDER / "lora_bs1.json", read_published)[:2]
    assert len(graphs) == 2
    for graph in graphs:
        assert isinstance(graph, Graph)
        rejected, _ = check_mutants(program, graph)
        assert rejected >= 5


@published
@pytest.mark.slow
@pytest.mark.parametrize(("name", "batch", "file"), [("rmsnorm", 1, "rmsnorm_bs1"), ("gqa", 8, "gqa_bs8")])
def test_each_change_of_full_size_published_graphs_is_rejected_or_equal(name: str, batch: int, file: str) -> None:
    _, program = load_program(str(PROGRAMS / f"{name}.py"), batch)
    reference = Reference(program)
    graph = serialize.read(FOLDER / f"{file}.json", read_published)[0]
    assert isinstance(graph, Graph)
    changes = list(mutated(graph))
    chosen = changes[:: max(1, len(changes) // 8)]
    verdicts = [result.verdict for result, _ in reference.check_all(chosen)]
    inputs = [np.random.default_rng(7).random(kind.shape, dtype=np.float32) for kind in program.input_types]
    for mutant, verdict in zip(chosen, verdicts, strict=True):
        if verdict is Equality.EQUAL:
            pairs = zip(evaluate(mutant, inputs, FloatAlgebra()), evaluate(program, inputs, FloatAlgebra()), strict=True)
            for got, want in pairs:
                np.testing.assert_allclose(got, want, rtol=1e-9)
    assert verdicts.count(Equality.NOT_EQUAL) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS)
def test_each_single_change_of_each_structure_is_rejected_or_equal(workload: str) -> None:
    rejected = sum(check_mutants(program, graph)[0] for program, graph in all_examples(workload))
    assert rejected >= 20


@published
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "batch", "file"), [("rmsnorm", 1, "rmsnorm_bs1"), ("gqa", 8, "gqa_bs8"), ("lora", 1, "lora_bs1")]
)
def test_each_single_change_of_each_published_graph_is_rejected_or_equal(name: str, batch: int, file: str) -> None:
    _, program = load_program(str(PROGRAMS / f"{name}.py"), batch)
    graphs = serialize.read(FOLDER / f"{file}.json", read_published)
    assert graphs
    for graph in graphs:
        assert isinstance(graph, Graph)
        assert check_mutants(program, graph)[0] >= 5
