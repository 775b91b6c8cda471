"""Notebook display: IPython formatters for the package's classes.

Formatters are registered by the name of the class, so that a class is imported by its user alone. A record of the package
without a formatter is displayed as the table of its fields.
"""

from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from mirage_eg.ir.plurals import counted
from mirage_eg.report.bars import Bar, bars
from mirage_eg.report.draw import to_svg
from mirage_eg.report.funnel import funnel
from mirage_eg.report.mutant_regions import regions_svg
from mirage_eg.report.proof_steps import chain_html
from mirage_eg.report.tables import columns, compiles_text, record, table

if TYPE_CHECKING:
    from mirage_eg.egraph.explain import Explanation
    from mirage_eg.egraph.expression import Expression
    from mirage_eg.egraph.oracle import Oracle, Saturation
    from mirage_eg.egraph.saturation_history import SaturationHistory
    from mirage_eg.egraph.soundness.check_file import Report
    from mirage_eg.ir.axes import Axes
    from mirage_eg.optimizer.layouts import ChosenLayouts
    from mirage_eg.pipeline.run.result import CompileRecord
    from mirage_eg.pipeline.run.run_report import RunReport
    from mirage_eg.search.structure import Structure
    from mirage_eg.verify.verdict import FloatCheck, Verdict


LAYOUTS_HEAD = ("value", "shape", "dims from slowest to fastest", "µs of accesses", "row-major")


def result_html(report: "RunReport") -> str:
    """The funnel and the times of a report."""
    return funnel(report) + time_bars(report)


def time_bars(report: "RunReport", marks: Sequence[tuple[str, float]] = ()) -> str:
    """The µGraphs of a report by their measured times, or the predicted ones if none was measured."""
    mugraphs = report.mugraphs
    shown = []
    for rank, entry in enumerate(mugraphs, 1):
        kernels = counted(entry.kernels, "kernel")
        shown.append(Bar(f"#{rank} {kernels}", entry.us, "bar" if entry.fused else "other"))
    measured = mugraphs[0].measured_us is not None
    return bars(shown, marks, f"µs, measured on {report.device}" if measured else "µs, predicted by the cost model")


def compile_table(records: Sequence["CompileRecord"]) -> str:
    """The compiler's figures for each target: the maximum over kernels, and all spills."""
    rows = [
        (
            record.target,
            compiles_text(record.compiles) + ("" if record.ok else f": {record.error}"),
            *("–" if count is None else f"{count:,}" for count in (record.shared_memory, record.registers, record.spills)),
        )
        for record in records
    ]
    return table(("target", "compiles", "bytes of shared memory", "registers a thread", "bytes spilled a thread"), rows)


def _axes(axes: "Axes") -> str:
    rows = [
        (name, size, "yes" if axis in axes.reduced else "no")
        for axis, (name, size) in enumerate(zip(axes.names, axes.sizes, strict=True))
    ]
    return table(("axis", "extent", "reduced by an op"), rows)


def _expression(expression: "Expression") -> str:
    rows = [
        (f"t{number}", " ".join([term.constructor, *map(str, term.constants), *(f"t{child}" for child in term.children)]))
        for number, term in enumerate(expression.terms)
    ]
    return table(("term", "expression"), rows)


def _explanation(it: "Explanation") -> str:
    rows = [("part of" if it.kept else "at", it.form), ("because", it.reason)]
    head = table(("kept" if it.kept else "pruned", ""), [row for row in rows if row[1]])
    return head + ("" if it.chain is None else chain_html(it.chain))


def _oracle(oracle: "Oracle") -> str:
    from mirage_eg.report.egraph import EGraphView  # which loads egglog

    return EGraphView(oracle)._repr_html_()


def _saturation(saturation: "Saturation") -> str:
    matched = [row for row in saturation.matches if row[1]]
    return table(("iteration", "e-nodes"), enumerate(saturation.growth, 1)) + table(("law", "matches"), matched)


def _history(history: "SaturationHistory") -> str:
    from mirage_eg.report.egraph import history_html  # which loads egglog

    return history_html(history)


def _verdict(verdict: "Verdict") -> str:
    bound = verdict.bound_reason if verdict.error_bound is None else f"{verdict.error_bound:.3g}: {verdict.bound_reason}"
    rows = [
        ("verdict", verdict.verdict),
        ("evidence", ", ".join(verdict.evidence)),
        ("trials", f"{verdict.trials} modulo {verdict.p:,} and {verdict.q:,}"),
        ("error bound", bound),
        ("laws", ", ".join(verdict.laws)),
        ("proved where both are defined, by", ", ".join(verdict.partial)),
        ("proof in steps", verdict.no_chains_because),
        ("not proved", verdict.unproved_because),
        ("tests alone", verdict.undecided_because and f"undecided: {verdict.undecided_because}"),
        ("difference", None if verdict.undecided_because else verdict.difference),
    ]
    return table(("", ""), [row for row in rows if row[1]]) + "".join(map(chain_html, verdict.chains))


def _float_check(check: "FloatCheck") -> str:
    rows = [("passes", check.problem or "yes"), ("error", f"{check.error:.3g}"), ("tolerance", f"{check.tolerance:.3g}")]
    return table(("float check", ""), [*rows, ("overflows", check.overflows), ("difference", check.difference or "none")])


def _layouts(layouts: "ChosenLayouts") -> str:
    rows = [
        (f"t{one.value}", list(one.shape), list(one.order), f"{one.us:.2f}", f"{one.row_major_us:.2f}")
        for one in layouts.choices
    ]
    totals = (("µs of all kernels", f"{layouts.kernels_us:.2f}"), ("row-major", f"{layouts.row_major_us:.2f}"))
    return table(LAYOUTS_HEAD, rows) + table(("", ""), [*totals, ("proved best", layouts.optimal)])


def _structure(it: "Structure") -> str:
    """The loads and steps of a structure, one line for each value."""
    outputs = {value: output for output, value in enumerate(it.outputs)}
    rows = [(value, f"load input {load.input}", "looped" if load.looped else "", "") for value, load in enumerate(it.loads)]
    for value, step in enumerate(it.steps, len(it.loads)):
        text = " ".join([step.op, *map(str, step.constants), *(f"%{operand}" for operand in step.operands)])
        reduced = f"reduces axis {', '.join(map(str, step.reduced))}" if step.reduced else ""
        rows.append((value, text, reduced, f"output {outputs[value]}" if value in outputs else ""))
    return table(("value", f"structure, {'proved' if it.proved else 'not proved'}", "", ""), rows)


def _rules_report(report: "Report") -> str:
    """The verdict on every law with its counterexample, the lints, the growth of e-graphs."""
    verdicts = [
        (it.law.place, it.law.text, it.truth, it.counterexample or it.because or counted(it.trials, "trial"))
        for it in report.findings
    ]
    growth = [(old.workload, old.nodes, new.nodes, old.classes, new.classes) for old, new in report.growth]
    pages = [table(("law", "", "verdict", "counterexample"), verdicts)]
    if report.lints:
        pages.append(table(("lint", "", ""), [(lint.level, lint.place, lint.message) for lint in report.lints]))
    if growth:
        pages.append(table(("workload", "e-nodes", "with the file", "classes", "with the file"), growth))
    return "".join([*pages, f"<p>{'sound' if report.sound else 'not sound'}</p>"])


_SEARCH: dict[str, Callable[[Any], object]] = {
    "split": lambda it: it.split,
    "e-nodes": lambda it: it.saturation.nodes,
    "visited": lambda it: it.visited,
    "pruned": lambda it: sum(it.pruned.values()),
    "structures": lambda it: it.structures,
    "complete": lambda it: it.complete,
}

SVG_FORMATTERS: dict[str, Callable[[Any], str]] = {
    "ir.graph.Graph": to_svg,
    "ir.builder.KernelGraph": lambda graph: to_svg(graph.graph()),
    "ir.threadblock_graph.ThreadblockGraph": lambda graph: to_svg(graph.graph()),
    "pipeline.run.result.Candidate": lambda candidate: to_svg(candidate.graph),
    "lab.published_models.WrittenModel": lambda model: to_svg(model.program),
    "graph_optimizer.optimize_graph.OptimizedGraph": lambda it: to_svg(it.graph),
    "optimizer.passes.OptimizedMuGraph": lambda it: to_svg(it.graph),
    "partial_equivalence.mutants.Mutant": regions_svg,
    "verify.reference.Reference": lambda reference: to_svg(reference.program),
}
HTML_FORMATTERS: dict[str, Callable[[Any], str]] = {
    "api.SizedMuGraph": lambda it: table(("bucket",), [(line,) for line in str(it).splitlines()]),
    "ir.axes.Axes": _axes,
    "ir.sizes.Dim": lambda dim: table(("dim", "least", "most", "multiple of"), [(dim.name, dim.min, dim.max, dim.multiple_of)]),
    "search.structure.SplitReduction": lambda it: _structure(it.first) + _structure(it.last),
    "pipeline.run.result.CompileRecord": lambda record: compile_table([record]),
    "egraph.explain.Explanation": _explanation,
    "egraph.expression.Expression": _expression,
    "egraph.proof_chain.ProofChain": chain_html,
    "verify.verdict.FloatCheck": _float_check,
    "egraph.laws.Law": lambda law: table((law.name, law.place), [("", law.text)]),
    "optimizer.layouts.ChosenLayouts": _layouts,
    "egraph.oracle.Oracle": _oracle,
    "pipeline.run.result.Result": lambda result: result_html(result.report),
    "egraph.rulebook.Rulebook": lambda it: columns(
        {"theory": lambda theory: theory.path, "laws": lambda theory: len(theory.laws)}, it.theories
    ),
    "egraph.saturation_history.SaturationHistory": _history,
    "egraph.oracle.Saturation": _saturation,
    "search.structure_search.SearchResult": lambda found: columns(_SEARCH, found.records),
    "frontend.coverage.Coverage": lambda it: table(it.rows()[0], it.rows()[1:]),
    "egraph.soundness.check_file.Report": _rules_report,
    "search.structure.Structure": _structure,
    "ir.tensor.Tensor": lambda tensor: table(("shape", "dtype"), [(list(tensor.shape), tensor.dtype)]),
    "egraph.rulebook.Theory": lambda theory: table((theory.path, ""), [(law.name, law.text) for law in theory.laws]),
    "verify.verdict.Verdict": _verdict,
}


def register_formatters(display: Any = None) -> None:
    """Register the formatters above with IPython's DisplayFormatter; default: that of the running notebook."""
    if display is None:
        from IPython import get_ipython

        shell = get_ipython()
        if shell is None:
            return
        display = shell.display_formatter
    for mime, kinds in (("image/svg+xml", SVG_FORMATTERS), ("text/html", HTML_FORMATTERS)):
        for kind, show in kinds.items():
            module, _, name = f"mirage_eg.{kind}".rpartition(".")
            display.formatters[mime].for_type_by_name(module, name, show)
    display.formatters["text/html"].for_type(object, _of_no_formatter)


def is_shown_by_fields(kind: type) -> bool:
    """Whether objects of a class are displayed as the table of their fields."""
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("mirage_eg.")
    drawn = name in SVG_FORMATTERS or hasattr(kind, "_repr_svg_") or hasattr(kind, "_repr_html_")
    return is_dataclass(kind) and kind.__module__.startswith("mirage_eg.") and not drawn


def _of_no_formatter(it: Any) -> str | None:
    """A record of the package as a table; any other object by its own method, as IPython does it."""
    from IPython.utils.dir2 import get_real_method

    if is_shown_by_fields(type(it)):
        return record(it)
    own = get_real_method(it, "_repr_html_")
    return None if own is None else own()
