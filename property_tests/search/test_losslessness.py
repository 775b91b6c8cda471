"""What pruning loses: nothing that the loaded laws find from the program and that holds no value twice.

Exhaustive search (no oracle, no bounds) gives every structure with the program's function. Whether the laws prove one is
decided by a saturation of its own, of both sides together. What only exhaustive search finds is counted by what is missing.
Agreement needs laws that go both ways; a one-way law (x·x = square(x), never back) can prove a structure from its own side:
such a structure is pruned, and one of no more ops is found.
"""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.egraph.expression import Expression, Split, Term, express, op_of, splits
from mirage_eg.egraph.laws import applications
from mirage_eg.egraph.oracle import Limits, build_oracle, saturate
from mirage_eg.egraph.rule_files import DOMAINS
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.ir.axes import Axes, infer_axes
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.search.structure import Load, Structure
from mirage_eg.search.structure_search import SearchLimits, search
from property_tests.support.exhaustive_search import Exhaustive, Solution, Terms, alphabet_of
from property_tests.support.parameters import few

ONE_WAY = (
    "24_exponentials",
    "25_functions",
    "33_exp_of_log",
    "33_partial",
    "26_squares",
    "26_squares_of_products",
    "27_powers",
    "28_monotone",
    "28_maxima_of_sums",
)  # x·x = square(x) and the like, left to right only
RULES = load_rules("indexed", without=ONE_WAY)


def linear(scaled: bool) -> Graph:
    program = new_kernel_graph()
    x, w = program.new_input((4, 6), name="X"), program.new_input((6, 5), name="W")
    program.matmul(program.scale(x, Fraction(1, 2)) if scaled else x, w)
    return program.graph()


def quotient() -> Graph:
    program = new_kernel_graph()
    x, w, s = (program.new_input(shape, name=name) for name, shape in (("X", (4, 6)), ("W", (6, 5)), ("s", (4, 1))))
    program.matmul(program.div(x, s), w)
    return program.graph()


def row_sums() -> Graph:
    program = new_kernel_graph()
    x, y = program.new_input((4, 6), name="x"), program.new_input((4, 1), name="y")
    program.sum(program.mul(program.square(x), y), 1)
    return program.graph()


def mean_of_sum() -> Graph:
    program = new_kernel_graph()
    x, y = program.new_input((4, 6), name="x"), program.new_input((4, 6), name="y")
    program.mean(program.add(x, y), 1)
    return program.graph()


PROGRAMS = {
    "a product": lambda: linear(False),
    "a scaled product": lambda: linear(True),
    "a product of a quotient": quotient,
    "sums of weighted squares": row_sums,
    "the mean of a sum": mean_of_sum,
}


@st.composite
def elementwise_programs(draw: st.DrawFn) -> Graph:
    """Two or three inputs of one shape or one row, and two or three ops, perhaps a sum at the end."""
    program = new_kernel_graph()
    values = [
        program.new_input(draw(st.sampled_from([(2, 3), (2, 3), (2, 1)])), name=name)
        for name in "xyz"[: draw(st.integers(1, 3))]
    ]
    for _ in range(draw(st.integers(1, 3))):
        op = draw(st.sampled_from(["add", "mul", "div", "square", "exp"]))
        left = values[-1] if op in ("square", "exp") else draw(st.sampled_from(values))
        values.append(getattr(program, op)(*([left] if op in ("square", "exp") else [left, values[-1]])))
    if draw(st.booleans()):
        values.append(program.sum(values[-1], 1))
    program.mark_output(values[-1])
    return program.graph()


def whole_loads(program: Graph, axes: Axes, split: Split) -> list[int | None]:
    looped = [i for i in range(len(program.inputs)) if split.looped is not None and split.looped in axes.of(i)]
    return [None, *looped]


def guided(program: Graph, axes: Axes, max_ops: int, rules: Rulebook) -> dict[Split, set[object]]:
    result = search(program, axes, rules, SearchLimits(max_ops))
    assert all(record.complete for record in result.records)
    found: dict[Split, set[object]] = {split: set() for split in splits(axes)}
    for structure in result.structures:
        found[structure.split].add(shape_of_structure(structure))
    return found


def shape_of_structure(structure: Structure) -> object:
    return shape([(load.input, load.looped) for load in structure.loads], structure.steps)


def shape(loads: Sequence[object], steps: Sequence[object]) -> object:
    """The DAG of a structure, whatever the order of its steps."""
    values: list[object] = list(loads)
    for step in steps:
        operands = [values[i] for i in step.operands]  # type: ignore[attr-defined]
        if step.op in ("add", "mul", "matmul"):  # type: ignore[attr-defined]
            operands.sort(key=repr)
        values.append((step.op, tuple(operands), tuple(step.constants), tuple(sorted(step.reduced))))  # type: ignore[attr-defined]
    return values[-1]


def size(shape: object) -> int:
    """The ops of a shape as a tree."""
    match shape:
        case (str(), tuple() as operands, tuple(), tuple()):
            return 1 + sum(map(size, operands))
        case _:
            return 0


def shape_of_found(found: Solution, loads: Sequence[Load]) -> object:
    values: list[object] = [(load.input, load.looped) for load in loads]
    for op, operands, constants, reduced, _ in found.steps:
        chosen = [values[i] for i in operands]
        if op in ("add", "mul", "matmul"):
            chosen.sort(key=repr)
        values.append((op, tuple(chosen), tuple(constants), tuple(sorted(reduced))))
    return values[-1]


def expression_of(terms: Terms, wanted: Sequence[int], expression: Expression) -> Expression:
    """The wanted terms as outputs of one expression over the inputs of `expression`."""
    needed: set[int] = set(terms.inputs)
    waiting = list(wanted)
    while waiting:
        if (number := waiting.pop()) not in needed:
            needed.add(number)
            waiting += terms.terms[number].children
    order = sorted(needed)
    place = {old: new for new, old in enumerate(order)}
    kept = tuple(
        Term(term.constructor, term.constants, tuple(place[child] for child in term.children))
        for term in map(terms.terms.__getitem__, order)
    )
    return Expression(kept, tuple(place[i] for i in terms.inputs), tuple(place[i] for i in wanted), expression.free)


def is_proved(rules: Rulebook, terms: Terms, found: Solution, target: Expression) -> tuple[bool, bool]:
    """Whether the laws prove the structure equal to the program, and whether it then holds a value twice."""
    used = range(len(found.values))  # a load that the structure does not use counts too: the search need not compute it again
    numbers = [terms.outputs[0], *(found.values[i][0] for i in used)]
    oracle = saturate(rules, expression_of(terms, numbers, target), Limits())
    assert oracle.saturation.saturated
    values = [(oracle.outputs[1 + place], found.values[i][1]) for place, i in enumerate(used)]
    return oracle.outputs[0] == oracle.outputs[-1], len(set(values)) < len(values)


def compare(program: Graph, max_ops: int, rules: Rulebook = RULES) -> tuple[int, Counter[str]]:
    """Assert losslessness; the number of structures that both searches find, and what only exhaustive search does."""
    program = expand(program)
    axes = infer_axes(program)
    by_oracle = guided(program, axes, max_ops, rules)
    agreed, missing = 0, Counter[str]()
    for split in splits(axes):
        target = express(program, axes, split, "indexed")
        oracle = build_oracle(rules, target)
        proved: set[object] = set()
        for whole in whole_loads(program, axes, split):
            run = Exhaustive(program, axes, split, alphabet_of(oracle.table), max_ops, whole=whole)
            for found, terms in run.run():
                loads = run.loads
                steps = found.steps
                if split.looped is not None and not any(step[0].startswith("accum_") for step in steps):
                    continue  # it belongs to the split without a loop
                if whole is not None and not any(loads.index(Load(whole, False)) in step[1] for step in steps):
                    continue  # it belongs to the search without this load
                equal, twice = is_proved(rules, terms, found, target)
                if equal and not twice:
                    proved.add(shape_of_found(found, loads))
                elif equal:
                    missing["holds a value twice"] += 1
                else:
                    missing["no law proves it"] += 1
        if rules is RULES:
            assert proved == by_oracle[split]
        else:  # what a one-way law proves from the structure's side only is no part of the program's e-graph
            assert proved >= by_oracle[split]
            lost = proved - by_oracle[split]
            missing["proved by a one-way law, from the other side"] += len(lost)
            for entry in lost:
                assert any(size(other) <= size(entry) for other in by_oracle[split])
        agreed += len(proved & by_oracle[split])
    return agreed, missing


@pytest.mark.parametrize(
    ("name", "max_ops"),
    few(
        [
            ("a product", 4),
            ("a scaled product", 3),
            ("a product of a quotient", 3),
            ("sums of weighted squares", 4),
            ("the mean of a sum", 4),
        ],
        3,
    ),
)
def test_guided_search_returns_exactly_what_the_laws_prove(name: str, max_ops: int) -> None:
    agreed, missing = compare(PROGRAMS[name](), max_ops)
    print(f"{name}, {max_ops} ops: {agreed} structures found by both; only exhaustive search finds: {dict(missing)}")
    assert agreed


@settings(max_examples=10)
@given(program=elementwise_programs())
def test_guided_search_returns_exactly_the_provable_for_random_programs(program: Graph) -> None:
    compare(program, 3)


MISSING = {
    "a mean of what varies and what does not": (
        "(birewrite (Mean i (Add x y)) (Add (Mean i x) y) :when ((= a (axes y)) (set-not-contains a i)))"
    ),
    "cancellation": "(rewrite (Div (Mul x y) y) x) (rewrite (Mul (Div x y) y) x) (rewrite (Square x) (Mul x x))",
}


@pytest.mark.parametrize(("name", "max_ops", "law"), [("the mean of a sum", 3, "a mean of what varies and what does not")])
def test_what_only_exhaustive_search_finds_rests_on_a_law_that_is_missing(
    name: str, max_ops: int, law: str, tmp_path: Path
) -> None:
    _, without = compare(PROGRAMS[name](), max_ops)
    assert without["no law proves it"]
    path = tmp_path / "missing.egg"
    path.write_text(MISSING[law])
    agreed, missing = compare(PROGRAMS[name](), max_ops, load_rules("indexed", [path], without=ONE_WAY))
    print(f"{name}, {max_ops} ops, with {law}: {agreed} by both, exhaustive only {dict(missing)}; without it {dict(without)}")
    assert missing["no law proves it"] < without["no law proves it"]


def test_guided_search_with_directed_laws_returns_only_proved_structures() -> None:
    program = new_kernel_graph()
    x = program.new_input((2, 3), name="x")
    program.mark_output(program.square(program.div(x, program.exp(x))))
    agreed, missing = compare(program.graph(), 3, load_rules("indexed"))
    print(f"square of a quotient, 3 ops: {agreed} by both, exhaustive only {dict(missing)}")
    assert agreed


def test_directed_laws_prune_a_product_of_equals_if_the_program_has_a_square() -> None:
    agreed, missing = compare(row_sums(), 4, load_rules("indexed"))
    assert agreed and missing["proved by a one-way law, from the other side"]


@settings(max_examples=5)
@given(program=elementwise_programs())
def test_pruned_by_one_way_laws_has_a_twin_of_no_more_ops_in_random_programs(program: Graph) -> None:
    compare(program, 3, load_rules("indexed"))


@pytest.mark.parametrize("domain", DOMAINS)
def test_no_one_way_law_writes_more_ops_than_it_matches(domain: str) -> None:
    laws = [law for law in load_rules(domain).laws if law.sides is not None]
    assert len(laws) > 20
    for law in laws:
        assert law.sides is not None
        if "32_constants" in law.place or "35_slices" in law.place:
            continue  # no program of the search has constants of laws, slices or concatenations
        left, right = (sum(op_of(it.name) is not None for it in applications(side)) for side in law.sides)
        both_ways = law.form == "birewrite" or any(other.sides == law.sides[::-1] for other in laws)
        assert right <= left or both_ways, law.place


@pytest.mark.slow
def test_exhaustive_search_finds_more_since_no_law_cancels(tmp_path: Path) -> None:
    program = new_kernel_graph()
    x, y = (program.new_input((2, 3), name=name) for name in "xy")
    program.mark_output(program.mul(program.div(x, y), program.exp(y)))
    _, missing = compare(program.graph(), 4)
    assert missing["no law proves it"]


def test_an_oracle_that_was_cut_loses_structures_and_the_record_says_so() -> None:
    program = expand(linear(True))
    result = search(program, infer_axes(program), RULES, SearchLimits(4, saturation=Limits(iterations=1)))
    whole = search(program, infer_axes(program), RULES, SearchLimits(4))
    assert all(record.saturation.stopped for record in result.records)
    assert len(result.structures) < len(whole.structures)
