"""The report of a run as one self-contained page for a browser, light and dark; equal reports give equal pages.

Its inputs are the report's record, the program, the best µGraph and its source.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from mirage_eg.backends.cost.lower_bound import device_lower_bound_us
from mirage_eg.backends.cost.roofline_model import predict
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.plurals import counted
from mirage_eg.ir.serialize import from_data
from mirage_eg.pipeline.kernel_summary import kernel_summary
from mirage_eg.pipeline.run.report_sections import MuGraphSummary, PartSummary
from mirage_eg.pipeline.run.run_report import RunReport
from mirage_eg.report.draw import kernel_steps, to_svg
from mirage_eg.report.funnel import funnel
from mirage_eg.report.memory import memory_svg, size
from mirage_eg.report.notebook import LAYOUTS_HEAD, time_bars
from mirage_eg.report.proof_steps import chain_html, steps_of
from mirage_eg.report.regions import regions_html
from mirage_eg.report.rewriting import rewriting_html, simplification_html, threads_html
from mirage_eg.report.roofline import kernel_points, program_point, roofline
from mirage_eg.report.svg import dark_style
from mirage_eg.report.tables import cells, columns, compiles_text, numbered, table

_STYLE = """
:root { color-scheme: light dark }
body { font-family: system-ui, sans-serif; line-height: 1.5; margin: 0 auto; max-width: 76rem; padding: 1.5rem;
  color: #17212f; background: #fff }
h1 { margin-bottom: 0 } h2 { margin-top: 2.5rem; border-bottom: 1px solid #7f8ba0 }
svg { max-width: 100%; height: auto; margin: .5rem 0 } .wide { overflow: auto; max-height: 90vh } .wide svg { max-width: none }
table { border-collapse: collapse; display: block; overflow-x: auto }
th, td { padding: .2rem .8rem; border-bottom: 1px solid #7f8ba055 }
pre { overflow: auto; max-height: 40rem; padding: 1rem; border-radius: 6px; background: #f6f8fb;
   font-size: .85rem; line-height: 1.35 }
.lead { font-size: 1.15rem } .note { border-left: 4px solid #c2410c; padding-left: .8rem } summary { cursor: pointer }
code { overflow-wrap: anywhere }
"""


def report_page(report: RunReport, program: Graph, best: Graph, source: str) -> str:
    """The page; `best` and `source` are those of the report's first µGraph."""
    name = escape(report.program)
    sections = (
        _summary(report, best),
        _section("Program", _program(report, program)),
        _section("Simplification", simplification_html(report.simplification)),
        _section("Search", _search(report)),
        _section("Regions", regions_html(report.regions)),
        _section("Graph substitutions", rewriting_html(report.rewriting)),
        _section("Partition into kernels", _partition(report)),
        _section("The best µGraph", _best(report, program, best)),
        _section("Memory between kernels", _memory(report, best)),
        _section("Layouts between kernels", _layouts(report)),
        _section("Triton source", f'<div class="source">{highlight(source, PythonLexer(), HtmlFormatter(nowrap=False))}</div>'),
        _section("µGraphs", _mugraphs(report, program)),
        _section("Verification and rules", _rules(report)),
        _section("Run", _run(report)),
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{name}: report of mirage_eg</title>\n'
        f"<style>{_style()}</style>\n</head>\n<body>\n<h1>{name}</h1>\n{''.join(sections)}</body>\n</html>\n"
    )


def _style() -> str:
    light, dark = (HtmlFormatter(style=style).get_style_defs(".source") for style in ("friendly", "github-dark"))
    page = "body { color: #e8edf5; background: #10151c } pre, .source { background: #1b212b !important }"
    return f"{light}\n{_STYLE}@media (prefers-color-scheme: dark) {{\n{dark}\n{page}\n{dark_style()}\n}}\n"


def _section(title: str, body: str) -> str:
    """A section under its heading; empty if its body is."""
    anchor = "-".join("".join(letter if letter.isalnum() else " " for letter in title.lower()).split())
    return f'<section id="{anchor}">\n<h2>{escape(title)}</h2>\n{body}</section>\n' if body else ""


def _paragraph(words: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(words)}</p>\n' if kind else f"<p>{escape(words)}</p>\n"


def _more(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>\n{body}</details>\n"


_FITS = 1900  # pixels: a drawing of this width shrunk to the page is still legible


def _wide(drawing: str) -> str:
    """A drawing that is shrunk to the page, or scrolled if its letters would be too small."""
    width = int(drawing.split('width="', 1)[1].split('"', 1)[0])
    return f'<div class="{"shrunk" if width <= _FITS else "wide"}">{drawing}</div>\n'


def _summary(report: RunReport, best: Graph) -> str:
    first, per_op = report.mugraphs[0], report.per_op
    how = "the cost model predicts" if first.measured_us is None else f"measured on {report.device}:"
    summary = kernel_summary(best)
    lead = f"{counted(first.kernels, 'kernel')}, {how} {first.us:.1f} µs. {summary[:1].upper()}{summary[1:]}."
    evidence = (
        f"proved by the laws{' where both are defined' if first.partial else ''} and tested in random fields"
        if first.proved
        else f"{first.verdict} in random fields, not proved"
    )
    plain = f"One library kernel an op: {counted(per_op.kernels, 'kernel')}, {per_op.predicted_us:.1f} µs predicted."
    notes = "".join(_paragraph(note, "note") for note in report.notes)
    if (explanation := report.explanation) is not None:
        notes += _paragraph(f"Closest candidate: {explanation.closest_candidate}. Needed change: {explanation.change}.", "note")
    return _paragraph(lead, "lead") + _paragraph(f"It is {evidence}. {plain}") + notes


def _program(report: RunReport, program: Graph) -> str:
    """The listing and the drawing; of a program of several regions, the drawing of each different one."""
    programs = [from_data(region.program) for region in report.regions]
    drawings = "".join(_more(title, _wide(to_svg(graph))) for title, graph in _drawn("drawn", program, programs, report))
    return f"<pre>{escape(str(program))}</pre>\n{drawings}"


def _drawn(title: str, whole: Graph, parts: Sequence[Graph], report: RunReport) -> Iterator[tuple[str, Graph]]:
    """The graphs to draw, with titles: the whole, or each different region."""
    if not parts:
        yield title, whole
    for number, (region, graph) in enumerate(zip(report.regions, parts, strict=True)):
        yield f"{title}: region {number}, {counted(len(region.occurrences), 'time')}", graph


def _search(report: RunReport) -> str:
    e_graphs = [
        (entry.split, entry.nodes, entry.classes, entry.iterations, "yes" if entry.saturated else entry.stopped)
        for entry in report.egraphs
    ]
    head = ("split", "e-nodes", "classes", "iterations", "saturated")
    return funnel(report) + (_more(f"{len(e_graphs)} e-graphs, one for each split", table(head, e_graphs)) if e_graphs else "")


def _partition(report: RunReport) -> str:
    partition = report.partition
    if not partition.kernels:
        return ""
    proved = "" if partition.complete else "The search ended before it proved the first plan the cheapest. "
    text = (
        f"Segments of the program: {partition.segments}; searched, the cheapest first: {partition.searched}. "
        f"{proved}No plan is cheaper than {partition.bound_us:.1f} µs by the cost model, none of at most "
        f"{counted(partition.few, 'kernel')} than {partition.bound_of_few_us:.1f} µs."
    )
    best = report.best.kernels
    first, *others = sorted(partition.kernels, key=lambda plan: sum(segment.kernels for segment in plan) != best)
    plans = "".join(_more(_plan_title(plan), columns(_PLAN, plan)) for plan in others)
    return f"{_paragraph(text)}<h3>{escape(_plan_title(first))}</h3>\n{columns(_PLAN, first)}{plans}"


_PLAN: Mapping[str, Callable[[PartSummary], object]] = {
    "ops": lambda it: ", ".join(it.ops),
    "kernels": lambda it: it.kernels,
    "predicted µs": lambda it: f"{it.predicted_us:.1f}",
    "evidence": lambda it: "library kernel" if it.library else f"{it.verdict}{', proved' if it.proved else ''}",
}


def _plan_title(plan: Sequence[PartSummary]) -> str:
    kernels, us = sum(segment.kernels for segment in plan), sum(segment.predicted_us for segment in plan)
    return f"{counted(kernels, 'kernel')}, {us:.1f} µs predicted"


def _best(report: RunReport, program: Graph, best: Graph) -> str:
    device = report.gpu
    costs = [
        (at, f"{cost.us:.1f}", cost.limited_by, size(cost.dram_bytes), f"{cost.flops:,}")
        for at, cost in enumerate(predict(best, device), 1)
    ]
    head = ("kernel", "predicted µs", "bound by", "device memory", "operations of matrix units, padded")
    roof = ""
    if shown := kernel_points(best, device):
        whole_program = program_point(program, "whole program", report.mugraphs[0].us)
        roof = _paragraph("The roofline has the program and the kernels that use matrix units.")
        roof += roofline([*shown, whole_program], device.memory_bandwidth, device.matrix_rate, f"roofline of {device.name}")
    thread_graphs = threads_html(report.optimizer.thread_graphs)
    listing = _more("listing", f"<pre>{escape(str(best))}</pre>\n")
    mugraphs = [from_data(region.mugraph) for region in report.regions]
    drawings = "".join(
        (f"<h3>{escape(title)}</h3>\n" if mugraphs else "") + _wide(to_svg(graph))
        for title, graph in _drawn("µGraph", best, mugraphs, report)
    )
    return f"{drawings}{listing}<h3>What bounds its kernels</h3>\n{table(head, costs)}{roof}{thread_graphs}"


def _memory(report: RunReport, best: Graph) -> str:
    plan = report.memory
    if not plan.buffers:
        return ""
    numbers = kernel_steps(best)
    rows = []
    for buffer in plan.buffers:
        kernels = [number for step, number in numbers.items() if buffer.steps[0] <= step <= buffer.steps[1]]
        rows.append((buffer.name, f"{buffer.bytes:,}", f"{buffer.offset:,}", f"{kernels[0]} to {kernels[-1]}"))
    return memory_svg(plan, best) + table(("value", "bytes", "offset", "kernels"), rows)


def _layouts(report: RunReport) -> str:
    chosen = report.optimizer.layouts
    if not chosen.intermediates:
        return ""
    saved = f"save {chosen.saved_us:.1f} µs" if chosen.saved_us else "save nothing"
    proved = "proved best" if chosen.optimal else "not proved best"
    text = f"By the cost model these layouts {saved} against row-major ones; {proved}."
    rows = (
        (f"t{one.value}", list(one.shape), list(one.order), f"{one.accesses_us:.2f}", f"{one.row_major_us:.2f}")
        for one in chosen.intermediates
    )
    return _paragraph(text) + table(LAYOUTS_HEAD, rows)


def _mugraphs(report: RunReport, program: Graph) -> str:
    mugraphs = report.mugraphs
    device = report.gpu
    marks = [("lower bound at the cost model's rates", device_lower_bound_us(program, device))]
    text = (
        f"Best first, by {report.ranked_by}. The lower bound: each input read and output written once, or all matmuls, "
        f"at the rates of {device.name} ({device.source})."
    )
    rows = [(ranks, *own) for ranks, own in numbered(cells(_MUGRAPH_COLUMNS, it) for it in mugraphs)]
    return f"{_paragraph(text)}{time_bars(report, marks)}{table(('#', *_MUGRAPH_COLUMNS), rows)}"


_MUGRAPH_COLUMNS: Mapping[str, Callable[[MuGraphSummary], object]] = {
    "kernels": lambda it: it.kernels,
    "grid": lambda it: ", ".join("×".join(map(str, grid)) for grid in it.grid) or "–",
    "loop": lambda it: ", ".join(map(str, it.loop)) or "–",
    "predicted µs": lambda it: f"{it.predicted_us:.1f}",
    "measured µs": lambda it: "–" if it.measured_us is None else f"{it.measured_us:.1f}",
    "verdict": lambda it: ", ".join(filter(None, (it.verdict, "proved" * it.proved, (it.float_check.problem or "").lower()))),
    "compiled": lambda it: compiles_text(it.compiled),
}


def _rules(report: RunReport) -> str:
    verify = report.verify
    bound = f"at most {verify.error_bound:.3g}" if verify.error_bound is not None else "none"
    text = (
        f"{verify.trials} independent trials in fields of {verify.p:,} and {verify.q:,} elements, on {verify.computed_on}. "
        f"Bound on the probability of accepting a wrong µGraph: {bound} ({verify.bound_reason})."
    )
    laws = _paragraph("Laws that suffice for the proof: " + "; ".join(verify.laws) + ".") if verify.laws else ""
    theories = table(("theory", "SHA-256"), report.theories.items())
    loaded = f"{len(report.theories)} rule files were loaded"
    return f"{_paragraph(text)}{laws}{_proof(report)}{_more(loaded, theories)}"


def _proof(report: RunReport) -> str:
    """The chain of steps for each output, or the reason why none is shown."""
    verify = report.verify
    parts = []
    if verify.no_chains_because is not None:
        parts.append(_paragraph(f"The proof in steps: {verify.no_chains_because}."))
    for chain in verify.chains:
        of = f" of {chain.claim}" if chain.claim else ""
        parts.append(_more(f"Proof{of} in {steps_of(chain)}", chain_html(chain)))
    return "".join(parts)


def _run(report: RunReport) -> str:
    facts: Iterable[tuple[str, object]] = (
        ("domain", report.domain),
        ("device", report.device),
        ("target", report.target),
        ("seed", report.seed),
        ("cache", report.cache),
        *report.versions.items(),
        ("peak memory of the main process", f"{report.peak_mib:,} MiB"),
        *((f"seconds: {stage}", f"{seconds:.2f}") for stage, seconds in report.seconds.items()),
    )
    return table(("fact", "value"), facts)
