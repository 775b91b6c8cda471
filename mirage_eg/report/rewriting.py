"""Graph substitutions of a run: a table for the page, and lines for the terminal."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape

from mirage_eg.ir.plurals import counted
from mirage_eg.pipeline.run.report_sections import RewriteSummary, SimplificationSummary, ThreadGraphsSummary
from mirage_eg.report.tables import columns, table


def simplification_html(record: SimplificationSummary) -> str:
    """The passes that changed the program, each with the program before and after; the report's `simplification`."""
    if not record.changed:
        return "<p>The program is searched as written: no pass simplified it.</p>\n"
    count = record.count
    counts = f"<p>{counted(count.before, 'op')} as written, {count.after} as searched.</p>\n"
    passes = [
        f"<details><summary>{escape(step.pass_)}</summary>\n"
        f"{_side('before', step.before)}{_side('after', step.after)}</details>\n"
        for step in record.passes
    ]
    laws = table(("law", "matches"), record.laws.items()) if record.laws else ""
    return counts + "".join(passes) + laws


def _side(name: str, lines: Sequence[str]) -> str:
    text = "\n".join(lines)
    return f"<p>{name}</p>\n<pre>{escape(text)}</pre>\n"


def threads_html(records: Sequence[ThreadGraphsSummary]) -> str:
    """The ops of each kernel before and after its elementwise chains became thread graphs; the report's `thread_graphs`."""
    rows = [
        (number, " ".join(record.before), " ".join(record.after)) for number, record in enumerate(records, 1) if record.chains
    ]
    if not rows:
        return ""
    return f"<h3>Elementwise chains kept in registers</h3>\n{table(('block graph', 'ops before', 'after'), rows)}"


_NOTE = "<p>Its bound: of programs whose kernels have one product or reduction each, or were searched.</p>"


def rewriting_html(records: Sequence[RewriteSummary]) -> str:
    """The table of the rewritten programs or regions; empty if there is none."""
    return columns(_COLUMNS, records) + _NOTE if records else ""


def rewriting_lines(records: Sequence[RewriteSummary]) -> Iterator[str]:
    """One line for each rewritten program or region."""
    for it in records:
        ops = f"graph substitutions: {counted(it.ops.before, 'op')}, {it.ops.after} rewritten"
        as_written = f"{it.as_written_us:.1f} µs as written"
        if it.rewritten_us is None:
            yield f"{ops}; not searched: {as_written}, the lower bound is {it.lower_bound_us:.1f} µs"
        else:
            weights = f"{counted(len(it.folded), 'tensor')} of weights computed once, {it.prologue_bytes:,} bytes"
            searched = f"{counted(it.kernels_searched, 'kernel')} searched for the extraction"
            yield f"{ops}; {as_written}, {it.rewritten_us:.1f} µs rewritten (predicted; {weights}; {searched})"


_COLUMNS: Mapping[str, Callable[[RewriteSummary], object]] = {
    "ops": lambda it: it.ops.before,
    "rewritten": lambda it: it.ops.after,
    "joined weights": lambda it: len(it.folded),
    "bytes": lambda it: f"{it.prologue_bytes:,}",
    "as written, µs": lambda it: f"{it.as_written_us:.1f}",
    "rewritten, µs": lambda it: "not searched" if it.rewritten_us is None else f"{it.rewritten_us:.1f}",
    "lower bound, µs": lambda it: f"{it.lower_bound_us:.1f}",
    "extracted, µs": lambda it: f"{it.extracted_us:.1f}",
    "its bound, µs": lambda it: f"{it.extracted_bound_us:.1f}",
    "kernels searched": lambda it: it.kernels_searched,
    "laws": lambda it: ", ".join(it.laws),
    "seconds": lambda it: f"{it.seconds:.1f}",
}
