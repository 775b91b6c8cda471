"""`mirage_eg.egraph(program)`: the saturated e-graph of a program, to be asked, listed, proved from and drawn."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from numbers import Real
from pathlib import Path
from typing import Any

from mirage_eg.egraph.explain import Explanation, explain_tree, first_pruned
from mirage_eg.egraph.expression import REDUCTIONS, Tree, flatten
from mirage_eg.egraph.forms import Forms
from mirage_eg.egraph.node_costs import CostedNode, NodeCost, NodeCosts, fewest_ops
from mirage_eg.egraph.oracle import Key, Limits, Oracle, Saturation, saturate
from mirage_eg.egraph.program_expression import program_expression
from mirage_eg.egraph.proof_chain import ProofChain
from mirage_eg.egraph.rule_files import DOMAINS
from mirage_eg.egraph.rulebook import Rulebook, load_rules
from mirage_eg.egraph.saturation_history import SaturationHistory, saturation_history
from mirage_eg.egraph.sufficient_laws import SufficientLaws
from mirage_eg.egraph.term_text import CLASS, parse_term, show_term, tree_size
from mirage_eg.frontend.load import load_program
from mirage_eg.ir.builder import KernelGraph, graph_of
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.plurals import counted
from mirage_eg.pipeline.run.option_fields import check_names
from mirage_eg.report.egraph import EGraphView
from mirage_eg.report.egraph_page import egraph_page
from mirage_eg.report.proof_steps import chain_html
from mirage_eg.report.tables import table
from mirage_eg.verify.proof import chains_between


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a term is in an e-graph: its class, or the first subterm that is not there, with the nearest part that is."""

    term: str
    class_: int | None
    missing: str | None = None  # the innermost subterm that is not in the e-graph
    nearest: str | None = None  # the largest subterm that is
    nearest_class: int | None = None
    hint: str = ""

    def __bool__(self) -> bool:
        return self.class_ is not None

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self))}</p>"

    def __str__(self) -> str:
        if self.class_ is not None:
            return f"{self.term} is in class #{self.class_}"
        nearest = f"; the nearest part is {self.nearest} in class #{self.nearest_class}" if self.nearest else ""
        return f"{self.term} is not in the e-graph: {self.missing} is no part of the program{nearest}{self.hint}"


@dataclass(frozen=True, slots=True)
class Equivalence:
    """Whether the laws make two terms equal, and the proof in steps; `reason` is why not, or why there are no steps."""

    equal: bool
    chain: ProofChain | None = None
    reason: str | None = None

    def __bool__(self) -> bool:
        return self.equal

    def _repr_html_(self) -> str:
        head = table(("equal" if self.equal else "not shown equal", ""), [("because", self.reason)] if self.reason else [])
        return head + ("" if self.chain is None else chain_html(self.chain))

    def __str__(self) -> str:
        if self.chain is not None:
            return f"equal by {counted(len(self.chain.steps), 'step')}:\n{self.chain}"
        return f"{'equal' if self.equal else 'not shown equal'}: {self.reason}"


class EGraph:
    """The saturated e-graph of one program under one split; `mirage_eg.egraph` makes it.

    Terms are texts: `(Div (Sum j.t (Mul X W)) Y)`, with the names of the program's inputs and with classes as #12.
    """

    def __init__(
        self, program: Graph, name: str, rulebook: Rulebook, without: frozenset[str], limits: Limits, axes: Sequence[str | None]
    ) -> None:
        found = program_expression(program, rulebook.domain, *axes)
        self.program, self.name, self.rulebook, self.without, self.limits = program, name, rulebook, without, limits
        self.expression, self.names, self.split = found.expression, found.names, found.split
        self._extents = found.extents
        self.oracle: Oracle = self._run(saturate, "saturation")
        self._forms = Forms(self.oracle, self.names)
        self._laws = SufficientLaws(rulebook, excluded=without, recent=0)

    def _run(self, saturation: Callable[..., Any], task: str) -> Any:
        arguments = (self.rulebook, self.expression, self.limits, self.without)
        return self.rulebook.call(saturation, *arguments, seconds=self.limits.patience, task=f"{task} of {self.name}")

    @property
    def saturation(self) -> Saturation:
        """Size and growth; `stopped` is the limit that cut the e-graph, if one did."""
        return self.oracle.saturation

    @cached_property
    def _node_costs(self) -> NodeCosts:
        return NodeCosts(self.oracle, self.expression.free, self._extents)

    @property
    def _is_indexed(self) -> bool:
        return self.rulebook.domain == "indexed"

    @property
    def outputs(self) -> tuple[int, ...]:
        """The classes of the program's outputs."""
        return self.oracle.outputs

    @cached_property
    def history(self) -> SaturationHistory:
        """E-nodes and unions of each law, iteration by iteration, from a second saturation that runs the laws one by one."""
        found: SaturationHistory = self._run(saturation_history, "history")
        return found

    def classes(self) -> dict[int, tuple[str, ...]]:
        """The e-nodes of every class as text, those of the outputs first, then by distance from them."""
        listed = self.view().classes()
        return {class_: self.view().words(keys) for class_, keys in listed.items()}

    def ask(self, term: str) -> Answer:
        """The class of a term; or the subterm that no expression equal to the program has, with the nearest part that is there.

        Raises OptionError: the text is no term.
        """
        tree = self._parsed(term)
        missing = first_pruned(self._forms, tree)
        if missing is None:
            return Answer(show_term(tree), self._forms.class_of(tree))
        parts = sorted({part for parts in self.expression.free for part in parts})
        unknown = [it for part in _subterms(tree) if part[0] in REDUCTIONS for it in part[1:2] if it not in parts]
        hint = f"; no part of an axis is {unknown[0]}: they are {', '.join(parts)}" if unknown and self._is_indexed else ""
        there = [(part, class_) for part in _subterms(tree) if (class_ := self._forms.class_of(part)) is not None]
        if not there:
            return Answer(show_term(tree), None, show_term(missing), hint=hint)
        nearest, class_ = max(there, key=lambda entry: tree_size(entry[0]))
        return Answer(show_term(tree), None, show_term(missing), show_term(nearest), class_, hint)

    def explain(self, term: str) -> Explanation:
        """Why a term is in the e-graph: a form of the program that contains it, and the steps to it; or where it is pruned.

        Raises OptionError: the text is no term.
        """
        tree = _without_classes(self._parsed(term), self._forms.cheapest())
        return explain_tree(self._forms, tree, self._laws, self.expression, self.names)

    def forms(self, class_: int | str, count: int = 10) -> tuple[str, ...]:
        """Up to `count` terms of a class, the smallest first; the class as its number, or as a term of it.

        Raises OptionError: no such class, or a term that is not in the e-graph.
        """
        if count < 1:
            raise OptionError(f"forms: got a count of {count}, wanted 1 or more")
        return tuple(map(show_term, self._forms.smallest(self._class(class_), count)))

    def extract(self, cost: NodeCost | Mapping[str, float] | None = None, shared: bool = False) -> tuple[str, ...]:
        """The cheapest term of each output; without a cost the one of the fewest ops, and of equally many the least work.

        `cost` is that of an e-node without what is below its operands: a function of it, with op, constants, axes and extents
        (of a split axis: up to 16 iterations and 16 blocks), or a mapping by constructor with 1 for the others. With `shared` a
        subterm counts once, else wherever it occurs.

        Raises:
            OptionError: a cost that is not positive, or an output with no term of finite cost.
            ExtractionError: with `shared`, no terms were found in ten seconds.
        """
        own = self._cost(cost)
        if shared:
            from mirage_eg.graph_optimizer.shared_terms import cheapest_shared

            best = cheapest_shared(self._forms, own)
        else:
            best = self._forms.cheapest(own)
        for output in self.oracle.outputs:
            if output not in best:
                raise OptionError(f"extract: class #{output}, an output, has no term of finite cost")
        return tuple(show_term(best[output]) for output in self.oracle.outputs)

    def _cost(self, cost: NodeCost | Mapping[str, float] | None) -> Callable[[Key], float]:
        if isinstance(cost, Mapping):
            unknown = [name for name in cost if name not in self.rulebook.signatures]
            if unknown:
                raise OptionError(f"cost: no constructor {unknown[0]!r}; wanted names such as Mul, Sum, Exp")
            own: NodeCost = lambda node: float(cost.get(node.op, 1.0))  # noqa: E731
        else:
            own = cost or fewest_ops

        def checked(key: Key) -> float:
            node: CostedNode = self._node_costs.node(key)
            value = own(node)
            if not (isinstance(value, Real) and value > 0):
                raise OptionError(f"cost: got {value} for {node.op}, wanted a positive number")
            return value

        return checked

    def prove(self, left: str, right: str) -> Equivalence:
        """Whether the laws make two terms equal, with a proof in steps that a checker without an e-graph has replayed.

        The terms need not be in the e-graph. A class #12 stands for its smallest term.

        Raises OptionError: a text is no term; the domain is abstract, in which equal terms need not be equal functions.
        """
        if not self._is_indexed:
            raise OptionError(f"prove: got the domain {self.rulebook.domain}, wanted indexed, whose equalities are proofs")
        smallest = self._forms.cheapest()
        trees = [_without_classes(self._parsed(text), smallest) for text in (left, right)]
        free = dict(zip(self.names, self.expression.free, strict=True))
        joint = replace(flatten(trees, free), extents=self.expression.extents)
        laws = self._laws.find(joint)
        if isinstance(laws, str):
            return Equivalence(False, reason=laws)
        found = chains_between(joint, laws, self.rulebook, self.names)
        if found.refused is not None:
            return Equivalence(False, reason=found.refused)
        return Equivalence(True, next(iter(found.chains), None), found.missing)

    def view(self, marked: Collection[str] = (), boxes: int = 40) -> EGraphView:
        """A drawing of up to `boxes` classes, clusters of e-nodes with lines to operands; `marked` terms have a colour."""
        classes = frozenset(class_ for text in marked if (class_ := self.ask(text).class_) is not None)
        return EGraphView(self.oracle, classes, boxes, self.names)

    def to_json(self, cost: NodeCost | Mapping[str, float] | None = None) -> str:
        """The e-graph in the format of egraph-serialize, with the names of inputs and the costs of e-nodes."""
        return replace(self.view(), cost=self._cost(cost)).to_json()

    def to_svg(self) -> str:
        """The drawing of `view`."""
        return self.view().to_svg()

    def to_html(self) -> str:
        """A page that needs no network: the e-graph to pan, zoom and search, the history and the classes."""
        best = self._forms.cheapest(self._cost(None))
        chosen = {class_: key for class_, tree in best.items() if (key := self._forms.key(tree)) is not None}
        title = f"e-graph of {self.name}"
        return egraph_page(self.view(), title, str(self), self.history, best, chosen, self._laws_of_nodes())

    def _laws_of_nodes(self) -> dict[Key, str]:
        """The law that made each e-node first; those of the program have none."""
        classes: list[int | None] = []
        found: dict[Key, str] = {}
        for term, law in self.history.made:
            children = [classes[child] for child in term.children]
            key = (term.constructor, *term.constants, *children)
            classes.append(None if None in children else self.oracle.table.get(key))  # type: ignore[arg-type]
            if classes[-1] is not None and law:
                found.setdefault(key, law)  # type: ignore[arg-type]
        return found

    def widget(self) -> Any:
        """egglog's interactive view of the e-graph. Raises UnsupportedError: a package that the widget needs is missing."""
        return self.view().widget()

    def __repr__(self) -> str:
        size = f"{counted(len(self.oracle.table), 'e-node')} in {counted(len(self._forms.nodes), 'class', 'classes')}"
        state = "saturated" if self.saturation.saturated else f"CUT: {self.saturation.stopped}"
        return f"EGraph of {self.name} ({self.split}, {self.rulebook.domain}): {size}, {state}"

    def _repr_html_(self) -> str:
        return self.view()._repr_html_()

    def _parsed(self, text: str) -> Tree:
        return parse_term(text, self.rulebook.signatures, self.names, self._forms.nodes)

    def _class(self, class_: int | str) -> int:
        text = f"#{class_}" if isinstance(class_, int) else class_
        answer = self.ask(text)
        if answer.class_ is None:
            raise OptionError(str(answer))
        return answer.class_


def _subterms(tree: Tree) -> list[Tree]:
    return [tree, *(part for child in tree[1:] if isinstance(child, tuple) for part in _subterms(child))]


def _without_classes(tree: Tree, terms: Mapping[int, Tree]) -> Tree:
    if tree[0] == CLASS:
        return terms[tree[1]]
    return tuple(_without_classes(part, terms) if isinstance(part, tuple) else part for part in tree)


def egraph(
    program: KernelGraph | Graph | str | Path,
    *,
    rules: Sequence[str | Path] = (),
    without: Sequence[str] = (),
    limits: Limits | Mapping[str, float] | None = None,
    domain: str = "indexed",
    loop: str | None = None,
    grid: str | None = None,
    name: str | None = None,
) -> EGraph:
    """The saturated e-graph of a program: a graph, or a workload, JSON file or Python file, as `mirage-eg optimize` takes it.

    `rules` are further rule files, folders and theories that are off by default; `without` names theories and single laws to
    leave out. `limits` are iterations, nodes and seconds of a processor. `loop` and `grid` name the reduced axis of the loop
    and the one that is divided over the grid; without them a sum over an axis j is one `Sum j.t`. `name` is for titles.
    An input with two names of an axis, as W in X W W, is two inputs: W and W_2; no law states that they are equal.

    Raises:
        OptionError: an unknown domain, limit or axis.
        ProgramError: no such program.
        RuleError: a mistake in a rule file, or no such theory or law.
        LimitError: laws of the user that do not end.
        UnsupportedError: a program whose axes cannot be inferred.
    """
    if domain not in DOMAINS:
        raise OptionError(f"domain: got {domain!r}, wanted {' or '.join(DOMAINS)}")
    laws = {law.name for law in load_rules(domain, rules).laws}
    rulebook = load_rules(domain, rules, [name for name in without if name not in laws])
    if isinstance(program, str | Path):
        found, graph = load_program(str(program))
    else:
        found, graph = "the program", graph_of(program, "egraph")
    return EGraph(graph, name or found, rulebook, frozenset(laws.intersection(without)), _limits(limits), (loop, grid))


def _limits(given: Limits | Mapping[str, float] | None) -> Limits:
    limits = given if isinstance(given, Limits) else Limits()
    if isinstance(given, Mapping):
        check_names("limits", given, Limits)
        values = {name: float(value) if name == "seconds" else int(value) for name, value in given.items()}
        limits = replace(limits, **values)  # type: ignore[arg-type]
    if min(limits.iterations, limits.nodes, limits.seconds) <= 0:
        raise OptionError(f"limits: got {limits}, wanted positive numbers")
    return limits
