"""The cheapest terms of an oracle's outputs if a shared subterm costs once, by integer programming.

One e-node is chosen for each class that is needed. Where the e-graph has cycles, an order of the classes in each strongly
connected component excludes them.
"""

from collections.abc import Callable
from math import inf

from mirage_eg.egraph.expression import Tree
from mirage_eg.egraph.forms import Forms
from mirage_eg.egraph.oracle import Key, children_of
from mirage_eg.graph_optimizer.extraction import ExtractionError
from mirage_eg.graph_optimizer.integer_program import exclude_cycles, new_integer_program


def cheapest_shared(forms: Forms, cost: Callable[[Key], float], seconds: float = 10.0) -> dict[int, Tree]:
    """A term of each class that the outputs need; their different subterms cost the least together.

    Raises ExtractionError: an output has no term of finite cost, or none was found in time.
    """
    from ortools.linear_solver import pywraplp

    oracle, solver = forms.oracle, new_integer_program()
    nodes = {class_: [(key, cost(key)) for key in keys if cost(key) < inf] for class_, keys in forms.nodes.items()}
    chosen = {key: solver.BoolVar("") for own in nodes.values() for key, _ in own}
    made = {class_: solver.Sum([chosen[key] for key, _ in own]) for class_, own in nodes.items()}
    for class_, own in nodes.items():
        solver.Add(made[class_] == 1 if class_ in oracle.outputs else made[class_] <= 1)
        for key, _ in own:
            for child in dict.fromkeys(children_of(oracle, key)):
                solver.Add(chosen[key] <= made[child])
    edges = {class_: sorted({c for key, _ in own for c in children_of(oracle, key)}) for class_, own in nodes.items()}
    read = [(class_, dict.fromkeys(children_of(oracle, key)), chosen[key]) for class_, own in nodes.items() for key, _ in own]
    exclude_cycles(solver, edges, read)
    solver.Minimize(solver.Sum([own * chosen[key] for entries in nodes.values() for key, own in entries]))
    solver.SetTimeLimit(int(seconds * 1000))
    if solver.Solve() not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
        raise ExtractionError(f"extract: got no terms within {seconds:.0f} s, wanted outputs with terms of finite cost")
    best = {class_: next((key for key, _ in own if chosen[key].solution_value() > 0.5), None) for class_, own in nodes.items()}
    trees: dict[int, Tree] = {}

    def tree(class_: int) -> Tree:
        if class_ not in trees:
            key = best[class_]
            assert key is not None, "what a chosen e-node reads is chosen"
            trees[class_] = forms.tree(key, [tree(child) for child in children_of(oracle, key)])
        return trees[class_]

    for output in oracle.outputs:
        tree(output)
    return trees
