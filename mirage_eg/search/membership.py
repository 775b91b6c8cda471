"""Whether a structure is in the search space: the first step that leaves it, and by which rule.

The steps are taken by the rules of the search itself (`split_space`), one at a time. If every step can be taken and no limit
is exceeded, the search returns the structure, unless one of its limits of states ends it before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage_eg.egraph.expression import constructor, express, op_of
from mirage_eg.egraph.oracle import BuildOracle, Key, Oracle, children_of
from mirage_eg.ir.axes import Axes
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.plurals import counted
from mirage_eg.search.elementwise_chains import uncounted_ops
from mirage_eg.search.split_space import LOOP, Index, PruneLog, Role, Space, Value
from mirage_eg.search.structure import AnyStructure, Load, SplitReduction, Step, Structure, is_swappable
from mirage_eg.search.structure_search import SearchLimits
from mirage_eg.search.trace import class_names


@dataclass(frozen=True, slots=True)
class Departure:
    """Where a structure leaves the search space: the stage of `prune_reasons`, the kernel, its step or value.

    `nearest`: of a term that no e-class has, the nearest e-class.
    """

    stage: str
    text: str
    kernel: int = 0
    step: int | None = None
    nearest: str | None = None
    value: int | None = None  # of the block graph, where it has no structure


def departure(
    plan: AnyStructure,
    program: Graph,
    axes: Axes,
    domain: str,
    build: BuildOracle,
    limits: SearchLimits,
    names: Sequence[str] = (),
) -> Departure | None:
    """Where a structure of a program leaves the search space of its split; None if it is inside.

    `program` holds primitive ops, with these axes; `build` makes the oracle of an expression. `names`: of the inputs, in texts.
    """
    names = names or program.input_names
    if plan.split.looped is not None and plan.split.looped not in axes.reduced:
        return Departure("loop", f"its loop walks the axis {axes.names[plan.split.looped]}, which the program does not reduce")
    oracle = build(express(program, axes, plan.split, domain))
    index = Index(oracle)
    whole = range(len(program.inputs) if limits.max_whole else 0)
    most = limits.max_block_ops + uncounted_ops(program)

    def space(role: Role, partials: Sequence[tuple[int, int]] = ()) -> Space:
        inputs = () if role is Role.LAST else whole
        return Space(program, axes, plan.split, domain, index, inputs, role, partials)

    if isinstance(plan, Structure):
        return _Walk(space(Role.ONLY), plan, program, axes, limits, most, names).ends()
    if limits.max_kernels == 1:
        return Departure("loads", "it leaves partial results to a second kernel, and --max-kernels is 1")
    first = _Walk(space(Role.FIRST), plan.first, program, axes, limits, most, names)
    if (found := first.departure()) is not None:
        return found
    partials = [first.values[output][:2] for output in plan.first.outputs]
    if (found := first.limit(plan)) is not None:
        return found
    combining = min(limits.max_block_ops, limits.max_combining_ops)
    return _Walk(space(Role.LAST, partials), plan.last, program, axes, limits, combining, names, kernel=1).ends()


class _Walk:
    """The steps of one kernel, taken one at a time."""

    def __init__(
        self,
        space: Space,
        structure: Structure,
        program: Graph,
        axes: Axes,
        limits: SearchLimits,
        most: int,
        names: Sequence[str],
        kernel: int = 0,
    ) -> None:
        self.space, self.structure, self.program, self.axes = space, structure, program, axes
        self.limits, self.most, self.names, self.kernel = limits, most, names, kernel
        self.values: list[Value] = []
        self.log = PruneLog()
        self._terms: Mapping[int, str] = {}

    @property
    def oracle(self) -> Oracle:
        return self.space.oracle

    def ends(self) -> Departure | None:
        """Where it leaves the space, if its outputs are to be the program's."""
        if (found := self.departure()) is not None:
            return found
        for number, output in enumerate(self.structure.outputs):
            class_, bits, phase = self.values[output]
            if (class_, bits) != self.space.outputs[number] or phase == LOOP:
                name = self.program.output_names[number]
                wanted = self.name(self.space.outputs[number][0])
                step = output - len(self.structure.loads)
                return self._left("query", f"{name} is {self.name(class_)}, and no law makes it {wanted}", step, wanted)
        return self.limit(self.structure)

    def departure(self) -> Departure | None:
        """The first load or step outside the space."""
        known = dict(self.space.loads)
        for load in self.structure.loads:
            if load not in known:
                return self._left("loads", self._why_not_loaded(load))
            self.values.append(known[load])
        loaded = {value[:2] for i, (_, value) in enumerate(self.space.loads) if not self.space.is_optional(i)}
        for number, step in enumerate(self.structure.steps):
            result = self._taken(step, number)
            if isinstance(result, Departure):
                return result
            twice = result[:2] in loaded or result[:2] in {value[:2] for value in self.values[len(self.structure.loads) :]}
            if twice and self.space.indexed:
                return self._left("value twice", f"{step.op} computes {self.name(result[0])}, which is there already", number)
            self.values.append(result)
        return None

    def limit(self, plan: AnyStructure) -> Departure | None:
        """The limit of the search that the kernel exceeds."""
        structure, limits = self.structure, self.limits
        if structure.ops > self.most:
            option = "--max-block-ops" if self.space.role is not Role.LAST else "max_combining_ops"
            return self._left("too many ops", f"{structure.ops} ops, and at most {self.most} are searched ({option})")
        loads = dict(self.space.loads)
        whole = [load for load in structure.loads if not load.looped and loads[load][1] & self.space.looped]
        if len(whole) > limits.max_whole:
            names = ", ".join(self.input_name(load) for load in whole)
            return self._left("loads", f"{names} are loaded whole, and at most {limits.max_whole} such input is searched")
        if isinstance(plan, SplitReduction) and len(plan.first.outputs) > limits.max_outputs:
            outputs = counted(len(plan.first.outputs), "partial result")
            return self._left("loads", f"{outputs}, and at most {limits.max_outputs} are searched (--max-outputs)")
        if self.space.looped and not any(step.op.startswith("accum_") for step in structure.steps):
            return self._left("no loop", "its loop accumulates nothing")
        return None

    def input_name(self, load: Load) -> str:
        names = self.names
        return names[load.input] if load.input < len(names) else f"partial result {load.input - len(names)}"

    def name(self, class_: int) -> str:
        """The smallest term of a class."""
        self._terms = self._terms or class_names(self.oracle, self.names)
        return self._terms.get(class_, f"class {class_}")

    def _left(self, stage: str, text: str, step: int | None = None, nearest: str | None = None) -> Departure:
        return Departure(stage, text, self.kernel, step, nearest)

    def _why_not_loaded(self, load: Load) -> str:
        name = self.input_name(load)
        if self.space.role is Role.LAST and load.input < len(self.names):
            return (
                f"{name} has the axis that is split over the grid, and a kernel that combines partial results does not load it"
            )
        return f"{name} is loaded {'over the loop' if load.looped else 'whole'}, and no output of the program needs it so"

    def _taken(self, step: Step, number: int) -> Value | Departure:
        """The value of a step by the rules of the space, or the rule against it."""
        operands = [self.values[i] for i in step.operands]
        distinct = list(dict.fromkeys(step.operands))
        values = [self.values[i] for i in distinct]
        wanted = tuple(distinct.index(i) for i in step.operands)
        for op, places, constants, reduced, result in self.space.follow(values, self.log):
            same = sorted(places) == sorted(wanted) if is_swappable(op) else places == wanted
            if (op, constants, frozenset(reduced)) == (step.op, step.constants, frozenset(step.reduced)) and same:
                return result
        return self._why_not(step, operands, number)

    def _why_not(self, step: Step, operands: Sequence[Value], number: int) -> Departure:
        classes, phases = [value[0] for value in operands], {value[2] for value in operands}
        kind = step.kind
        words = f"{step.op} of {', '.join(map(self.name, classes))}"
        if len(phases) > 1 and LOOP in phases and max(phases) > LOOP:
            return self._left("loop", f"{words}: one operand is of the loop, the other is computed after it", number)
        if kind is Kind.ACCUMULATOR:
            if operands[0][2] != LOOP:
                return self._left("no loop", f"{words}: it does not vary over the loop", number)
            if operands[0][1] & self.space.tile:
                return self._left("loop", f"{words}: its tile is not reduced", number)
        name = "Mul" if kind is Kind.MATMUL else constructor(step.op)
        orders = [classes, classes[::-1]] if is_swappable(step.op) else [classes]
        known = next((found for own in orders if (found := self.oracle.query(name, *step.constants, *own)) is not None), None)
        if kind is Kind.ELEMENTWISE and known is not None:
            return self._left("axes", f"{words}: no value of the program has all its axes", number)
        if kind is Kind.MATMUL and known is not None:
            name, classes = "Sum", [known]
        over = [self.axes.names[axis] for axis in step.reduced if axis < len(self.axes.names)]
        words += f" over {', '.join(over)}" if over else ""
        return self._left(
            "query", f"{words} is part of no expression that the laws show equal", number, self._nearest(name, classes)
        )

    def _nearest(self, name: str, classes: Sequence[int]) -> str | None:
        """The e-node with most of the operands, of those the one of the same op."""

        def closeness(key: Key) -> tuple[int, bool, int]:
            children = children_of(self.oracle, key)
            common = len(set(children) & set(classes))
            return common, key[0] == name, -len(self.name(self.oracle.table[key]))

        nodes = [key for key in self.oracle.table if op_of(str(key[0])) is not None]
        if not nodes:
            return None
        best = max(nodes, key=lambda key: (closeness(key), str(key)))
        own = {child: self.name(child) for child in children_of(self.oracle, best)}
        constants = list(map(str, best[1 : len(best) - len(children_of(self.oracle, best))]))
        text = f"{best[0]}({', '.join([*constants, *(own[child] for child in children_of(self.oracle, best))])})"
        class_ = self.oracle.table[best]
        return text if self.name(class_) == text else f"{text} = {self.name(class_)}"
