"""Joint extraction: substitutions, kernel boundaries and kernels chosen together, by the prices of searched kernels.

As in the partition of one program (`search/partition/shortest_path`), a kernel costs a lower bound until it is searched. The
cheapest program under these costs is extracted, its kernels are searched, their prices are put into the integer program, and so
on until every kernel of the cheapest program has a price. Segments that a partition has searched are kernels of known price,
too; only these have several products.

Nothing here is trusted: the program that comes out is searched, composed and verified as any other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from mirage_eg.backends.cost.devices import Device
from mirage_eg.graph_optimizer.costs import KernelCosts, role_of
from mirage_eg.graph_optimizer.eclasses import EClasses
from mirage_eg.graph_optimizer.extraction import ExtractionError, KernelChoices, PricedKernel, SearchedKernels, extract
from mirage_eg.graph_optimizer.program_terms import NumberedENode, nodes_of
from mirage_eg.graph_optimizer.rewritten_program import PredictedKernel, RewrittenProgram, rewritten
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node
from mirage_eg.ir.op.moves import PLAIN_VIEWS
from mirage_eg.search.partition.plan_records import KernelPlan, PlanPart, Segment

CLOSE = 1.02  # a program within this of the bound ends the search: the cost model is no finer
Find = Callable[[Graph, Sequence[Segment]], Sequence[tuple[PlanPart, ...]]]
Terms = Sequence[tuple[int, NumberedENode | None] | None]  # of each value of a program: its class and e-node


@dataclass(frozen=True, slots=True)
class JointProgram:
    """The program that an extraction gives, and the plan of its kernels; None where one of them has no price.

    `us`: by the prices of its kernels; without a plan by the roofline of library kernels. No program is cheaper than `bound_us`
    whose kernels have one product or reduction each, or were searched.
    """

    rewritten: RewrittenProgram
    plan: KernelPlan | None
    us: float
    bound_us: float


@dataclass(slots=True)
class JointExtraction:
    """The extraction from one e-graph, with what was searched so far; `find` searches segments of a program.

    `rounds`: how often a program was extracted; `looked_up`: the kernels of these programs that were searched.
    """

    program: Graph
    classes: EClasses
    device: Device
    find: Find
    priced: dict[tuple[object, ...], PricedKernel] = field(default_factory=dict)
    excluded: dict[KernelChoices, None] = field(default_factory=dict)
    rounds: int = 0
    looked_up: int = 0

    def cheapest(self, seconds: float, most: int, is_time_left: Callable[[], bool]) -> JointProgram:
        """The cheapest program, within `CLOSE`; at most `most` kernels of extracted programs are searched, and as long as there
        is time. `seconds`: of the solver.

        Raises ExtractionError: no program was found in time.
        """
        end = perf_counter() + seconds
        first = self._extracted(KernelCosts(self.device), seconds)  # by the roofline: as a rule close to the cheapest
        best, bound = first, 0.0
        found = first
        while True:
            waiting = list(self._waiting(found.rewritten))
            if waiting and (self.looked_up >= most or not is_time_left()):
                break
            begin = perf_counter()
            self._search(found.rewritten, waiting)
            plan = self.plan(found.rewritten)
            end += perf_counter() - begin  # `seconds` are the solver's
            if plan is not None and (best.plan is None or plan.us < best.us):
                best = replace(found, plan=plan, us=plan.us)
            if (found is not first and not waiting) or (best.plan is not None and best.us <= CLOSE * bound):
                break
            try:
                found = self._extracted(KernelCosts(self.device, least=True), end - perf_counter())
            except ExtractionError:  # the solver's time is over
                break
            bound = max(bound, found.bound_us)
        if not bound or self.may_read_rearranged():  # nothing was searched, or kernels may read operands in another order
            costs = KernelCosts(self.device, least=True, free_views=True)
            bound = self._extracted(costs, max(end - perf_counter(), 1.0)).bound_us
        return replace(best, bound_us=min(bound, best.us))

    def may_read_rearranged(self) -> bool:
        """Whether a rearrangement of an activation costs a kernel in an extraction, which a block graph may spare."""
        free, names = KernelCosts(self.device, free_views=True), self.classes.names
        pairs = zip(self.classes.enodes, self.classes.weight_only, strict=True)
        enodes = (enode for own, is_weight in pairs if not is_weight for enode in own)
        return any(free.role(enode, names) is not role_of(enode, names) for enode in enodes)

    def add(self, program: Graph, terms: Terms, searched: Sequence[tuple[Segment, PlanPart | None]]) -> None:
        """Add the segments of a program that a partition has searched, each with its best kernels."""
        for segment, part in searched:
            if part is not None and (kernel := _priced(self.classes, program, terms, segment, part)) is not None:
                self._keep(kernel)

    def terms_of_given(self) -> Terms:
        """The class and e-node of each value of the given program."""
        terms: list[tuple[int, NumberedENode | None] | None] = []
        own = self.classes.values
        for item, values in self.program.numbered():
            operands = tuple(own[i] for i in item.operands)
            for value in values:
                fitting = (
                    it
                    for it in self.classes.enodes[own[value]]
                    if it.children == operands and _computes(it, item, self.classes.names)
                )
                terms.append((own[value], next(fitting, None)))
        return terms

    def plan(self, found: RewrittenProgram) -> KernelPlan | None:
        """The kernels of an extracted program as a plan of it.

        None where one of them has no price, or reads a view that a kernel would have to write.
        """
        segments = [_segment(found.graph, kernel) for kernel in found.kernels]
        cheapest = [min(parts, key=lambda part: part.kernels.us) for parts in self.find(found.graph, segments) if parts]
        written = {value for part in cheapest for value in part.segment.outputs}.union(found.graph.input_values)
        read = [*(i for part in cheapest for i in part.inputs), *(item.operands[0] for item in found.graph.outputs)]
        if len(cheapest) < len(segments) or not all(found.graph.behind(value, PLAIN_VIEWS) in written for value in read):
            return None
        return KernelPlan(tuple(_in_order(found.graph, cheapest)))

    def _keep(self, kernel: PricedKernel) -> None:
        key = frozenset(kernel.enodes), kernel.outputs
        if key not in self.priced or kernel.us < self.priced[key].us:
            self.priced[key] = kernel

    def _extracted(self, costs: KernelCosts, seconds: float) -> JointProgram:
        self.rounds += 1
        searched = SearchedKernels(tuple(self.priced.values()), tuple(self.excluded))
        found = extract(self.classes, costs, seconds=seconds, searched=searched)
        return JointProgram(rewritten(self.program, self.classes, found), None, found.us, found.bound_us)

    def _waiting(self, found: RewrittenProgram) -> Iterator[tuple[Segment, KernelChoices]]:
        """The kernels of a program without a price, as segments of it."""
        for kernel, choices in zip(found.kernels, found.choices, strict=True):
            if choices is not None:
                yield _segment(found.graph, kernel), choices

    def _search(self, found: RewrittenProgram, waiting: Sequence[tuple[Segment, KernelChoices]]) -> None:
        """Put in the prices of kernels; a kernel that no block graph holds is none."""
        parts = self.find(found.graph, [segment for segment, _ in waiting])
        for (segment, choices), own in zip(waiting, parts, strict=True):
            self.looked_up += 1
            self.excluded[choices] = None
            if own:
                self.add(found.graph, found.terms, [(segment, min(own, key=lambda part: part.kernels.us))])


def _segment(program: Graph, kernel: PredictedKernel) -> Segment:
    """A kernel of an extracted program as a segment: views at its border are outside."""
    nodes = {program.makers[value] for value in kernel.values}
    for position in sorted(nodes):
        item = program.nodes[position]
        if item.op in PLAIN_VIEWS and program.makers[item.operands[0]] not in nodes:
            nodes.remove(position)
    read = {i for position in nodes for i in program.nodes[position].operands if program.makers[i] not in nodes}
    return Segment(frozenset(nodes), tuple(sorted(read)), tuple(sorted(kernel.results)))


def _in_order(program: Graph, parts: Sequence[PlanPart]) -> Iterator[PlanPart]:
    """The parts of a plan, each after the parts whose outputs it reads."""
    there, waiting = set(program.input_values), list(parts)
    while waiting:
        ready = [part for part in waiting if all(program.behind(value, PLAIN_VIEWS) in there for value in part.inputs)]
        yield from ready
        there.update(value for part in ready for value in part.segment.outputs)
        waiting = [part for part in waiting if part not in ready]
        assert ready or not waiting, "an extracted program is acyclic"


def _computes(enode: NumberedENode, item: Node, names: Mapping[str, Node]) -> bool:
    """Whether an e-node computes the op of a node, with its attributes."""
    if enode.constructor in ("In", "Result"):
        return False
    return [(each.op, each.attributes) for each in nodes_of(enode, names)] == [(item.op, item.attributes)]


def _priced(classes: EClasses, program: Graph, terms: Terms, segment: Segment, part: PlanPart) -> PricedKernel | None:
    """A searched segment as e-nodes; None where a value at its border is within an e-node of several ops.

    What depends on weights alone is computed ahead, and no part of it.
    """
    numbered = program.numbered()
    enodes: dict[int, NumberedENode] = {}
    for position in sorted(segment.nodes):
        for value in numbered[position][1]:
            class_, enode = terms[value] or (None, None)
            if class_ is None or classes.weight_only[class_]:
                continue
            if enode is None:
                return None
            enodes.setdefault(class_, enode)
    if any(terms[value] is None for value in (*segment.inputs, *segment.outputs)):
        return None
    outputs = tuple(term[0] for value in segment.outputs if (term := terms[value]) is not None)
    read = dict.fromkeys(child for enode in enodes.values() for child in enode.children if child not in enodes)
    if not enodes.keys() >= {*outputs}:
        return None
    return PricedKernel(tuple(enodes.items()), tuple(read), outputs, part.kernels.us, part.kernels.count)
