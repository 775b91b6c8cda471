"""The simplifications of a program, and the elementwise chains that became thread graphs, before and after, for the report."""

from collections.abc import Sequence
from html import escape

from mirage_eg.ir.plurals import counted
from mirage_eg.pipeline.run.report_sections import SimplificationSummary, ThreadGraphsSummary
from mirage_eg.report.tables import table


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
