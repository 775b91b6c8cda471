"""The pruning query: is this expression part of something equal to the target?

An e-graph holds the target, is saturated once under limits, closed downwards by the subexpression laws, and frozen into a
table from e-nodes to classes. The class of a candidate is looked up from the classes of its operands; absent means pruned.
In the indexed domain the class of the target holds proofs of equality; in the abstract one it holds candidates.
"""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter, thread_time
from traceback import clear_frames

from egglog import bindings

from mirage_eg.egraph.expression import REDUCTIONS, Constant, Expression, Term
from mirage_eg.egraph.growing_laws import blame, culprits
from mirage_eg.egraph.laws import Law
from mirage_eg.egraph.rule_errors import OWN_RULESET
from mirage_eg.egraph.rulebook import Rulebook, is_added
from mirage_eg.egraph.sandbox import Worker
from mirage_eg.egraph.terms import call, term_name
from mirage_eg.ir.errors import LimitError, RuleError

Key = tuple[Constant, ...]  # (constructor, constants…, classes of the children…)
UNUSED = -1  # the class of an input that no output depends on


@dataclass(frozen=True, slots=True)
class Limits:
    """When saturation stops although laws still apply; a cut e-graph prunes too much, so the record says so."""

    iterations: int = 200  # axes reach one level of a program deeper in each
    nodes: int = 100_000
    seconds: float = 10.0  # of the processor


@dataclass(frozen=True, slots=True)
class Saturation:
    """How one e-graph grew."""

    nodes: int
    classes: int
    saturated: bool
    stopped: str | None  # which limit, where not saturated
    iterations: int
    seconds: float
    growth: tuple[int, ...]  # e-nodes after each iteration
    matches: tuple[tuple[str, int], ...]  # per law, most first


@dataclass(frozen=True, slots=True)
class Oracle:
    """A frozen e-graph: picklable, shared freely between threads and processes."""

    table: dict[Key, int] = field(repr=False)
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    saturation: Saturation
    sorts: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)  # of each constructor's arguments, for views

    def query(self, constructor: str, *arguments: Constant) -> int | None:
        """The class of an e-node, or None if no expression equal to the target has it as a part."""
        return self.table.get((constructor, *arguments))

    def class_of(self, expression: Expression, term: int) -> int | None:
        """The class of a term, or None if it is pruned."""
        classes: list[int | None] = []
        for item in expression.terms[: term + 1]:
            children = [classes[child] for child in item.children]
            pruned = any(child is None for child in children)
            classes.append(None if pruned else self.table.get((item.constructor, *item.constants, *children)))  # type: ignore[arg-type]
        return classes[term]


def show_node(oracle: Oracle, key: Key, names: Sequence[str] = ()) -> str:
    """An e-node as text: children are class numbers, inputs are called by `names` where there are any."""
    name, *arguments = key
    if name == "Var" and (variables := {f"x{place}": named for place, named in enumerate(names)}):
        return f"input {variables[str(arguments[0])]}"
    sorts = oracle.sorts[str(name)]
    return " ".join([str(name), *(f"#{it}" if sort == "E" else str(it) for it, sort in zip(arguments, sorts, strict=True))])


def children_of(oracle: Oracle, key: Key) -> tuple[int, ...]:
    """The classes of an e-node's children."""
    name, *arguments = key
    return tuple(int(value) for value, sort in zip(arguments, oracle.sorts[str(name)], strict=True) if sort == "E")


_SPAN = bindings.EgglogSpan(bindings.SrcFile("target", ""), 0, 0)


Note = Callable[[tuple[int, int]], None]  # receives iterations and nodes so far
Build = Callable[[Expression], Oracle]


def build_oracle(rulebook: Rulebook, target: Expression, limits: Limits | None = None) -> Oracle:
    """Saturate the target's e-graph and freeze it.

    Raises:
        LimitError: user rules hit a limit of time, nodes, iterations or memory; the message names the law that grows.
    """
    with oracle_builder(rulebook, limits) as build:
        return build(target)


@contextmanager
def oracle_builder(rulebook: Rulebook, limits: Limits | None = None, keep_cut: bool = False) -> Iterator[Build]:
    """`build_oracle` for many targets: user rules share one worker process, packaged rules need none.

    With `keep_cut`, an e-graph that hit a limit of nodes, time or iterations is no error for user rules either.
    """
    limits = limits or Limits()
    if rulebook.packaged:

        def build(target: Expression) -> Oracle:
            _check_declared(rulebook, target)
            return _saturated(rulebook, target, limits)

        yield build
        return
    with Worker() as worker:
        yield lambda target: _build_in(worker, rulebook, target, limits, keep_cut)


def _build_in(worker: Worker, rulebook: Rulebook, target: Expression, limits: Limits, keep_cut: bool) -> Oracle:
    _check_declared(rulebook, target)
    iterations, nodes = 0, 0

    def hear(note: tuple[int, int]) -> None:
        nonlocal iterations, nodes
        iterations, nodes = note

    def what() -> str:
        return f"saturation, in iteration {iterations + 1}, at {nodes:,} nodes,"

    arguments = (saturate_again, rulebook, target, limits)
    try:
        oracle: Oracle = worker.call(*arguments, seconds=_patience(limits), what=what, on_note=hear)
    except LimitError as error:
        raise LimitError(f"{_blame(rulebook, target, limits)}: {error}") from None
    if not keep_cut:
        check_saturated(rulebook, target, limits, oracle.saturation)
    return oracle


def _patience(limits: Limits) -> float:
    """Seconds after which a worker is stopped: one that can still count iterations stops by itself."""
    return 2.0 * limits.seconds + 1.0


def check_saturated(rulebook: Rulebook, target: Expression, limits: Limits, saturation: Saturation) -> None:
    """Raise the LimitError that names the laws which keep the e-graph growing, where saturation hit a limit."""
    if saturation.stopped is not None:
        raise LimitError(f"{_blame(rulebook, target, limits)}: saturation {saturation.stopped}")


def _blame(rulebook: Rulebook, target: Expression, limits: Limits) -> str:
    """The added laws with which alone saturation hits a limit, as the head of a message."""
    added = [theory for theory in rulebook.theories if is_added(theory)]
    laws = [law for theory in added for law in theory.laws]

    worker: Worker | None = None

    def endless(kept: Sequence[Law]) -> bool:
        nonlocal worker
        worker = worker or Worker()
        without = frozenset(law.name for law in laws) - {law.name for law in kept}
        arguments = (saturate, rulebook, target, limits, without)
        try:
            oracle: Oracle = worker.call(*arguments, seconds=_patience(limits), what="saturation")
        except LimitError:  # the process may be gone, or busy without end
            worker.close()
            worker = None
            return True
        return not oracle.saturation.saturated

    try:
        found = culprits(laws, endless)
    finally:
        if worker is not None:
            worker.close()
    return blame(found) if found else f"rules/{rulebook.domain}: the packaged laws alone do not end on this program"


def spellings(law: str) -> tuple[str, ...]:
    """The names under which egglog counts a law: a birewrite has one for each direction."""
    return law, f"{law}=>", f"{law}<="


def undeclared(rulebook: Rulebook, target: Expression) -> str | None:
    """The first constructor of the target that no theory declares."""
    return next((term.constructor for term in target.terms if term.constructor not in rulebook.signatures), None)


def _check_declared(rulebook: Rulebook, target: Expression) -> None:
    if (name := undeclared(rulebook, target)) is not None:
        raise RuleError(
            f"the program has an op whose constructor {name} no loaded theory declares; wanted a rule file with "
            f"(constructor {name} (E) E) and the laws of its axes and of what is below it, as rules/README.md shows"
        )


def saturate(rulebook: Rulebook, target: Expression, limits: Limits, without: frozenset[str] = frozenset()) -> Oracle:
    """The same in this process, whatever the rules, but for the laws named in `without`."""
    _check_declared(rulebook, target)
    return _saturated(rulebook, target, limits, without)


def saturate_again(rulebook: Rulebook, target: Expression, limits: Limits, note: Note) -> Oracle:
    """In a worker: the same; `note` hears of every iteration."""
    try:
        return _saturated(rulebook, target, limits, note=note)
    except RuleError as error:
        raise RuleError(f"{', '.join(theory.path for theory in rulebook.theories if is_added(theory))}: {error}") from None


_FILLED = ("axes", "part", "below")  # tables that `insert` and the closure write


def _saturated(
    rulebook: Rulebook,
    target: Expression,
    limits: Limits,
    without: frozenset[str] = frozenset(),
    note: Note | None = None,
) -> Oracle:
    """The oracle of an e-graph that nothing holds any more, not even an error: only the thread that made it may drop it."""
    try:
        return _saturate_target(_new_egraph(rulebook, target, without), rulebook.domain, target, limits, note)
    except BaseException as error:
        link: BaseException | None = error
        while link is not None:
            clear_frames(link.__traceback__)
            link = link.__context__
        raise


def _new_egraph(rulebook: Rulebook, target: Expression, without: frozenset[str] = frozenset()) -> bindings.EGraph:
    return rulebook.new_egraph([*_FILLED, *(term.constructor for term in target.terms)], without)


def _saturate_target(
    egraph: bindings.EGraph, domain: str, target: Expression, limits: Limits, note: Note | None = None
) -> Oracle:
    """In a fresh e-graph: one that was pushed and popped confuses sets of parts (egglog 13.2), and laws fire wrongly."""
    start = perf_counter()
    egraph.set_report_level(bindings.TimeOnly())
    insert(egraph, domain, target)
    matches: Counter[str] = Counter()
    growth, stopped = _saturate(egraph, OWN_RULESET, limits, matches, note)
    for output in target.outputs:
        egraph.run_program(bindings.ActionCommand(bindings.Expr_(_SPAN, call("below", bindings.Var(_SPAN, term_name(output))))))
    # What is below must be found for a cut e-graph too, and a deep program needs an iteration for each of its levels.
    closing = Limits(iterations=sys.maxsize, nodes=growth[-1] + limits.nodes, seconds=limits.seconds)
    _, stopped_below = _saturate(egraph, "subexpression", closing, matches, note)
    stopped = stopped or stopped_below
    table, numbers, sorts = _freeze(egraph)

    def classes(terms: Iterable[int]) -> tuple[int, ...]:
        return tuple(numbers.get(egraph.eval_expr(bindings.Var(_SPAN, term_name(term)))[1], UNUSED) for term in terms)

    inputs, outputs = classes(target.inputs), classes(target.outputs)
    saturation = Saturation(
        nodes=growth[-1],
        classes=len(set(table.values())),
        saturated=stopped is None,
        stopped=stopped,
        iterations=len(growth),
        seconds=perf_counter() - start,
        growth=tuple(growth),
        matches=tuple(sorted(matches.items(), key=lambda entry: (-entry[1], entry[0]))),
    )
    return Oracle(table, inputs, outputs, saturation, sorts)


def insert(egraph: bindings.EGraph, domain: str, target: Expression) -> None:
    """Add the target's terms, named by `term_name`, and what the domain wants to know of its inputs."""
    commands: list[bindings._Command] = []

    def act(action: bindings._Action) -> None:
        commands.append(bindings.ActionCommand(action))

    def expression(item: Term) -> bindings.Call:
        children = (bindings.Var(_SPAN, term_name(child)) for child in item.children)
        return call(item.constructor, *item.constants, *children)

    for position, item in enumerate(target.terms):
        act(bindings.Let(_SPAN, term_name(position), expression(item)))
    if domain == "indexed":
        for position, free in zip(target.inputs, target.free, strict=True):
            parts = call("set-of", *sorted(free)) if free else call("set-empty")
            act(bindings.Set(_SPAN, "axes", [bindings.Var(_SPAN, term_name(position))], parts))
    else:
        sizes = {part for item in target.terms if item.constructor in REDUCTIONS for part in _prime_factors(item.constants[0])}
        for size in sorted(sizes):
            act(bindings.Expr_(_SPAN, call("part", size)))
    egraph.run_program(*commands)


def _prime_factors(size: Constant) -> Iterable[int]:
    assert isinstance(size, int)
    divisor = 2
    while size > 1:
        if size % divisor == 0:
            yield divisor
            size //= divisor
        else:
            divisor += 1


def _saturate(
    egraph: bindings.EGraph, ruleset: str, limits: Limits, matches: Counter[str], note: Note | None
) -> tuple[list[int], str | None]:
    """E-nodes after each iteration, and the limit that was hit; by iterations, since a running saturation cannot be stopped."""
    step = bindings.RunSchedule(bindings.Run(_SPAN, bindings.RunConfig(ruleset, None)))
    growth: list[int] = []
    start, worked = perf_counter(), thread_time()
    while len(growth) < limits.iterations:
        try:
            [output] = egraph.run_program(step)
        except bindings.EggSmolError as error:  # a law that panics, or sets a function that has no :merge twice
            raise RuleError(f"the laws stopped with an error of egglog: {' '.join(str(error).split())}") from None
        assert isinstance(output, bindings.RunScheduleOutput)
        matches.update({law: count for law, count in output.report.num_matches_per_rule.items() if count})
        growth.append(_count(egraph))
        if note is not None:
            note((len(growth), growth[-1]))
        if not output.report.updated:
            return growth, None
        if growth[-1] > limits.nodes:
            return growth, f"stopped at {limits.nodes:,} nodes"
        if perf_counter() - start > limits.seconds < thread_time() - worked:  # the processor's, which take longer to ask for
            return growth, f"stopped after {limits.seconds:g} s"
    return growth, f"stopped after {limits.iterations} iterations"


def _count(egraph: bindings.EGraph) -> int:
    [sizes] = egraph.run_program(bindings.PrintSize(_SPAN, None))
    assert isinstance(sizes, bindings.PrintAllFunctionsSize)
    return sum(size for name, size in sizes.sizes if name[0].isupper())


def _freeze(egraph: bindings.EGraph) -> tuple[dict[Key, int], dict[bindings.Value, int], dict[str, tuple[str, ...]]]:
    """The e-nodes of sort E that are below a root, with numbers for their classes, and the sorts of what they apply."""
    frozen = egraph.freeze().functions
    numbers: dict[bindings.Value, int] = {}
    for row in frozen["below"].rows:
        numbers.setdefault(row.inputs[0], len(numbers))
    readers = {
        "String": egraph.value_to_string,
        "i64": egraph.value_to_i64,
        "BigRat": egraph.value_to_bigrat,
        "E": numbers.get,
    }
    table: dict[Key, int] = {}
    sorts: dict[str, tuple[str, ...]] = {}
    for name, function in frozen.items():
        if function.output_sort != "E" or not name[0].isupper():
            continue
        read = [readers[sort] for sort in function.input_sorts]
        sorts[name] = tuple(function.input_sorts)
        for row in function.rows:
            if row.output in numbers:
                arguments = [reader(value) for reader, value in zip(read, row.inputs, strict=True)]  # type: ignore[operator]
                if None not in arguments:
                    table[(name, *arguments)] = numbers[row.output]
    return table, numbers, sorts
