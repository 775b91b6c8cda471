"""What laws of whole tensors are worth: programs rewritten with one set of them and with another, side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage_eg.backends.cost.devices import Device
from mirage_eg.egraph.rule_files import TENSOR, domain_of, packaged_names, read_files
from mirage_eg.graph_optimizer.optimize_graph import GraphReport, optimize_graph
from mirage_eg.graph_optimizer.tensor_laws import GivenLaw, given_laws
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.graph import Graph
from mirage_eg.lab.bench.rule_impact import OnStage


@dataclass(frozen=True, slots=True)
class TensorSide:
    """A program rewritten with a rule set: ops, predicted microseconds, the e-graph's size, and the matches of its laws."""

    ops: int
    us: float
    enodes: int
    stopped: str | None
    matches: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class TensorRow:
    """A program rewritten with rule set A and with B."""

    program: str
    a: TensorSide
    b: TensorSide


@dataclass(frozen=True, slots=True)
class TensorComparison:
    """Two rule sets on programs; `laws` are those of both, with the reason where the rewriter uses one not at all."""

    a: str
    b: str
    device: str
    laws: tuple[GivenLaw, ...]
    programs: tuple[TensorRow, ...]

    def matches(self, law: GivenLaw) -> int:
        """How often a law of B matched in all programs."""
        return sum(count for row in self.programs for name, count in row.b.matches if name == law.name)


def is_tensor_rules(name: str) -> bool:
    """Whether a rule set is one of whole tensors: the domain, a packaged theory of it, or files whose headers say so."""
    if name == TENSOR or name in packaged_names(TENSOR):
        return True
    try:
        return any(domain_of(file) == TENSOR for file in read_files(name))
    except MirageError:
        return False


def tensor_comparison(
    programs: Mapping[str, Graph],
    a: tuple[str, ...],
    b: tuple[str, ...],
    device: Device,
    on_progress: OnStage = lambda stage, done, total: None,
) -> TensorComparison:
    """Rewrite each program with the laws of `a` and with those of `b`: files, and theories of `rules/tensor`.

    Raises RuleError: a file does not load, or a law made a result differ from its program.
    """
    sets = [given_laws(it) for it in (a, b)]
    rows = []
    for done, (name, program) in enumerate(programs.items()):
        on_progress("rewriting", done, len(programs))
        sides = [
            _side(optimize_graph(program, device, name=name, rules=rules).report, laws)
            for rules, laws in zip((a, b), sets, strict=True)
        ]
        rows.append(TensorRow(name, *sides))
    shown = [", ".join(it) or "the rewriter's own laws" for it in (a, b)]
    return TensorComparison(shown[0], shown[1], device.name, tuple(dict.fromkeys((*sets[0], *sets[1]))), tuple(rows))


def _side(report: GraphReport, laws: Sequence[GivenLaw]) -> TensorSide:
    counts = dict(report.laws)
    matches = tuple((law.name, count) for law in laws if (count := law.matches(counts)))
    return TensorSide(report.ops_after, min(report.as_written.us, report.joint.us), report.enodes, report.stopped, matches)


def rule_set_of(name: str) -> tuple[str, ...]:
    """The rules that a name on the command line stands for; `tensor` is the rewriter without laws of the user."""
    return () if name == TENSOR else (name,)
