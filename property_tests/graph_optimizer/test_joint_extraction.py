"""Joint extraction by prices of segments: every kernel of the result is priced, and no program of known price is cheaper."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from mirage_eg.backends.cost.devices import find_device
from mirage_eg.graph_optimizer.joint_extraction import CLOSE, JointProgram
from mirage_eg.graph_optimizer.substitution import Substitutions, substitutions
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import is_op
from mirage_eg.ir.serialize import to_json
from mirage_eg.ir.weights import with_weights
from mirage_eg.search.partition.kernel_finder import KernelFinder
from mirage_eg.search.partition.kernel_plan import compose
from mirage_eg.search.partition.plan_records import PlanPart, Segment, SegmentKernels
from mirage_eg.search.partition.segments import segment_program
from mirage_eg.testing import TAME, programs
from mirage_eg.transforms.simplify import simplify
from mirage_eg.verify.reference import verify

H200 = find_device("h200")
MOVES = frozenset({"concat", "slice", "transpose", "reshape", "matmul", "scale"})


@dataclass
class Prices:
    """Prices of segments that a rule gives; the library form of a segment is its kernel."""

    factor: Callable[[Graph], float | None]  # of the lower bound; None: no kernel
    asked: list[Graph] = field(default_factory=list)

    def find(self, program: Graph, segments: Sequence[Segment]) -> list[tuple[PlanPart, ...]]:
        bound = KernelFinder(program, H200, lambda *_: []).lower_bound
        return [self._parts(segment, segment_program(program, segment), bound(segment)) for segment in segments]

    def _parts(self, segment: Segment, program: Graph, bound: float) -> tuple[PlanPart, ...]:
        self.asked.append(program)
        factor = self.factor(program)
        if factor is None:
            return ()
        return (PlanPart(segment, segment.inputs, SegmentKernels(program, factor * bound, 1, proved=True, fused=True)),)


def equal_programs(program: Graph, prices: Prices) -> Substitutions | None:
    primitive = simplify(expand(program)).after
    return substitutions(program, primitive, H200, prices.find)


def joint(program: Graph, prices: Prices, most: int = 1000) -> JointProgram | None:
    found = equal_programs(program, prices)
    return None if found is None else found.extraction.cheapest(5.0, most, lambda: True)


def siblings(count: int = 2) -> Graph:
    """Products of one tensor with several weights."""
    graph = new_kernel_graph()
    x = graph.new_input((8, 64), name="x")
    for number in range(count):
        graph.mark_output(graph.relu(x @ graph.new_input((64, 64), name=f"w{number}", weight=True)))
    return graph.graph()


def products(program: Graph) -> int:
    return sum(item.op == "matmul" for item in program.nodes)


@settings(max_examples=settings.default.max_examples // 2)
@given(program=programs(TAME | MOVES, attempts=10), seed=st.integers(0, 9))
def test_the_result_is_equal_and_within_two_percent_of_the_bound(program: Graph, seed: int) -> None:
    def factor(segment: Graph) -> float | None:
        place = crc32(f"{seed} {to_json(segment)}".encode()) % 64
        single = sum(map(is_op, segment.nodes)) == 1
        return 1 + place / 32 if place < 48 or single else None

    assume(len(program.inputs) > 1)
    marked, prices = with_weights(program, range(1, len(program.inputs))), Prices(factor)
    equal = equal_programs(marked, prices)
    assert equal is not None
    found = equal.extraction.cheapest(5.0, 1000, lambda: True)
    result, given_program = found.rewritten, equal.extraction.program
    event(f"{equal.extraction.rounds} rounds, {'a plan' if found.plan else 'no plan'}")
    assert found.bound_us <= found.us
    assert verify(given_program, result.whole, trials=1).difference is None
    if found.plan is not None:
        composed = compose(result.graph, found.plan.parts)
        assert found.us == found.plan.us
        assert equal.extraction.may_read_rearranged() or found.us <= CLOSE * found.bound_us * (1 + 1e-6)
        assert composed.output_types == marked.output_types and len(found.plan.parts) == len(result.kernels)


def test_prices_of_kernels_decide_over_a_substitution() -> None:
    def dear(width: int) -> Prices:
        return Prices(lambda it: 5.0 if products(it) and it.output_types[0].shape == (8, width) else 1.0)

    joined, apart = joint(siblings(), dear(64)), joint(siblings(), dear(128))
    assert joined is not None and apart is not None
    assert products(joined.rewritten.graph) == 1 and products(apart.rewritten.graph) == 2


def test_a_kernel_without_a_block_graph_is_not_in_the_result() -> None:
    prices = Prices(lambda it: None if sum(map(is_op, it.nodes)) > 1 else 1.0)
    found = joint(siblings(), prices)
    assert found is not None and found.plan is not None
    assert all(len(kernel.ops) == 1 or set(kernel.ops) <= {"slice", "relu"} for kernel in found.rewritten.kernels)
    free = joint(siblings(), Prices(lambda _: 1.0))
    assert free is not None and free.us < found.us


def test_searched_segments_of_several_products_are_kernels() -> None:
    program, prices = siblings(), Prices(lambda _: 3.0)
    found = equal_programs(program, prices)
    assert found is not None
    extraction, given_program = found.extraction, found.extraction.program
    nodes = frozenset(position for position, item in enumerate(given_program.nodes) if item.op in ("matmul", "relu"))
    outputs = tuple(item.operands[0] for item in given_program.outputs)
    both = Segment(nodes, given_program.input_values, outputs)
    kernels = SegmentKernels(segment_program(given_program, both), 0.5, 1, proved=True, fused=True)
    extraction.add(given_program, extraction.terms_of_given(), [(both, PlanPart(both, both.inputs, kernels))])
    result = extraction.cheapest(5.0, 1000, lambda: True)
    assert result.plan is not None and len(result.plan.parts) == 1
    assert products(result.rewritten.graph) == 2 and verify(program, result.rewritten.whole, trials=1).equal


def test_no_kernel_that_reads_a_factor_transposed_is_below_the_bound() -> None:
    graph = new_kernel_graph()
    x, y = (graph.new_input((64, 64), name=name) for name in "xy")
    left, right = (graph.relu(it @ graph.new_input((64, 64), name=name, weight=True)) for it, name in ((x, "v"), (y, "w")))
    graph.mark_output(left @ graph.transpose(right, (1, 0)))
    program = graph.graph()
    whole = expand(program)
    found = joint(program, Prices(lambda _: 1.0))
    bound = KernelFinder(whole, H200, lambda *_: []).lower_bound
    products_, relus = ([i for i, item in enumerate(whole.nodes) if item.op == op] for op in ("matmul", "relu"))
    [transposed] = (i for i, item in enumerate(whole.nodes) if item.op == "transpose")
    numbered = whole.numbered()

    def segment(*nodes: int) -> Segment:
        read = {i for position in nodes for i in whole.nodes[position].operands if whole.makers[i] not in nodes}
        return Segment(frozenset(nodes), tuple(sorted(read)), tuple(numbered[nodes[-1]][1]))

    kernels = [*map(segment, products_[:2], relus), segment(transposed, products_[2])]
    assert found is not None and found.bound_us <= sum(map(bound, kernels)) * (1 + 1e-6) < found.us


def test_the_bound_holds_where_the_search_is_cut() -> None:
    full, cut = joint(siblings(3), Prices(lambda _: 2.0)), joint(siblings(3), Prices(lambda _: 2.0), most=0)
    assert full is not None and cut is not None and full.plan is not None and cut.plan is None
    assert cut.bound_us <= full.bound_us <= full.us
