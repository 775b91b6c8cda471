"""The oracle: is an expression part of some expression equal to the target?

An e-graph holds the target, is saturated once under limits, closed downwards by the subexpression laws, and frozen into a
table from e-nodes to e-classes. The class of a candidate is looked up by the classes of its operands; absent means pruned.
In the indexed domain membership in the target's class proves equality; in the abstract domain members are candidates.
"""

from __future__ import annotations  # egglog.bindings names its unions for type checkers only

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from math import prod
from time import perf_counter, thread_time
from traceback import clear_frames

from mirage_eg.backends.evaluator.sandbox import Worker, in_worker
from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.expression import INDEX_TERMS, REDUCTIONS, Constant, Expression, index_name, parts_in
from mirage_eg.egraph.growing_laws import blame, culprits, growth_shares
from mirage_eg.egraph.laws import Law
from mirage_eg.egraph.rule_errors import OWN_RULESET
from mirage_eg.egraph.rulebook import Rulebook, is_added
from mirage_eg.egraph.scheduler import BackOff, count_nodes
from mirage_eg.egraph.terms import assign, call, constant_readers, define, fact, literal, run_once, set_of, term
from mirage_eg.ir.errors import LimitError, RuleError

Key = tuple[Constant, ...]  # (constructor, constants…, classes of the children…)
UNUSED = -1  # the class of an input that no output depends on


@dataclass(frozen=True, slots=True)
class Limits:
    """When saturation stops although laws still apply; such an e-graph prunes too much, and the record says so."""

    iterations: int = 200  # each extends the axes of terms by one level of the program
    nodes: int = 100_000
    seconds: float = 10.0  # of processor time
    backoff: int | None = (
        None  # e-nodes that an added law may add in an iteration before it pauses (`scheduler`); None: no pauses
    )
    allow_cut: bool = False  # whether user laws may hit a limit of nodes, time or iterations without an error, too

    @property
    def patience(self) -> float:
        """Seconds after which a worker is killed; a worker that still completes iterations stops by itself before."""
        return 2.0 * self.seconds + 1.0


@dataclass(frozen=True, slots=True)
class Saturation:
    """How one e-graph grew."""

    nodes: int
    classes: int
    saturated: bool
    stopped: str | None  # the limit, where not saturated
    iterations: int
    seconds: float
    growth: tuple[int, ...]  # e-nodes after each iteration
    matches: tuple[tuple[str, int], ...]  # per law, the largest first
    added: tuple[tuple[str, int], ...] = ()  # with `Limits.backoff`: e-nodes that each law added, the largest first
    paused: tuple[str, ...] = ()  # likewise: the laws that waited at the end


@dataclass(frozen=True, slots=True)
class Oracle:
    """A frozen e-graph; it is picklable, and threads and processes share it."""

    table: dict[Key, int] = field(repr=False)
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    saturation: Saturation
    sorts: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)  # of each constructor's arguments, for display

    def query(self, constructor: str, *arguments: Constant) -> int | None:
        """The class of an e-node, or None if no expression equal to the target contains it."""
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
    """An e-node as text: children are class numbers; `names` are those of the inputs, if given."""
    name, *arguments = key
    if name == "Var" and (variables := {f"x{position}": named for position, named in enumerate(names)}):
        return f"input {variables[str(arguments[0])]}"
    sorts = oracle.sorts[str(name)]
    return " ".join([str(name), *(f"#{it}" if sort == "E" else str(it) for it, sort in zip(arguments, sorts, strict=True))])


def children_of(oracle: Oracle, key: Key) -> tuple[int, ...]:
    """The classes of an e-node's children."""
    name, *arguments = key
    return tuple(int(value) for value, sort in zip(arguments, oracle.sorts[str(name)], strict=True) if sort == "E")


OnIteration = Callable[[tuple[int, int]], None]  # receives iterations and nodes so far
BuildOracle = Callable[[Expression], Oracle]


def build_oracle(rulebook: Rulebook, target: Expression, limits: Limits | None = None) -> Oracle:
    """Saturate the target's e-graph and freeze it.

    Raises LimitError: user laws hit a limit of time, nodes, iterations or memory; the message names the laws that grow.
    """
    with oracle_builder(rulebook, limits) as build:
        return build(target)


@contextmanager
def oracle_builder(rulebook: Rulebook, limits: Limits | None = None, worker: Worker | None = None) -> Iterator[BuildOracle]:
    """`build_oracle` for many targets: user laws share one worker process, packaged laws need none.

    `worker`: a process to use instead of a new one.
    """
    limits = limits or Limits()
    if rulebook.packaged:
        yield lambda target: saturate(rulebook, target, limits)
        return
    with Worker() if worker is None else nullcontext(worker) as process:
        yield lambda target: _build_in(process, rulebook, target, limits)


def _build_in(worker: Worker, rulebook: Rulebook, target: Expression, limits: Limits) -> Oracle:
    check_declared(rulebook, target)
    iterations, nodes = 0, 0

    def on_iteration(progress: tuple[int, int]) -> None:
        nonlocal iterations, nodes
        iterations, nodes = progress

    def description() -> str:
        return f"saturation, in iteration {iterations + 1}, at {nodes:,} nodes,"

    arguments = (saturate_in_worker, rulebook, target, limits)
    try:
        oracle: Oracle = worker.call(*arguments, seconds=limits.patience, task=description, on_progress=on_iteration)
    except LimitError as error:
        raise LimitError(f"{_blame(rulebook, target, limits)}: {error}") from None
    if not limits.allow_cut:
        check_saturated(rulebook, target, limits, oracle.saturation)
    return oracle


def check_saturated(rulebook: Rulebook, target: Expression, limits: Limits, saturation: Saturation) -> None:
    """Raise a LimitError that names the growing laws if saturation hit a limit."""
    if saturation.stopped is not None:
        raise LimitError(f"{_blame(rulebook, target, limits)}: saturation {saturation.stopped}")


def _blame(rulebook: Rulebook, target: Expression, limits: Limits) -> str:
    """The start of a message: the added laws that make saturation hit a limit by themselves, and the e-nodes that laws add."""
    laws = _added_laws(rulebook)

    def is_endless(chosen: Sequence[Law]) -> bool:
        without = frozenset(law.name for law in laws) - {law.name for law in chosen}
        arguments = (saturate, rulebook, target, limits, without)
        try:
            oracle: Oracle = in_worker(*arguments, seconds=limits.patience, task="saturation")
        except LimitError:  # the process may have ended, or may never end
            return True
        return not oracle.saturation.saturated

    growing = culprits(laws, is_endless)
    names = [law.name for law in growing]
    innocent = {law.name for law in laws}.difference(names)
    shares = growth_shares(_added(rulebook, target, limits), names, innocent)
    message = blame(growing) if growing else f"rules/{rulebook.domain}: the packaged laws alone do not end on this program"
    return message + shares


def _added_laws(rulebook: Rulebook) -> list[Law]:
    names = {law.name for theory in rulebook.theories if is_added(theory) for law in theory.laws}
    return [law for law in rulebook.laws if law.name in names]


def _added(rulebook: Rulebook, target: Expression, limits: Limits) -> tuple[tuple[str, int], ...]:
    """The e-nodes that each law adds up to a limit, laws one at a time; none where one law alone does not come to an end."""
    by_law = replace(limits, backoff=limits.nodes)
    try:
        oracle: Oracle = in_worker(saturate, rulebook, target, by_law, seconds=limits.patience, task="saturation")
    except LimitError:
        return ()
    return oracle.saturation.added


def spellings(law: str) -> tuple[str, ...]:
    """The names of a law in egglog's counts: a birewrite has one for each direction."""
    return law, f"{law}=>", f"{law}<="


def undeclared(rulebook: Rulebook, target: Expression) -> str | None:
    """The first constructor of the target that no theory declares, if any."""
    return next((term.constructor for term in target.terms if term.constructor not in rulebook.signatures), None)


def check_declared(rulebook: Rulebook, target: Expression) -> None:
    """Raise a RuleError unless a theory declares each constructor of the target."""
    if (name := undeclared(rulebook, target)) is not None:
        raise RuleError(
            f"the program has an op whose constructor {name} no loaded theory declares; wanted a rule file with "
            f"(constructor {name} (E) E) and the laws of its axes and of what is below it, as rules/README.md shows"
        )


def saturate_in_worker(rulebook: Rulebook, target: Expression, limits: Limits, on_iteration: OnIteration) -> Oracle:
    """`saturate` in a worker process."""
    try:
        return saturate(rulebook, target, limits, on_iteration=on_iteration)
    except RuleError as error:
        raise RuleError(f"{', '.join(theory.path for theory in rulebook.theories if is_added(theory))}: {error}") from None


INSERTED = ("axes", "part", "members", "extent", "fastest")  # tables that `insert` writes besides those of constructors


def saturate(
    rulebook: Rulebook,
    target: Expression,
    limits: Limits,
    without: frozenset[str] = frozenset(),
    on_iteration: OnIteration | None = None,
) -> Oracle:
    """`build_oracle` in this process, for user laws too, but without the laws named in `without`.

    No reference to the e-graph is left, not even in an error.
    """
    check_declared(rulebook, target)
    inserted = ["below", *inserted_tables(target)]
    rulebook = rulebook.leaving_out(without)
    with dropped_in_this_thread():
        if limits.backoff is not None:
            return _saturated_by_law(rulebook, inserted, target, limits, on_iteration)
        return saturate_in(rulebook.new_egraph(inserted), rulebook.domain, target, limits, on_iteration)


def inserted_tables(target: Expression) -> list[str]:
    """The tables that `insert` fills."""
    return [*INSERTED, *(item.constructor for item in target.terms)]


@contextmanager
def dropped_in_this_thread() -> Iterator[None]:
    """No error keeps an e-graph that only frames called from this body name: the creating thread alone may drop it."""
    try:
        yield
    except BaseException as error:
        link: BaseException | None = error
        while link is not None:
            clear_frames(link.__traceback__)
            link = link.__context__
        raise


def _saturated_by_law(
    rulebook: Rulebook, inserted: Iterable[str], target: Expression, limits: Limits, on_iteration: OnIteration | None
) -> Oracle:
    egraph, rulesets = rulebook.new_egraph_by_law(inserted)
    schedule = BackOff(
        {ruleset: law for law, ruleset in rulesets.items()},
        frozenset(law.name for law in _added_laws(rulebook)),
        limits.backoff or 0,
    )
    return saturate_in(egraph, rulebook.domain, target, limits, on_iteration, schedule)


def saturate_in(
    egraph: bindings.EGraph,
    domain: str,
    target: Expression,
    limits: Limits,
    on_iteration: OnIteration | None = None,
    schedule: BackOff | None = None,
) -> Oracle:
    """The oracle of `target` from a fresh e-graph with laws; with a `schedule`, from one of `Rulebook.new_egraph_by_law`.

    A pushed and popped e-graph confuses sets of parts (egglog 13.2), and laws then match wrongly.
    """
    start = perf_counter()
    egraph.set_report_level(bindings.TimeOnly())
    insert(egraph, domain, target)
    matches: Counter[str] = Counter()
    growth, stopped = saturate_until(egraph, [OWN_RULESET], limits, matches, on_iteration, schedule)
    egraph.run_program(*(fact("below", term(output)) for output in target.outputs))
    # The closure must be complete for an unsaturated e-graph, too; a deep program needs an iteration for each level.
    closing = Limits(iterations=sys.maxsize, nodes=growth[-1] + limits.nodes, seconds=limits.seconds)
    _, stopped_below = saturate_until(egraph, ["subexpression"], closing, matches, on_iteration)
    stopped = stopped or stopped_below
    table, numbers, sorts = _freeze(egraph)

    def classes(positions: Iterable[int]) -> tuple[int, ...]:
        return tuple(numbers.get(egraph.eval_expr(term(position))[1], UNUSED) for position in positions)

    inputs, outputs = classes(target.inputs), classes(target.outputs)
    saturation = Saturation(
        nodes=growth[-1],
        classes=len(set(table.values())),
        saturated=stopped is None,
        stopped=stopped,
        iterations=len(growth),
        seconds=perf_counter() - start,
        growth=tuple(growth),
        matches=matches_largest_first(matches),
        added=() if schedule is None else matches_largest_first(schedule.added),
        paused=() if schedule is None else schedule.paused,
    )
    return Oracle(table, inputs, outputs, saturation, sorts)


def matches_largest_first(counts: Counter[str]) -> tuple[tuple[str, int], ...]:
    """Counts by law."""
    return tuple(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


def insert(egraph: bindings.EGraph, domain: str, target: Expression) -> None:
    """Add the target's terms by their numbers, and what the laws of the domain read of its inputs."""
    commands = [
        define(position, call(item.constructor, *item.constants, *map(term, item.children)))
        for position, item in enumerate(target.terms)
    ]
    extents = dict(target.extents)
    if domain == "indexed":
        for position, free in zip(target.inputs, target.free, strict=True):
            commands.append(assign("axes", term(position), set_of(free)))
        for index in _indices(target):
            parts = parts_in(index)
            commands.append(assign("members", literal(index), set_of(parts)))
            if extents.keys() >= {*parts}:  # a law alone, without a program, has no sizes
                commands.append(assign("extent", literal(index), literal(prod(extents[part] for part in parts))))
            if parts:
                commands.append(fact("fastest", index, index_name(parts[:-1]), parts[-1]))
    else:
        sizes = {part for item in target.terms if item.constructor in REDUCTIONS for part in _prime_factors(item.constants[0])}
        commands += [fact("part", size) for size in sorted(sizes)]
    egraph.run_program(*commands)


def _indices(target: Expression) -> Iterator[str]:
    """The indices of slices and concatenations, and their slow parts."""
    named = [it for item in target.terms if item.constructor in INDEX_TERMS for it in item.constants if isinstance(it, str)]
    slow = (index_name(parts_in(index)[:count]) for index in named for count in range(len(parts_in(index)) + 1))
    parts = (part for index in named for part in parts_in(index))
    return iter(dict.fromkeys((*slow, *parts)))


def _prime_factors(size: Constant) -> Iterable[int]:
    assert isinstance(size, int)
    divisor = 2
    while size > 1:
        if size % divisor == 0:
            yield divisor
            size //= divisor
        else:
            divisor += 1


def saturate_until(
    egraph: bindings.EGraph,
    rulesets: Sequence[str],
    limits: Limits,
    matches: Counter[str],
    on_iteration: OnIteration | None = None,
    schedule: BackOff | None = None,
    is_enough: Callable[[], bool] = lambda: False,
) -> tuple[list[int], str | None]:
    """E-nodes after each iteration, and the limit that was hit, checked between iterations: egglog cannot be interrupted.

    An iteration runs each ruleset once. Saturation ends where no law changes the e-graph, or it `is_enough`.
    """
    growth: list[int] = []
    start, processor_start = perf_counter(), thread_time()

    def is_late() -> bool:  # processor time is slower to read
        return perf_counter() - start > limits.seconds and thread_time() - processor_start > limits.seconds

    if schedule is None:
        iterations = _together(egraph, rulesets, limits.iterations, matches)
    else:
        iterations = schedule.run(egraph, limits.iterations, matches, lambda nodes: nodes > limits.nodes or is_late())
    try:
        for number, nodes, updated in iterations:
            growth.append(nodes)
            if on_iteration is not None:
                on_iteration((number, nodes))
            if not updated or is_enough():
                return growth, None
            if nodes > limits.nodes:
                return growth, f"stopped at {limits.nodes:,} nodes"
            if is_late():
                return growth, f"stopped after {limits.seconds:g} s"
    except bindings.EggSmolError as error:  # a law that panics, or sets a function without :merge twice
        raise RuleError(f"the laws stopped with an error of egglog: {' '.join(str(error).split())}") from None
    return growth, f"stopped after {limits.iterations} iterations"


def _together(
    egraph: bindings.EGraph, rulesets: Sequence[str], iterations: int, matches: Counter[str]
) -> Iterator[tuple[int, int, bool]]:
    """Iterations of all laws at once, as `BackOff.run` gives them."""
    for number in range(1, iterations + 1):
        updated = False
        for report in (run_once(egraph, ruleset) for ruleset in rulesets):
            matches.update({law: count for law, count in report.num_matches_per_rule.items() if count})
            updated |= report.updated
        yield number, count_nodes(egraph), updated


def _freeze(egraph: bindings.EGraph) -> tuple[dict[Key, int], dict[bindings.Value, int], dict[str, tuple[str, ...]]]:
    """The e-nodes below the outputs, numbers for their classes, and the sorts of constructor arguments."""
    frozen = egraph.freeze().functions
    numbers: dict[bindings.Value, int] = {}
    for row in frozen["below"].rows:
        numbers.setdefault(row.inputs[0], len(numbers))
    readers = {**constant_readers(egraph), "E": numbers.get}
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
