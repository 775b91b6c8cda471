"""The pruning query by Z3 and by a frozen e-graph, on the same axioms: microseconds per kind of query, and their ratio.

Z3 gets the abstract domain's laws without sizes as quantified equations over an uninterpreted sort, the subexpression laws as
implications, and is asked whether a candidate is part of the target (the published system asks so). A time-out stands for
"no answer". Run: python benchmarks/pruning_query.py [--seconds 5] [--json]
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

from mirage_eg.egraph.expression import Tree, flatten
from mirage_eg.egraph.oracle import Oracle, build_oracle
from mirage_eg.egraph.rulebook import load_rules

X, G, W = ("Var", "x"), ("Var", "g"), ("Var", "w")
TARGET: Tree = ("Sum", 2, ("Mul", ("Div", ("Mul", X, G), ("Sqrt", ("Sum", 2, ("Mul", X, X)))), W))  # RMSNorm and a product
QUERIES: dict[str, Tree] = {
    "yes: a subterm": ("Mul", X, G),
    "yes: one law away": ("Mul", G, X),
    "yes: several laws away": ("Sum", 2, ("Mul", ("Mul", X, G), W)),
    "no: other operands": ("Mul", G, ("Sqrt", X)),
    "no: an op too many": ("Sqrt", ("Sqrt", X)),
}


def by_oracle(oracle: Oracle, query: Tree) -> bool:
    """The query as the search asks it: class by class from the operands."""

    def class_of(tree: Tree) -> int | None:
        arguments: list[Any] = [class_of(part) if isinstance(part, tuple) else part for part in tree[1:]]
        return None if None in arguments else oracle.query(tree[0], *arguments)

    return class_of(query) is not None


def z3_query(seconds: float) -> Callable[[Tree], str]:
    """A function that asks Z3: `sat` of the negation means no, `unsat` yes, `unknown` no answer in time."""
    import z3

    sort = z3.DeclareSort("E")
    names = {"Add": 2, "Mul": 2, "Div": 2, "Exp": 1, "Sqrt": 1}
    ops = {name: z3.Function(name, *[sort] * arity, sort) for name, arity in names.items()}
    total = z3.Function("Sum", z3.IntSort(), sort, sort)
    below = z3.Function("below", sort, sort, z3.BoolSort())
    x, y, z = z3.Consts("x y z", sort)
    i, j = z3.Ints("i j")
    add, mul, div, exp, sqrt = (ops[name] for name in names)
    equations = [
        add(x, y) == add(y, x),
        mul(x, y) == mul(y, x),
        add(x, add(y, z)) == add(add(x, y), z),
        mul(x, mul(y, z)) == mul(mul(x, y), z),
        mul(x, add(y, z)) == add(mul(x, y), mul(x, z)),
        div(add(x, y), z) == add(div(x, z), div(y, z)),
        mul(x, div(y, z)) == div(mul(x, y), z),
        div(div(x, y), z) == div(x, mul(y, z)),
        mul(exp(x), exp(y)) == exp(add(x, y)),
        mul(sqrt(x), sqrt(y)) == sqrt(mul(x, y)),
        below(x, x),
        *(below(part, op(x, y)) for op in (add, mul, div) for part in (x, y)),
        *(below(x, op(x)) for op in (exp, sqrt)),
    ]
    with_sizes = [
        total(1, x) == x,
        total(i, total(j, x)) == total(i * j, x),
        total(i, add(x, y)) == add(total(i, x), total(i, y)),
        total(i, mul(x, y)) == mul(total(i, x), y),
        total(i, div(x, y)) == div(total(i, x), y),
        below(x, total(i, x)),
    ]
    transitive = z3.Implies(z3.And(below(x, y), below(y, z)), below(x, z))
    axioms = [z3.ForAll([x, y, z], law) for law in (*equations, transitive)]
    axioms += [z3.ForAll([x, y, i, j], law) for law in with_sizes]

    def term(tree: Tree) -> Any:
        match tree:
            case ("Var", name):
                return z3.Const(f"v_{name}", sort)
            case ("Sum", size, part):
                return total(size, term(part))
            case (name, *parts):
                return ops[name](*map(term, parts))

    def ask(query: Tree) -> str:
        solver = z3.Solver()
        solver.set("timeout", int(1000 * seconds))
        solver.add(*axioms, z3.Not(below(term(query), term(TARGET))))
        return str(solver.check())

    return ask


def main() -> None:
    """Print the table, or JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="time-out of a Z3 query")
    parser.add_argument("--repeat", type=int, default=3, help="Z3 queries of each kind")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    try:
        ask = z3_query(chosen.seconds)
    except ImportError:
        sys.exit("z3-solver is not installed: pip install --group bench")
    target = flatten([TARGET], dict.fromkeys("xgw", frozenset[str]()))
    start = perf_counter()
    oracle = build_oracle(load_rules("abstract"), target)
    built = perf_counter() - start
    key, repeats = next(iter(oracle.table)), 1_000_000
    get = oracle.table.get
    start = perf_counter()
    for _ in range(repeats):
        get(key)
    lookup = 1e6 * (perf_counter() - start) / repeats
    if chosen.json:
        print(json.dumps({"build_ms": 1000 * built, "nodes": len(oracle.table), "lookup_us": lookup}))
    else:
        print(f"one lookup, operands' classes known, as the search has them: {lookup:.2f} µs")
        print(f"e-graph built, saturated and frozen once: {1000 * built:.1f} ms, {len(oracle.table)} e-nodes")
        print(f"{'query':24} {'e-graph':>8} {'µs':>8}   {'Z3':>8} {'µs':>12} {'ratio':>12}")
    for kind, query in QUERIES.items():
        answer = by_oracle(oracle, query)
        count = 20_000
        start = perf_counter()
        for _ in range(count):
            by_oracle(oracle, query)
        ours = 1e6 * (perf_counter() - start) / count
        times, verdict = [], "unknown"
        for _ in range(chosen.repeat):
            start = perf_counter()
            verdict = ask(query)
            times.append(1e6 * (perf_counter() - start))
        theirs = statistics.median(times)
        reply = {"unsat": "yes", "sat": "no", "unknown": "no answer"}[verdict]
        row = {"query": kind, "egraph": "yes" if answer else "no", "egraph_us": ours, "z3": reply, "z3_us": theirs}
        if chosen.json:
            print(json.dumps(row | {"ratio": theirs / ours}))
        else:
            print(f"{kind:24} {row['egraph']:>8} {ours:8.2f}   {reply:>9} {theirs:12,.0f} {theirs / ours:12,.0f}")


if __name__ == "__main__":
    main()
