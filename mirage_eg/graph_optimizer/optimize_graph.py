"""`optimize_graph`: a whole program in one e-graph, saturated; the cheapest program is extracted and verified.

Nothing here is trusted: the result is compared with the program in a finite field at its real sizes, and in float64.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.graph_optimizer.costs import KernelCosts
from mirage_eg.graph_optimizer.eclasses import EClasses, read_classes
from mirage_eg.graph_optimizer.extraction import Extraction, ExtractionError, extract
from mirage_eg.graph_optimizer.program_terms import ProgramTerms
from mirage_eg.graph_optimizer.prologue import FoldedProgram
from mirage_eg.graph_optimizer.rewritten_program import PredictedKernel, RewrittenProgram, rewritten
from mirage_eg.graph_optimizer.saturation import ProgramSaturation, SaturationLimits, saturate
from mirage_eg.graph_optimizer.weights import weights_of
from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.errors import OptionError, RuleError
from mirage_eg.ir.expand import expand_ops, has_choices
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.derived import DERIVED
from mirage_eg.ir.op.moves import MOVES
from mirage_eg.ir.weights import weight_only
from mirage_eg.verify.block_reference import BlockReference
from mirage_eg.verify.verdict import Equality, Observer, Verdict

WRITTEN_OUT = (
    *(op.name for op in MOVES.values() if op.expand is not None),
    *(op.name for op in DERIVED.values() if op.parts_in_laws),
)
AS_WRITTEN = "as written"
_LEAST_SECONDS = 60.0  # for the program as written
STEPS = ("saturate", "extract", "verify")


@dataclass(frozen=True, slots=True)
class Prediction:
    """A program as predicted: microseconds, kernels, and whether no other program of its e-graph is cheaper."""

    us: float
    kernels: int
    bound_us: float
    proved: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class GraphReport:
    """What a whole-program optimization did.

    `as_written`: each op a kernel. `fusion`: elementwise ops fused, no law. `substitution`: laws, no fusion. `joint`: both.
    `ops_before` and `ops_after` count nodes that are neither inputs, outputs nor views.
    """

    program: str
    device: str
    ops_before: int
    ops_after: int
    as_written: Prediction
    fusion: Prediction
    substitution: Prediction
    joint: Prediction
    taken: str  # of the four the one that is given back
    enodes: int
    eclasses: int
    laws: tuple[tuple[str, int], ...]  # with their matches
    stopped: str | None  # the limit that stopped saturation, if one did
    saturation_seconds: float
    weights: tuple[str, ...]  # inputs that are taken as weights
    folded: tuple[str, ...]  # inputs of the result that the prologue computes
    prologue_bytes: int
    prologue_us: float
    verdict: str
    kernels: tuple[PredictedKernel, ...]
    seconds: float

    def data(self) -> dict[str, Any]:
        """The report in JSON's types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class OptimizedGraph:
    """The result of `optimize_graph`: `graph` and `prologue` of `program`, with the verdict and the report."""

    program: Graph
    rewritten: RewrittenProgram
    verdict: Verdict
    report: GraphReport

    @property
    def graph(self) -> Graph:
        """The program that runs each time; its last inputs are the outputs of the prologue, by name."""
        return self.rewritten.graph

    def runner(self) -> FoldedProgram:
        """The program as a function of NumPy arrays that runs the prologue again where a weight has changed."""
        return FoldedProgram(self.program, self.rewritten)

    @property
    def prologue(self) -> Graph | None:
        """The parts that depend on weights alone, run once; None where nothing is folded."""
        return self.rewritten.prologue


def optimize_graph(
    program: Graph,
    device: Device,
    weights: Sequence[str] | None = None,
    seconds: float = 10.0,
    name: str = "program",
    observe: Observer | None = None,
    rules: Sequence[str] = (),
) -> OptimizedGraph:
    """Rewrite a whole program: graph substitutions and kernel boundaries are chosen together.

    `weights`: names of inputs that stay the same from run to run, with `*` and `?`; see `weights_of` for the default.
    `seconds` limits each extraction. `rules`: further laws, of whole tensors: files, or names of theories of `rules/tensor`
    (10_found). The result is never predicted slower than the program as written.

    Raises:
        OptionError: weights that the program does not have, or a program with named dims.
        ExtractionError: no program was found within `seconds`.
        RuleError: a rule file is not readable, or has a law that made the result differ from the program.
    """
    start = perf_counter()
    if dims_of(program):
        raise OptionError(f"{name}: got a program with named dims, wanted fixed sizes: give them in the program")
    watch = observe or (lambda *_: None)
    written_out = expand_ops(program, WRITTEN_OUT)
    constant = weights_of(written_out, weights)
    watch("saturate", 0, len(STEPS), name)
    saturation, classes = saturated_classes(
        written_out, constant, rules=tuple(rules), keeps=program.keeps_undefined or has_choices(program)
    )
    watch("extract", 1, len(STEPS), f"{classes.count} e-nodes")
    given = _plain_classes(program)
    found = _extractions(given, _plain_classes(written_out), classes, KernelCosts(device), seconds)
    taken = min(reversed(found), key=lambda key: found[key][1].us)
    result = rewritten(program if found[taken][0] is given else written_out, *found[taken])
    watch("verify", 2, len(STEPS), "")
    verdict = BlockReference(program, trials=1).check(result.whole)
    if verdict.verdict is Equality.NOT_EQUAL:
        if rules:
            raise RuleError(f"{', '.join(rules)}: a law is false: {name} rewritten differs from {name}: {verdict.difference}")
        raise AssertionError(f"{name}: an unsound rewrite: {verdict.difference}")
    figures = _Figures(name, device, constant, saturation, classes, found, taken)
    return OptimizedGraph(
        program, result, verdict, _report(program, written_out, figures, result, verdict, perf_counter() - start)
    )


def saturated_classes(
    program: Graph,
    weights: frozenset[int],
    limits: SaturationLimits | None = None,
    rules: tuple[str, ...] = (),
    keeps: bool = False,
) -> tuple[ProgramSaturation, EClasses]:
    """The saturated e-graph of a program whose ops in WRITTEN_OUT are written out, and its classes.

    `weights` are inputs; `keeps` as in `ProgramTerms`.
    """
    terms = ProgramTerms(program, weight_only(program, weights), keeps=keeps)
    saturation = saturate(terms, limits, rules=rules)
    return saturation, read_classes(saturation.egraph, terms)


def _plain_classes(program: Graph) -> EClasses:
    """The classes of a program alone: no law, no weight that is folded."""
    terms = ProgramTerms(program, frozenset())
    return read_classes(saturate(terms, with_laws=False).egraph, terms)


Extractions = dict[str, tuple[EClasses, Extraction]]


def _extractions(given: EClasses, written_out: EClasses, classes: EClasses, costs: KernelCosts, seconds: float) -> Extractions:
    """The four programs; where the solver ends without one, the best of those before stands for it."""
    found: Extractions = {}
    for key, source, fused in (
        (AS_WRITTEN, given, False),
        ("fusion", written_out, True),
        ("substitution", classes, False),
        ("joint", classes, True),
    ):
        try:
            limit = seconds if found else max(seconds, _LEAST_SECONDS)  # as written there is nothing to choose
            found[key] = source, extract(source, costs, fused, limit)
        except ExtractionError:
            if not found:
                raise
            best = min(found.values(), key=lambda pair: pair[1].us)
            found[key] = best[0], replace(best[1], bound_us=0.0, proved=False, seconds=seconds)
    best, joint = min(found.values(), key=lambda pair: pair[1].us), found["joint"][1]
    if best[1].us < joint.us:  # the solver was stopped; the bound is that of the joint problem
        bound = min(joint.bound_us, best[1].us)
        found["joint"] = best[0], replace(best[1], bound_us=bound, proved=joint.proved, seconds=joint.seconds)
    return found


@dataclass(frozen=True, slots=True)
class _Figures:
    name: str
    device: Device
    weights: frozenset[int]
    saturation: ProgramSaturation
    classes: EClasses
    found: Extractions
    taken: str


def _report(
    program: Graph, written_out: Graph, figures: _Figures, result: RewrittenProgram, verdict: Verdict, seconds: float
) -> GraphReport:
    predictions = {
        key: Prediction(it.us, it.kernels, it.bound_us, it.proved, it.seconds) for key, (_, it) in figures.found.items()
    }
    names = dict(zip(written_out.input_values, written_out.input_names, strict=True))
    prologue = result.prologue
    return GraphReport(
        program=figures.name,
        device=figures.device.name,
        ops_before=len(program.ops),
        ops_after=len(result.graph.ops),
        as_written=predictions[AS_WRITTEN],
        fusion=predictions["fusion"],
        substitution=predictions["substitution"],
        joint=predictions["joint"],
        taken=figures.taken,
        enodes=figures.classes.count,
        eclasses=len(figures.classes.enodes),
        laws=figures.saturation.laws,
        stopped=figures.saturation.stopped,
        saturation_seconds=figures.saturation.seconds,
        weights=tuple(names[value] for value in sorted(figures.weights)),
        folded=result.folded,
        prologue_bytes=0 if prologue is None else sum(kind.nbytes for kind in prologue.output_types),
        prologue_us=0.0 if prologue is None else predict_us(prologue, figures.device),
        verdict=str(verdict.verdict),
        kernels=result.kernels,
        seconds=seconds,
    )
