"""How objects show themselves in a notebook: one entry for each kind that a person meets.

The rooms below know nothing of pictures, so their kinds learn here to show themselves. What has a method of its own, such as
`MuGraph` or a soundness report, is not listed.
"""

from collections.abc import Callable
from typing import Any

from mirage_eg.egraph.explain import Explanation
from mirage_eg.egraph.expression import Expression
from mirage_eg.egraph.laws import Law
from mirage_eg.egraph.oracle import Oracle, Saturation
from mirage_eg.egraph.rulebook import Rulebook, Theory
from mirage_eg.ir.axes import Axes
from mirage_eg.ir.builder import KernelGraph, Tensor, ThreadblockGraph
from mirage_eg.ir.graph import Graph
from mirage_eg.optimizer.layouts import Layouts
from mirage_eg.optimizer.passes import Polished
from mirage_eg.pipeline.run.records import Candidate, CompileRecord, Result
from mirage_eg.report.draw import to_svg
from mirage_eg.report.notebook_records import RECORDS, chain, structure
from mirage_eg.report.result_view import compile_table, result_html
from mirage_eg.report.tables import record, table
from mirage_eg.search.search import SearchResult
from mirage_eg.search.structure import Chain, Structure
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import FloatCheck, Verdict


def _axes(axes: Axes) -> str:
    rows = [
        (name, size, "yes" if place in axes.reduced else "no")
        for place, (name, size) in enumerate(zip(axes.names, axes.sizes, strict=True))
    ]
    return table(("axis", "extent", "reduced by an op"), rows)


def _expression(expression: Expression) -> str:
    rows = [
        (f"t{place}", " ".join([term.constructor, *map(str, term.constants), *(f"t{child}" for child in term.children)]))
        for place, term in enumerate(expression.terms)
    ]
    return table(("term", "what it is"), rows)


def _saturation(saturation: Saturation) -> str:
    matched = [row for row in saturation.matches if row[1]]
    return table(("iteration", "e-nodes"), enumerate(saturation.growth, 1)) + table(("law", "matches"), matched)


def _search(found: SearchResult) -> str:
    rows = [
        (record.split, record.saturation.nodes, record.visited, sum(record.pruned.values()), record.structures, record.complete)
        for record in found.records
    ]
    return table(("split", "e-nodes", "visited", "pruned", "structures", "complete"), rows)


def _verdict(verdict: Verdict) -> str:
    bound = verdict.bound_reason if verdict.error_bound is None else f"{verdict.error_bound:.3g}: {verdict.bound_reason}"
    rows = [
        ("verdict", verdict.verdict),
        ("known by", ", ".join(verdict.known_by)),
        ("draws", f"{verdict.draws} modulo {verdict.p:,} and {verdict.q:,}"),
        ("error bound", bound),
        ("laws", ", ".join(verdict.laws)),
        ("proved where both are defined, by", ", ".join(verdict.partial)),
        ("not proved", verdict.not_proved),
        ("tests alone", verdict.left_open and f"undecided: {verdict.left_open}"),
        ("difference", None if verdict.left_open else verdict.difference),
    ]
    return table(("", ""), [row for row in rows if row[1]])


def _float_check(check: FloatCheck) -> str:
    rows = [("passes", check.problem or "yes"), ("error", f"{check.error:.3g}"), ("tolerance", f"{check.tolerance:.3g}")]
    return table(("float check", ""), [*rows, ("overflows", check.overflows), ("difference", check.difference or "none")])


def _layouts(layouts: Layouts) -> str:
    rows = [
        (f"t{one.value}", list(one.shape), list(one.order), f"{one.us:.2f}", f"{one.row_major_us:.2f}")
        for one in layouts.choices
    ]
    head = ("value", "shape", "dims from slowest to fastest", "µs of accesses", "row-major")
    said = (("µs of all kernels", f"{layouts.kernels_us:.2f}"), ("row-major", f"{layouts.row_major_us:.2f}"))
    return table(head, rows) + table(("", ""), [*said, ("proved best", layouts.optimal)])


def _rulebook(rulebook: Rulebook) -> str:
    return table(("theory", "laws"), [(theory.path, len(theory.laws)) for theory in rulebook.theories])


_SVG: dict[type, Callable[[Any], str]] = {
    Graph: to_svg,
    KernelGraph: lambda graph: to_svg(graph.graph()),
    ThreadblockGraph: lambda graph: to_svg(graph.graph()),
    Candidate: lambda candidate: to_svg(candidate.graph),
    Polished: lambda polished: to_svg(polished.graph),
    Reference: lambda reference: to_svg(reference.program),
}
_HTML: dict[type, Callable[[Any], str]] = dict.fromkeys(RECORDS, record) | {
    Axes: _axes,
    Chain: chain,
    CompileRecord: lambda record: compile_table([record]),
    Explanation: lambda explanation: table(("kept" if explanation.kept else "pruned", "by"), explanation.steps),
    Expression: _expression,
    FloatCheck: _float_check,
    Law: lambda law: table((law.name, law.place), [("", law.text)]),
    Layouts: _layouts,
    Oracle: lambda oracle: oracle.egraph._repr_html_(),
    Result: lambda result: result_html(result.report),
    Rulebook: _rulebook,
    Saturation: _saturation,
    SearchResult: _search,
    Structure: structure,
    Tensor: lambda tensor: table(("shape", "dtype"), [(list(tensor.shape), tensor.dtype)]),
    Theory: lambda theory: table((theory.path, ""), [(law.name, law.text) for law in theory.laws]),
    Verdict: _verdict,
}


def teach() -> None:
    """Give every kind above its method for notebooks."""
    for method, shown in (("_repr_svg_", _SVG), ("_repr_html_", _HTML)):
        for kind, show in shown.items():
            setattr(kind, method, lambda self, show=show: show(self))
