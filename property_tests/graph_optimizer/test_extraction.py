"""Extraction from crafted e-graphs: results are acyclic, and the solver's choice is that of an exhaustive search."""

from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mirage_eg.backends.cost.devices import find_device
from mirage_eg.graph_optimizer.costs import FusionRole, KernelCosts, role_of
from mirage_eg.graph_optimizer.eclasses import EClasses, components
from mirage_eg.graph_optimizer.extraction import Extraction, ExtractionError, extract
from mirage_eg.graph_optimizer.program_terms import NumberedENode
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.node import Node, TensorType

COSTS = KernelCosts(find_device("h200"))
TYPE = TensorType((64, 64), DType.float16)
NAMES = {op: Node(op, (), ()) for op in ("relu", "tanh", "add", "cumsum")}


def unary(op: str, child: int) -> NumberedENode:
    return NumberedENode("Unary", (op,), (child,))


def crafted(*enodes: tuple[NumberedENode, ...], roots: tuple[int, ...]) -> EClasses:
    return EClasses(enodes, ((TYPE,),) * len(enodes), (False,) * len(enodes), roots, (), NAMES)


def is_acyclic(found: Extraction) -> bool:
    edges = {choice.class_: choice.enode.children for choice in found.choices}
    return all(len(group) == 1 and group[0] not in edges.get(group[0], ()) for group in components(edges))


@pytest.mark.parametrize("fused", [False, True])
def test_a_cyclic_e_graph_gives_an_acyclic_program(fused: bool) -> None:
    given_input = (NumberedENode("In", (0,), ()),)
    # 1 and 2 are views of each other, for nothing; a way out costs two kernels.
    classes = crafted(
        given_input,
        (NumberedENode("Slice", (0, 0, 64), (2,)), NumberedENode("Other", ("cumsum",), (0,))),
        (NumberedENode("Slice", (0, 0, 64), (1,)), NumberedENode("Other", ("cumsum",), (1,))),
        (unary("relu", 2),),
        roots=(3,),
    )
    found = extract(classes, COSTS, fused)
    assert is_acyclic(found) and found.proved
    assert sum(choice.enode.constructor == "Other" for choice in found.choices) == 1


def test_an_e_graph_of_cycles_alone_is_refused() -> None:
    classes = crafted((unary("relu", 1),), (unary("tanh", 0),), roots=(0,))
    with pytest.raises(ExtractionError, match="acyclic program"):
        extract(classes, COSTS)


@st.composite
def small_e_graphs(draw: st.DrawFn) -> EClasses:
    """Up to five classes with one or two e-nodes each, cycles among them; the first class is an input."""
    count = draw(st.integers(2, 5))
    classes = [(NumberedENode("In", (0,), ()),)]
    for _ in range(count - 1):
        own = set()
        for _ in range(draw(st.integers(1, 2))):
            children = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=2))
            binary = NumberedENode("Binary", ("add",), tuple(children)) if len(children) == 2 else unary("relu", children[0])
            own.add(draw(st.sampled_from([binary, NumberedENode("Other", ("cumsum",), (children[0],))])))
        classes.append(tuple(sorted(own, key=str)))
    return crafted(*classes, roots=(count - 1,))


def cheapest(classes: EClasses) -> float | None:
    """The least cost over all choices of one e-node a class, each a kernel, without cycles."""
    best = None
    for picked in product(*classes.enodes):
        needed, stack = set[int](), list(classes.roots)
        while stack:
            if (class_ := stack.pop()) not in needed:
                needed.add(class_)
                stack += picked[class_].children
        edges = {class_: picked[class_].children for class_ in needed}
        if any(len(group) > 1 or group[0] in edges[group[0]] for group in components(edges)):
            continue
        cost = sum(own_cost(picked[class_]) for class_ in needed)
        best = cost if best is None else min(best, cost)
    return best


def own_cost(enode: NumberedENode) -> float:
    role = role_of(enode, NAMES)
    if role is FusionRole.INPUT:
        return 0.0
    reads = len(set(enode.children))
    computed = COSTS.computed if role is FusionRole.ELEMENTWISE else 0.0
    return COSTS.launch(role, enode.constructor) + (1 + reads) * COSTS.moved((TYPE,)) + computed


@given(small_e_graphs())
def test_extraction_without_fusion_finds_the_cheapest_program(classes: EClasses) -> None:
    wanted = cheapest(classes)
    if wanted is None:
        with pytest.raises(ExtractionError):
            extract(classes, COSTS, fused=False)
    else:
        found = extract(classes, COSTS, fused=False)
        assert is_acyclic(found)
        assert found.us == pytest.approx(wanted)


@given(small_e_graphs())
def test_fusion_costs_no_more_and_has_no_cycles(classes: EClasses) -> None:
    assume(cheapest(classes) is not None)
    plain, fused = extract(classes, COSTS, fused=False), extract(classes, COSTS)
    assert is_acyclic(fused)
    assert fused.us <= plain.us + 1e-9
