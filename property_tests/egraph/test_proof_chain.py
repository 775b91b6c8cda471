"""Proof chains: the checker accepts each law as a step and the chains of proved structures, and refuses every altered step."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mirage_eg.egraph.chain_checker import ChainError, check_chain
from mirage_eg.egraph.chain_search import find_chains
from mirage_eg.egraph.equations import Equation, UnboundError, equations, instance
from mirage_eg.egraph.expression import Expression, Term, Tree, flatten
from mirage_eg.egraph.laws import Equal, Law
from mirage_eg.egraph.oracle import Limits
from mirage_eg.egraph.proof_chain import ProofChain, ProofStep
from mirage_eg.egraph.rule_files import packaged_names
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.egraph.side_conditions import SideConditions
from mirage_eg.egraph.soundness.chain_values import check_values
from mirage_eg.egraph.term_text import parse_term, show_constant, show_term
from mirage_eg.frontend.workloads import STANDARD, WORKLOADS
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.expand import expand
from mirage_eg.search.instantiate.instantiate import small_instance
from mirage_eg.search.structure_search import search
from mirage_eg.verify.proof import Prover

RULES = load_rules("indexed", packaged_names("indexed"))
EQUATIONS = [  # laws about the sizes of axes, (extent i), relate more indices than are tried here
    (law, claim) for law in RULES.laws if "(extent " not in law.text for claim in equations(law, RULES.signatures)
]
FREE = {"a": frozenset({"i", "j"}), "b": frozenset({"i", "j"}), "u": frozenset[str](), "v": frozenset({"j"})}
JOINED: Tree = ("Concat", "i", "h", "k", 2, ("Var", "u"), ("Var", "v"))  # for laws of reductions over what is concatenated
TERMS: tuple[Tree, ...] = (*(("Var", name) for name in FREE), ("Exp", ("Var", "a")), ("Less", ("Var", "a"), ("Var", "b")))
CONSTANTS: Mapping[str, tuple[Any, ...]] = {
    "String": ("i", "j", "i·j"),
    "BigRat": (Fraction(2), Fraction(-3, 2), Fraction(4), Fraction(1, 2)),
    "i64": (1, 2, 3),
}


def sorts_of(claim: Equation) -> dict[str, str]:
    """The sorts of an equation's variables: by the constructors that take them."""
    found: dict[str, str] = {}
    waiting = [claim.left, claim.right]
    while waiting:
        pattern = waiting.pop()
        arguments = getattr(pattern, "arguments", ())
        inputs = RULES.signatures[pattern.name].inputs if arguments and pattern.name in RULES.signatures else ()
        found |= {str(part): sort for part, sort in zip(arguments, inputs, strict=False) if not hasattr(part, "arguments")}
        waiting += arguments
    return {name: found.get(name, "E") for name in claim.variables}


def instances(claim: Equation) -> Iterator[ProofChain]:
    """One-step chains by an equation, with small terms for which its conditions hold."""
    sorts = sorts_of(claim)
    equal = [side for it in claim.conditions if isinstance(it, Equal) for side in (it.left, it.right)]
    joined = any(getattr(side, "name", "") == "Concat" for side in equal)
    terms, further = ((JOINED,), ("h", "k")) if joined else (TERMS, ())
    pools = [terms if sort == "E" else (*CONSTANTS[sort], *(further if sort == "String" else ())) for sort in sorts.values()]
    for choice in product(*pools):
        given_values = dict(zip(sorts, choice, strict=True))
        context = [it for it in choice if isinstance(it, tuple)]
        facts = SideConditions(RULES.laws, RULES.signatures, FREE, context)
        for values in facts.solutions(claim.conditions, given_values):
            if any(values[name] != value for name, value in given_values.items()):
                continue
            try:
                left, right = (show_term(instance(side, values, RULES.signatures)) for side in (claim.left, claim.right))
            except (UnboundError, ArithmeticError):
                continue
            shown = tuple((n, show_term(v) if isinstance(v, tuple) else show_constant(v)) for n, v in given_values.items())
            free = tuple((name, tuple(sorted(parts))) for name, parts in FREE.items())
            for forward, (start, end) in ((True, (left, right)), (False, (right, left))):
                yield ProofChain(start, (ProofStep(claim.law, forward, shown, ((),), end),), free)


LONG = ("slice across a concat",)


@pytest.mark.parametrize(
    ("law", "claim"),
    [pytest.param(law, claim, marks=[pytest.mark.slow] * (law.name in LONG), id=law.name) for law, claim in EQUATIONS],
)
def test_each_packaged_law_is_accepted_as_a_step_bidirectional(law: Law, claim: Equation) -> None:
    found = instances(claim)
    for direction in (True, False):
        chain = next(found)
        assert chain.steps[0].forward is direction
        check_chain(chain, RULES)
        check_values(chain, RULES)


@cache
def chains_of(name: str, most: int = 6) -> tuple[ProofChain, ...]:
    """The chains of some structures that the search finds for a workload."""
    primitive = expand(WORKLOADS[name](1))
    axes = infer_axes(primitive)
    structures = search(primitive, axes, load_rules("indexed")).structures
    chosen = Random(0).sample(structures, min(most, len(structures)))
    provers: dict[Any, Prover] = {}
    found: list[ProofChain] = []
    for structure in chosen:
        program, candidate = small_instance(structure, primitive, axes)
        prover = provers.setdefault(program, Prover(program))
        assert prover.prove(candidate).proved == structure.proved
        if structure.proved:
            chains = prover.chains(candidate)  # which checks them
            assert chains.missing is None
            found += chains.chains
    return tuple(found)


@pytest.mark.parametrize("name", ["rmsnorm", "lora"])
def test_proved_structures_have_chains_that_the_checker_accepts(name: str) -> None:
    chains = chains_of(name)
    assert chains and any(len(chain.steps) > 3 for chain in chains)
    for chain in chains:
        check_chain(chain, load_rules("indexed"))
        assert len({chain.start, *(step.term for step in chain.steps)}) == len(chain.steps) + 1, "a chain has no detour"


@pytest.mark.slow
@pytest.mark.parametrize("name", STANDARD)
def test_every_proved_structure_of_the_workloads_has_an_accepted_chain(name: str) -> None:
    assert chains_of(name, most=10_000)


def test_a_partition_at_slices_has_chains_before_those_of_its_parts() -> None:
    graphs = []
    for whole in (True, False):
        graph = new_kernel_graph()
        x, w = graph.new_input((8, 6), name="X"), graph.new_input((6, 10), name="W")
        if whole:
            first, second = graph.split(graph.matmul(x, w), 2, 1)
        else:
            second, first = (graph.matmul(x, graph.slice(w, 1, start, start + 5)) for start in (5, 0))
        graph.mark_output(graph.mul(graph.silu(first), second), name="Y")
        graphs.append(graph.graph())
    found = Prover(graphs[0]).chains(graphs[1])
    assert found.missing is None and [chain.claim for chain in found.chains] == ["claim of the partition 1", "part 1"]
    assert set(found.chains[0].laws) >= {"slice of a sum", "slice of mul"} and "X" in found.chains[0].start
    for chain in found.chains:
        check_chain(chain, RULES)


def altered(chain: ProofChain, number: int, draw: st.DataObject) -> ProofChain:
    """The chain with another law, direction, substitution, position or term in one step."""
    step = chain.steps[number]
    match draw.draw(st.sampled_from(["law", "direction", "substitution", "position", "term", "positions"])):
        case "law":
            others = [law.name for law in RULES.laws if law.name != step.law]
            changed = replace(step, law=draw.draw(st.sampled_from([*others, "no law"])))
        case "direction":
            changed = replace(step, forward=not step.forward)
        case "substitution":
            place = draw.draw(st.integers(0, len(step.substitution) - 1))
            name, value = step.substitution[place]
            values = [it for other in chain.steps for _, it in other.substitution if it != value]
            new = draw.draw(st.sampled_from([*values, "(", "nothing"]))
            changed = replace(step, substitution=(*step.substitution[:place], (name, new), *step.substitution[place + 1 :]))
        case "position":
            path = tuple(draw.draw(st.lists(st.integers(0, 2), max_size=4)))
            assume((path,) != step.positions)
            changed = replace(step, positions=(path,))
        case "positions":
            changed = replace(step, positions=())
        case _:
            terms = [chain.start, *(it.term for it in chain.steps if it.term != step.term)]
            changed = replace(step, term=draw.draw(st.sampled_from(terms)))
    return replace(chain, steps=(*chain.steps[:number], changed, *chain.steps[number + 1 :]))


@given(st.data())
def test_a_chain_with_one_altered_step_is_refused(data: st.DataObject) -> None:
    chain = data.draw(st.sampled_from([chain for name in ("rmsnorm", "lora") for chain in chains_of(name) if chain.steps]))
    number = data.draw(st.integers(0, len(chain.steps) - 1))
    with pytest.raises(MirageError):
        check_chain(altered(chain, number, data), RULES)


CONDITIONS = {  # conditions that do not hold: law, substitution, before, after
    "a factor that varies does not leave a sum": (
        "sum of a product",
        {"i": "i", "x": "a", "y": "b"},
        ("(Sum i (Mul a b))", "(Mul (Sum i a) b)"),
    ),
    "a sum of what does not vary does not distribute": (
        "sum distributes over add",
        {"i": "i", "x": "a", "y": "u"},
        ("(Sum i (Add a u))", "(Add (Sum i a) (Sum i u))"),
    ),
    "a number is no indicator": ("square of an indicator", {"m": "a"}, ("(Square a)", "a")),
    "a number may be negative": ("log of a quotient", {"x": "a", "y": "b"}, ("(Log (Div a b))", "(Sub (Log a) (Log b))")),
    "a negative factor is no positive one": (
        "maximum of a scale",
        {"i": "i", "c": "-2", "x": "a"},
        ("(Max i (Scale -2 a))", "(Scale -2 (Max i a))"),
    ),
    "a wrong product of constants": (
        "scales merge",
        {"a": "2", "b": "3", "x": "a", "d": "5"},
        ("(Scale 2 (Scale 3 a))", "(Scale 5 a)"),
    ),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_step_whose_condition_does_not_hold_is_refused(name: str) -> None:
    law, values, (start, end) = CONDITIONS[name]
    free = tuple((it, tuple(sorted(parts))) for it, parts in FREE.items())
    chain = ProofChain(start, (ProofStep(law, True, tuple(values.items()), ((),), end),), free)
    with pytest.raises(ChainError, match=r"step 1 .*condition"):
        check_chain(chain, RULES)


LEAVES: st.SearchStrategy[Tree] = st.sampled_from([("Var", name) for name in ("a", "b", "u")])


@given(st.lists(LEAVES, min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_two_orders_of_a_product_are_joined_by_a_chain(leaves: list[Tree], random: Random) -> None:
    def built(parts: list[Tree]) -> Tree:
        while len(parts) > 1:
            place = random.randrange(len(parts) - 1)
            parts = [*parts[:place], ("Mul", parts[place], parts[place + 1]), *parts[place + 2 :]]
        return parts[0]

    pair = built(leaves), built(random.sample(leaves, len(leaves)))
    joint = flatten(pair, FREE)
    found = find_chains(joint, ("mul commutes", "mul associates"), RULES, tuple(FREE))
    assert found.missing is None
    [chain] = found.chains
    check_chain(chain, RULES)
    assert check_values(chain, RULES) or not chain.steps
    assert (chain.start, chain.end) == (show_term(pair[0]), show_term(pair[1]))


@given(st.recursive(LEAVES, lambda inner: st.builds(lambda x, y: ("Mul", x, y), inner, inner), max_leaves=6))
def test_a_term_is_read_as_it_is_written(tree: Tree) -> None:
    assert parse_term(show_term(tree), RULES.signatures, FREE) == tree


def test_terms_that_are_not_equal_have_no_chain() -> None:
    joint = flatten([("Mul", ("Var", "a"), ("Var", "b")), ("Add", ("Var", "a"), ("Var", "b"))], FREE)
    found = find_chains(joint, [law.name for law in RULES.laws], RULES, limits=Limits(iterations=3))
    assert not found.chains and found.missing is not None


def test_deep_terms_are_too_long_to_show() -> None:
    depth = 1500  # Python's recursion ends before
    terms = (Term("Var", ("x",)), *(Term("Exp", (), (inner,)) for inner in range(depth)))
    found = find_chains(Expression(terms, (0,), (depth, depth), (frozenset({"i"}),)), ["mul commutes"], RULES)
    assert not found.chains and found.missing is not None and "constructors" in found.missing


def with_law(folder: Path, text: str) -> Rulebook:
    (folder / "my.egg").write_text(f"; domain: indexed\n{text}\n")
    return load_rules("indexed", [folder / "my.egg"])


def test_a_chain_with_more_parts_than_an_array_has_dims_has_no_values() -> None:
    free = {name: frozenset(f"{name}{i}" for i in range(40)) for name in "ab"}
    pair = ("Mul", ("Var", "a"), ("Var", "b")), ("Mul", ("Var", "b"), ("Var", "a"))
    [chain] = find_chains(flatten(pair, free), ("mul commutes",), RULES, tuple(free)).chains
    check_chain(chain, RULES)
    assert chain.steps and check_values(chain, RULES) == 0


def test_the_model_refuses_a_chain_by_a_false_law(tmp_path: Path) -> None:
    book = with_law(tmp_path, '(rewrite (Sub x y) (Add x y) :name "a lie")')
    joint = flatten([("Sub", ("Var", "a"), ("Var", "b")), ("Add", ("Var", "a"), ("Var", "b"))], FREE)
    [chain] = find_chains(joint, ("a lie",), book, tuple(FREE)).chains
    check_chain(chain, book)
    with pytest.raises(ChainError, match="another value in the model"):
        check_values(chain, book)


def test_a_rule_with_a_definition_of_its_class_is_an_equation(tmp_path: Path) -> None:
    book = with_law(
        tmp_path,
        """(constructor Twice (E i64) E)
(rule ((= e (Scale (bigrat (bigint 2) (bigint 1)) x))) ((union e (Twice x 2))) :name "twice")""",
    )
    joint = flatten([("Exp", ("Scale", Fraction(2), ("Var", "a"))), ("Exp", ("Twice", ("Var", "a"), 2))], FREE)
    [chain] = find_chains(joint, ("twice",), book, tuple(FREE)).chains
    check_chain(chain, book)
    assert chain.end == "(Exp (Twice a 2))" and [step.positions for step in chain.steps] == [((0,),)]
