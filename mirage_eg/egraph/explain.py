"""Why the oracle keeps or prunes an expression: a form of the program that contains it, and the steps from the program there.

The search does not need this file.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from mirage_eg.egraph.chain_search import find_chains
from mirage_eg.egraph.expression import Expression, Tree, flatten
from mirage_eg.egraph.forms import Forms
from mirage_eg.egraph.oracle import Key, Oracle, children_of
from mirage_eg.egraph.proof_chain import ProofChain
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.egraph.sufficient_laws import SufficientLaws
from mirage_eg.egraph.term_text import show_term, trees_of


@dataclass(frozen=True, slots=True)
class Explanation:
    """A form of the program that contains a kept expression, with the steps to it; or the first subterm that is pruned."""

    kept: bool
    form: str  # an output of the program with the expression in it, or the pruned subterm
    chain: ProofChain | None = None  # from the output as the program has it to the form; no steps: it is part of the program
    reason: str | None = None  # why it is pruned, or why there is no chain to show

    def __str__(self) -> str:
        if not self.kept:
            return f"pruned at {self.form}: {self.reason}"
        if self.chain is None:
            return f"kept: it is part of {self.form}, which the laws make equal to the program ({self.reason})"
        if not self.chain.steps:
            return f"kept: the program contains it as written: {self.form}"
        return f"kept: it is part of {self.form}, which equals the program by these steps:\n{self.chain}"


def explain(
    oracle: Oracle, expression: Expression, term: int, rulebook: Rulebook, program: Expression, names: Sequence[str] = ()
) -> Explanation:
    """Why the oracle for `program` keeps a term of `expression`, or the first subterm that the oracle prunes.

    `names` are those of the program's inputs, and replace x0, x1 … in the text.
    """
    wanted = trees_of(expression, rulebook.signatures, names)[term]
    return explain_tree(Forms(oracle, names), wanted, SufficientLaws(rulebook), program, names)


def explain_tree(
    forms: Forms, wanted: Tree, sufficient: SufficientLaws, program: Expression, names: Sequence[str] = ()
) -> Explanation:
    """`explain` for a tree; the laws are those of `sufficient`."""
    rulebook = sufficient.rulebook
    if (pruned := first_pruned(forms, wanted)) is not None:
        return Explanation(False, show_term(pruned), None, "no expression that the laws make equal to the program contains it")
    trees = trees_of(program, rulebook.signatures, names)
    outputs = [trees[output] for output in program.outputs]
    inside = next((output for output in outputs if _contains(output, wanted)), None)
    named = [*names] if names else [f"x{position}" for position in range(len(program.inputs))]
    free = dict(zip(named, program.free, strict=True))
    parts = tuple((name, tuple(sorted(it))) for name, it in free.items())
    if inside is not None:
        return Explanation(True, show_term(inside), ProofChain(show_term(inside), (), parts))
    preferred = {class_: tree for tree in trees if (class_ := forms.class_of(tree)) is not None}
    output, form = _form_with(forms, wanted, preferred)
    start = next(tree for tree in outputs if forms.class_of(tree) == output)
    joint = replace(flatten([start, form], free), extents=program.extents)
    laws = sufficient.find(joint)
    if isinstance(laws, str):
        return Explanation(True, show_term(form), None, laws)
    found = find_chains(joint, laws, rulebook, named)
    return Explanation(True, show_term(form), next(iter(found.chains), None), found.missing)


def first_pruned(forms: Forms, tree: Tree) -> Tree | None:
    """The first subterm, innermost first, that no expression equal to the program contains; None if there is none."""
    for part in tree[1:]:
        if isinstance(part, tuple) and (found := first_pruned(forms, part)) is not None:
            return found
    return tree if forms.class_of(tree) is None else None


def _contains(tree: Tree, part: Tree) -> bool:
    return tree == part or any(_contains(it, part) for it in tree[1:] if isinstance(it, tuple))


def _form_with(forms: Forms, wanted: Tree, preferred: Mapping[int, Tree]) -> tuple[int, Tree]:
    """The class of an output, and a term of it that contains `wanted`: as much of it as possible is the program's."""
    best = forms.cheapest(preferred=preferred)
    goal = forms.class_of(wanted)
    assert goal is not None, "a kept term has a class"
    form, class_ = wanted, goal
    for key in reversed(_path(forms, goal, {key for tree in preferred.values() if (key := forms.key(tree)) is not None})):
        children = children_of(forms.oracle, key)
        place = children.index(class_)
        form = forms.tree(key, (form if at == place else best[child] for at, child in enumerate(children)))
        class_ = forms.oracle.table[key]
    return class_, form


def _path(forms: Forms, goal: int, program: Collection[Key]) -> list[Key]:
    """A path of e-nodes from an output down to the class `goal` with the fewest e-nodes that the program does not have."""
    queue: list[tuple[int, int, int]] = [(0, 0, output) for output in dict.fromkeys(forms.oracle.outputs)]
    by: dict[int, tuple[int, Key]] = {}
    cost = {class_: (0, 0) for _, _, class_ in queue}
    while queue:
        foreign, length, class_ = heappop(queue)
        if class_ == goal:
            break
        for key in sorted(forms.nodes.get(class_, ()), key=str):
            new = foreign + (key not in program), length + 1
            for child in children_of(forms.oracle, key):
                if new < cost.get(child, (*new, 1)):
                    cost[child], by[child] = new, (class_, key)
                    heappush(queue, (*new, child))
    path: list[Key] = []
    while goal in by:
        goal, key = by[goal]
        path.append(key)
    return path[::-1]
