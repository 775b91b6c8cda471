"""Joint extraction: one e-node for every needed e-class, and the kernels that compute them, by integer programming.

Each class is *stored* (a kernel writes it), *inlined* (every kernel that reads it computes it again) or *carried* (the product
or reduction of one kernel, to which elementwise ops follow). Binary variables say how; their costs add up to the predicted time
(`costs`). Where the e-graph has cycles, an order of the classes in each strongly connected component excludes them. SCIP (in
OR-tools) minimizes, and its bound certifies the result.

Kernels that were searched are columns of the integer program: sets of e-nodes of a known price. The choices that made such a
kernel from its costs are excluded together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter
from typing import Any

from mirage_eg.graph_optimizer.costs import FusionRole, KernelCosts
from mirage_eg.graph_optimizer.eclasses import EClasses
from mirage_eg.graph_optimizer.integer_program import exclude_cycles, new_integer_program
from mirage_eg.graph_optimizer.program_terms import NumberedENode
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.reached import reached

_FOLDED = 1e-4  # µs for each folded weight that is read: between equal programs the one with fewer is taken


class Mode(StrEnum):
    """How a class is computed."""

    STORED = "stored"
    INLINED = "inlined"
    CARRIED = "carried"


class ExtractionError(MirageError):
    """An e-graph without a program, or a solver that ended without one."""


@dataclass(frozen=True, slots=True)
class ClassChoice:
    """An e-node in a class, the mode of the class, and the child that it carries on, if it does."""

    class_: int
    enode: NumberedENode
    mode: Mode
    carried: int | None
    role: FusionRole
    kernel: int | None = None  # the priced kernel that computes it, if one does

    @property
    def inlines(self) -> bool:
        """Whether children that are inlined are computed again here."""
        return self.role in (FusionRole.ELEMENTWISE, FusionRole.REDUCTION) or (
            self.role is FusionRole.VIEW and self.mode is Mode.INLINED
        )


@dataclass(frozen=True, slots=True)
class PricedKernel:
    """E-nodes of different classes that kernels of known time compute together, operands first.

    `inputs`: the classes that they read; `outputs`: those of `enodes` that they store; `us`: the time of all `kernels`.
    """

    enodes: tuple[tuple[int, NumberedENode], ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    us: float
    kernels: int


@dataclass(frozen=True, slots=True)
class KernelChoices:
    """The choices that make one kernel; `apart`: classes that it reads stored, and would compute if they were inlined."""

    choices: frozenset[ClassChoice]
    apart: frozenset[int]


@dataclass(frozen=True, slots=True)
class SearchedKernels:
    """What a search has found: kernels with their prices, and the choices that are no kernel of unknown price any more."""

    priced: tuple[PricedKernel, ...] = ()
    excluded: tuple[KernelChoices, ...] = ()


@dataclass(frozen=True, slots=True)
class Extraction:
    """The choices, their predicted microseconds, and no choices cost less than `bound_us`.

    `proved`: the solver has shown that none costs less than `us`, to 0.01 %.
    """

    choices: tuple[ClassChoice, ...]
    us: float
    bound_us: float
    proved: bool
    seconds: float
    variables: int
    priced: tuple[PricedKernel, ...] = ()

    @property
    def kernels(self) -> int:
        """The kernels that are launched."""
        stored = (it for it in self.choices if it.kernel is None and it.mode is Mode.STORED)
        own = sum(it.role not in (FusionRole.VIEW, FusionRole.INPUT) for it in stored)
        return own + sum(it.kernels for it in self.priced)


@dataclass(slots=True)
class _Option:
    """A binary variable with its choice and cost; `reads`: the classes that it reads stored, or inlined if it may."""

    choice: ClassChoice
    cost: float
    variable: Any = None


def extract(
    classes: EClasses,
    costs: KernelCosts,
    fused: bool = True,
    seconds: float = 10.0,
    searched: SearchedKernels = SearchedKernels(),
) -> Extraction:
    """The cheapest program in an e-graph; `fused` allows inlined and carried classes, `searched` has kernels of known time.

    Raises ExtractionError: an e-graph of which no acyclic program can be extracted, or none was found in time.
    """
    start = perf_counter()
    problem = _Problem(classes, costs, fused, searched)
    return problem.solve(max(0.01, seconds - (perf_counter() - start)), start)


@dataclass(slots=True)
class _Problem:
    """The integer program."""

    classes: EClasses
    costs: KernelCosts
    fused: bool
    searched: SearchedKernels
    solver: Any = None
    options: list[_Option] = field(default_factory=list)
    needs: dict[tuple[int, Mode], Any] = field(default_factory=dict)  # whether a class is computed in a mode
    reads: list[tuple[Any, float]] = field(default_factory=list)
    columns: list[tuple[PricedKernel, Any]] = field(default_factory=list)
    read_once: dict[int, Any] = field(default_factory=dict)  # of lower bounds: whether a class is read

    def __post_init__(self) -> None:
        self.solver = new_integer_program()
        self._choose_options()
        self._add_needs()
        by_class: dict[int, list[_Option]] = {}
        for option in self.options:
            by_class.setdefault(option.choice.class_, []).append(option)
        for class_, own in by_class.items():
            self._add_reads(class_, [it for it in own if it.choice.mode is not Mode.INLINED])
            self._add_reads(class_, [it for it in own if it.choice.mode is Mode.INLINED])
        self._add_carriers()
        self._add_order()
        self._exclude()
        for root in self.classes.roots:
            if not self._is_leaf(root):
                self.solver.Add(self.needs[root, Mode.STORED] == 1)

    def _is_leaf(self, class_: int) -> bool:
        """Whether the class is there when the program starts."""
        return self.classes.weight_only[class_] or any(enode.constructor == "In" for enode in self.classes.enodes[class_])

    def _choose_options(self) -> None:
        carriers, stored = self._carriable(), self._read_stored()
        for class_, enodes in enumerate(self.classes.enodes):
            if self._is_leaf(class_):
                continue
            for enode in enodes:
                role = self.costs.role(enode, self.classes.names)
                for choice in self._choices(class_, enode, role, carriers):
                    if self.fused and role is FusionRole.ELEMENTWISE and choice.mode is Mode.STORED and class_ not in stored:
                        continue  # inlined it costs less
                    self.options.append(_Option(choice, self._cost(choice)))
        for option in self.options:
            option.variable = self.solver.BoolVar("")
        self.columns = [(it, self.solver.BoolVar("")) for it in self.searched.priced]

    def _carriable(self) -> set[int]:
        """The classes that a kernel can carry on: products, reductions, and elementwise ops of such values of equal shape."""
        if not self.fused:
            return set()
        roles = [[self.costs.role(enode, self.classes.names) for enode in enodes] for enodes in self.classes.enodes]
        found = {
            class_
            for class_, own in enumerate(roles)
            if not self._is_leaf(class_) and any(role in (FusionRole.PRODUCT, FusionRole.REDUCTION) for role in own)
        }
        elementwise = {
            class_: [it for it, role in zip(enodes, roles[class_], strict=True) if role is FusionRole.ELEMENTWISE]
            for class_, enodes in enumerate(self.classes.enodes)
            if class_ not in found and not self._is_leaf(class_)
        }

        def follows(class_: int) -> bool:
            return any(self._follows(class_, it, child, found) for it in elementwise[class_] for child in it.children)

        while more := {class_ for class_ in elementwise if class_ not in found and follows(class_)}:
            found |= more
        return found

    def _read_stored(self) -> set[int]:
        """The classes that may have to be stored: outputs, inputs of searched kernels, what some e-node reads from memory only.

        What an excluded kernel computes may have to be stored, too: perhaps no block graph holds that kernel.
        """
        found = set(self.classes.roots)
        found.update(class_ for it in self.searched.priced for class_ in it.inputs)
        found.update(choice.class_ for it in self.searched.excluded for choice in it.choices)
        stack = list(found)
        for class_, enodes in enumerate(self.classes.enodes):
            for enode in enodes if not self._is_leaf(class_) else ():
                role = self.costs.role(enode, self.classes.names)
                if role in (FusionRole.PRODUCT, FusionRole.LIBRARY) or enode.constructor == "Result":
                    stack += enode.children

        def shown(class_: int) -> Iterator[int]:
            for enode in self.classes.enodes[class_]:
                if self.costs.role(enode, self.classes.names) is FusionRole.VIEW:
                    yield from enode.children

        return {*reached(stack, shown)}

    def _follows(self, class_: int, enode: NumberedENode, child: int, carriers: set[int]) -> bool:
        """Whether an elementwise e-node may be computed where its child is."""
        types = self.classes.types
        is_alike = types[child][0].shape == types[class_][0].shape
        return is_alike and child in carriers and child != class_ and enode.constructor != "Transpose"

    def _choices(self, class_: int, enode: NumberedENode, role: FusionRole, carriers: set[int]) -> Iterator[ClassChoice]:
        yield ClassChoice(class_, enode, Mode.STORED, None, role)
        if not self.fused:
            return
        in_memory = role is FusionRole.VIEW and not self.costs.least and all(map(self._is_leaf, enode.children))
        if role in (FusionRole.VIEW, FusionRole.ELEMENTWISE) and enode.constructor != "Result" and not in_memory:
            yield ClassChoice(class_, enode, Mode.INLINED, None, role)  # a view of an input is read from memory
        if role in (FusionRole.PRODUCT, FusionRole.REDUCTION):
            yield ClassChoice(class_, enode, Mode.CARRIED, None, role)
        if role is FusionRole.ELEMENTWISE:
            for child in dict.fromkeys(enode.children):
                if self._follows(class_, enode, child, carriers):
                    yield ClassChoice(class_, enode, Mode.STORED, child, role)
                    yield ClassChoice(class_, enode, Mode.CARRIED, child, role)

    def _cost(self, choice: ClassChoice) -> float:
        """The cost without values that are read and may be inlined."""
        enode, types = choice.enode, self.classes.types
        children = [*dict.fromkeys(enode.children)]
        cost = _FOLDED * sum(self._is_folded(child) for child in children)
        if choice.role is FusionRole.VIEW:
            return cost
        if choice.mode is Mode.STORED:
            cost += self.costs.moved(types[choice.class_])
        if choice.role is FusionRole.ELEMENTWISE:
            cost += self.costs.computed
        is_main = choice.carried is None and choice.mode is not Mode.INLINED
        if is_main:
            cost += self.costs.launch(choice.role, enode.constructor)
        if choice.role is FusionRole.PRODUCT:
            return cost + self.costs.products(enode, [types[child] for child in enode.children], types[choice.class_])
        if self.costs.least:
            return cost  # with the variables of reads
        read = (child for child in children if child != choice.carried and not self._may_inline(choice, child))
        return cost + sum(self.costs.moved(types[child]) for child in read)

    def _is_folded(self, class_: int) -> bool:
        return self.classes.weight_only[class_] and all(enode.constructor != "In" for enode in self.classes.enodes[class_])

    def _may_inline(self, choice: ClassChoice, child: int) -> bool:
        """Whether a choice may compute a child itself."""
        return (
            self.fused
            and choice.role in (FusionRole.VIEW, FusionRole.ELEMENTWISE, FusionRole.REDUCTION)
            and not self._is_leaf(child)
            and any(
                self.costs.role(enode, self.classes.names) in (FusionRole.VIEW, FusionRole.ELEMENTWISE)
                and enode.constructor != "Result"
                for enode in self.classes.enodes[child]
            )
        )

    def _add_needs(self) -> None:
        """A class is computed in a mode by one choice at most; one that is carried in no other mode."""
        groups: dict[tuple[int, Mode], list[Any]] = {}
        for option in self.options:
            groups.setdefault((option.choice.class_, option.choice.mode), []).append(option.variable)
        for column, variable in self.columns:
            for class_ in column.outputs:
                groups.setdefault((class_, Mode.STORED), []).append(variable)
        for (class_, mode), variables in groups.items():
            self.needs[class_, mode] = self.solver.BoolVar("")
            self.solver.Add(sum(variables) == self.needs[class_, mode])
        for column, variable in self.columns:
            for child in column.inputs:
                if not self._is_leaf(child):
                    self.solver.Add(variable <= self._need(child, Mode.STORED))
        for (class_, mode), carried in self.needs.items():
            if mode is Mode.CARRIED:
                for other in (Mode.STORED, Mode.INLINED):
                    if (class_, other) in self.needs:
                        self.solver.Add(self.needs[class_, other] + carried <= 1)

    def _need(self, class_: int, *modes: Mode) -> Any:
        return sum(self.needs.get((class_, mode), 0) for mode in modes)

    def _add_reads(self, class_: int, options: Sequence[_Option]) -> None:
        """The children of these choices of a class, of which at most one is taken, are computed."""
        children = {child: None for it in options for child in it.choice.enode.children if not self._is_leaf(child)}
        for child in children:
            using = [it for it in options if child in it.choice.enode.children]
            reading = [it for it in using if it.choice.carried != child]
            either = [it for it in reading if it.choice.role is not FusionRole.VIEW and self._may_inline(it.choice, child)]
            inlining = [it for it in reading if it.choice.role is FusionRole.VIEW and it.choice.mode is Mode.INLINED]
            storing = [it for it in reading if it not in either and it not in inlining]
            stored, inlined = self._need(child, Mode.STORED), self._need(child, Mode.INLINED)
            for users, needed in (
                (storing, stored),
                (inlining, inlined),
                (reading, stored + inlined),
                (using, stored + inlined + self._need(child, Mode.CARRIED)),
            ):
                if users:
                    self.solver.Add(sum(it.variable for it in users) - needed <= 0)
            if either and not self.costs.least:
                self.solver.Add(self._read(child) - sum(it.variable for it in either) + inlined >= 0)
        if self.costs.least:
            self._add_least_reads(options)

    def _read(self, class_: int) -> Any:
        """A new variable: whether a class is read; it costs the time of moving it once."""
        read = self.solver.NumVar(0, 1, "")
        self.reads.append((read, self.costs.moved(self.classes.types[class_])))
        return read

    def _add_least_reads(self, options: Sequence[_Option]) -> None:
        """Of lower bounds: each class that kernels read is read once by all of them together."""
        for child in {child: None for it in options for child in it.choice.enode.children}:
            reading = [
                it
                for it in options
                if child in it.choice.enode.children
                and it.choice.carried != child
                and it.choice.role is not FusionRole.VIEW
                and not (it.choice.role is FusionRole.PRODUCT and it.choice.enode.children[1] == child)  # in its own cost
            ]
            for inlines in (False, True):
                own = [it.variable for it in reading if it.choice.inlines is inlines]
                if own:
                    if child not in self.read_once:
                        self.read_once[child] = self._read(child)
                    inlined = self._need(child, Mode.INLINED) if inlines else 0
                    self.solver.Add(self.read_once[child] - sum(own) + inlined >= 0)

    def _add_carriers(self) -> None:
        """A carried value has one reader, which follows in its kernel."""
        followers: dict[int, list[Any]] = {class_: [] for class_, mode in self.needs if mode is Mode.CARRIED}
        for option in self.options:
            if option.choice.carried is not None:
                followers[option.choice.carried].append(option.variable)
        for class_, variables in followers.items():
            self.solver.Add(sum(variables) == self.needs[class_, Mode.CARRIED])

    def _add_order(self) -> None:
        """In each strongly connected component a chosen e-node comes after its children."""
        read = {class_: {child for it in own for child in it.children} for class_, own in enumerate(self.classes.enodes)}
        for column, _ in self.columns:
            for class_ in column.outputs:  # what one output needs, all wait for
                read[class_].update(column.inputs)
        chosen = [(it.choice.class_, dict.fromkeys(it.choice.enode.children), it.variable) for it in self.options]
        chosen += [(own, dict.fromkeys(it.inputs), variable) for it, variable in self.columns for own in it.outputs]
        exclude_cycles(self.solver, {class_: sorted(children) for class_, children in read.items()}, chosen)

    def _exclude(self) -> None:
        """Kernels that were searched are taken at their price alone."""
        variables = {option.choice: option.variable for option in self.options}
        for kernel in self.searched.excluded:
            inlined = sum(self._need(class_, Mode.INLINED) for class_ in sorted(kernel.apart))
            chosen = [variable for choice, variable in variables.items() if choice in kernel.choices]
            if len(chosen) == len(kernel.choices):
                self.solver.Add(sum(chosen) - inlined <= len(chosen) - 1)

    def solve(self, seconds: float, start: float) -> Extraction:
        from ortools.linear_solver import pywraplp

        solver = self.solver
        costs = [it.cost * it.variable for it in self.options] + [cost * read for read, cost in self.reads]
        solver.Minimize(solver.Sum(costs + [column.us * variable for column, variable in self.columns]))
        solver.SetTimeLimit(int(seconds * 1000))
        parameters = pywraplp.MPSolverParameters()
        parameters.SetDoubleParam(parameters.RELATIVE_MIP_GAP, 1e-6)
        status = solver.Solve(parameters)
        if status not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
            wanted = "a longer time limit" if status == pywraplp.Solver.NOT_SOLVED else "an e-graph with an acyclic program"
            raise ExtractionError(f"extraction: got no program within {seconds:.1f} s, wanted {wanted}")
        chosen = [option for option in self.options if option.variable.solution_value() > 0.5]
        priced = [column for column, variable in self.columns if variable.solution_value() > 0.5]
        us = sum(option.cost for option in chosen) + sum(cost * read.solution_value() for read, cost in self.reads)
        us += sum(column.us for column in priced)
        folded = _FOLDED * sum(self._is_folded(child) for it in chosen for child in set(it.choice.enode.children))
        bound = solver.Objective().BestBound()
        leaves = self._leaves()
        return Extraction(
            (*leaves, *(option.choice for option in chosen), *self._priced_choices(priced)),
            us - folded,
            min(bound, us) - folded,
            us - bound <= 1e-4 * max(us, 1e-9),
            perf_counter() - start,
            solver.NumVariables(),
            tuple(priced),
        )

    def _priced_choices(self, priced: Sequence[PricedKernel]) -> Iterator[ClassChoice]:
        for number, kernel in enumerate(priced):
            for class_, enode in kernel.enodes:
                mode = Mode.STORED if class_ in kernel.outputs else Mode.INLINED
                yield ClassChoice(class_, enode, mode, None, self.costs.role(enode, self.classes.names), number)

    def _leaves(self) -> Sequence[ClassChoice]:
        return [
            ClassChoice(class_, next(it for it in enodes if it.constructor == "In"), Mode.STORED, None, FusionRole.INPUT)
            for class_, enodes in enumerate(self.classes.enodes)
            if any(it.constructor == "In" for it in enodes)
        ]
