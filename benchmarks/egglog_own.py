"""egglog's own proofs and back-off beside ours, on our laws: what its Python package runs, e-nodes and seconds.

The law of the table feeds itself (log-sum-exp shift, on gqa). Only the added law may pause, in both schedulers.
Run: python benchmarks/egglog_own.py
"""

import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time

import mirage_eg as mi
from mirage_eg.egraph.expression import Expression
from mirage_eg.egraph.oracle import INSERTED, Limits, build_oracle, insert
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.egraph.scheduler import count_nodes
from mirage_eg.egraph.soundness.check_file import targets
from mirage_eg.frontend.workloads import WORKLOADS

SHIFT = '(rewrite (Sum i (Exp x)) (Mul (Exp (Max i x)) (Sum i (Exp (Sub x (Max i x))))) :name "log-sum-exp shift")'
ITERATIONS = 10
CUT = Limits(nodes=20_000, iterations=ITERATIONS, seconds=60.0, allow_cut=True)
PROOF = """
from egglog import bindings
graph = bindings.EGraph()
graph.run_program(*graph.parse_program('''
(datatype E (Num i64) (Add E E))
(rewrite (Add x y) (Add y x) :name "add commutes")
(let $a (Add (Num 1) (Num 2))) (let $b (Add (Num 2) (Num 1)))
(run 3) (check (= $a $b)) (prove (= $a $b))'''))
"""


def proofs() -> None:
    """What `prove` answers, how many laws of ours are about sets, which egglog's proofs exclude, and our proofs."""
    done = subprocess.run([sys.executable, "-c", PROOF], capture_output=True, text=True)
    error = [line for line in done.stderr.splitlines() if line][-1]
    laws = load_rules("indexed").laws
    sets = sum("set-" in law.text or "(axes " in law.text for law in laws)
    print(f"prove: exit code {done.returncode}, {error}\nlaws about sets of parts: {sets} of {len(laws)}")
    for name in ("rmsnorm", "lora", "gqa"):
        graph = mi.egraph(name)
        first, *_, last = graph.forms(graph.outputs[0], 20)
        begin = thread_time()
        chain = graph.prove(first, last).chain
        print(f"ours: {name}: {len(chain.steps) if chain else 'no'} steps, {thread_time() - begin:.2f} s, checked")


def theirs(rules: Rulebook, target: Expression, limit: int, commands: int) -> tuple[int, float]:
    """E-nodes and seconds of egglog's back-off over ten iterations, written as so many commands."""
    graph, rulesets = rules.new_egraph_by_law(["below", *INSERTED, *(it.constructor for it in target.terms)])
    insert(graph, rules.domain, target)
    packaged = " ".join(f"(run {it})" for law, it in rulesets.items() if law != "log-sum-exp shift")
    scheduler = f"(let-scheduler pause (back-off :match-limit {limit} :ban-length 5))"
    body = f"(repeat {ITERATIONS // commands} (seq {packaged} (run-with pause {rulesets['log-sum-exp shift']})))"
    begin = perf_counter()
    for _ in range(commands):
        graph.run_program(*graph.parse_program(f"(run-schedule {scheduler} {body})"))
    return count_nodes(graph), perf_counter() - begin


def backoffs(rules: Rulebook) -> None:
    """E-nodes after ten iterations, by scheduler and by what a law may add or match in one."""
    _, target = targets(WORKLOADS["gqa"](1), "indexed")[0]
    plain = build_oracle(rules, target, CUT).saturation
    print(f"none: {plain.nodes:,} e-nodes, {plain.seconds:.2f} s, {plain.stopped}")
    for most in (1, 10, 100):
        ours = build_oracle(rules, target, replace(CUT, backoff=most)).saturation
        one, each = theirs(rules, target, most, 1), theirs(rules, target, most, ITERATIONS)
        print(f"{most}: ours {ours.nodes:,} e-nodes, {ours.seconds:.2f} s; egglog's {one[0]:,}, {one[1]:.2f} s in one command,")
        print(f"  {each[0]:,}, {each[1]:.2f} s in a command an iteration")


if __name__ == "__main__":
    print(f"egglog {version('egglog')}")
    proofs()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "shift.egg"
        path.write_text(f"; domain: indexed\n{SHIFT}\n", encoding="utf-8")
        backoffs(load_rules("indexed", [path], without=["quotient of exponentials"]))
