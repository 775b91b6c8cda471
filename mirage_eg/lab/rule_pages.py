"""Tables of experiments with laws: impact, ablation and comparison (`mirage_eg.lab.bench`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mirage_eg.ir.plurals import counted
from mirage_eg.report.bars import Bar, bars
from mirage_eg.report.tables import table


def change(before: float | int | None, after: float | int | None, digits: int = 0) -> str:
    """A figure before and after, as one cell: "269 → 357", or one number where both are equal."""
    old, new = (figure(value, digits) for value in (before, after))
    return old if old == new else f"{old} → {new}"


def figure(value: float | int | None, digits: int) -> str:
    """A figure with separators of thousands; a dash where there is none."""
    return "–" if value is None else f"{value:,.{digits}f}"


IMPACT_HEAD = ("program", "e-nodes", "ms", "visited", "structures", "newly found", "lost", "best predicted µs")


def impact_rows(impact: Any) -> list[tuple[str, ...]]:
    """A row for each program: without the file → with it."""
    return [
        (
            row.program,
            change(row.without.nodes, row.with_.nodes),
            change(row.without.milliseconds, row.with_.milliseconds),
            change(row.without.visited, row.with_.visited),
            change(row.without.structures, row.with_.structures),
            f"{row.new_structures:,}{incomplete(row.without, row.with_)}",
            f"{len(row.lost):,}{incomplete(row.without, row.with_)}",
            change(row.best_us_without, row.best_us_with, 1),
        )
        for row in impact.programs
    ]


def incomplete(*sides: Any) -> str:
    """A mark where a limit ended one of the searches or cut one of their e-graphs."""
    cut = any(side.cut for side in sides)
    return " (cut)" if cut else "" if all(side.complete for side in sides) else " (incomplete)"


LAW_HEAD = ("law", "place", "program", "matches", "structures only with it")


def law_rows(impact: Any) -> list[tuple[str, ...]]:
    """A row for each law and program."""
    return [
        (law.law, law.place, row.program, f"{law.matches:,}", f"{law.structures:,}")
        for row in impact.programs
        for law in row.laws
    ]


FOUND_HEAD = ("program", "new µGraph", "predicted µs", "verified", "proved by")


def _ideas(row: Any) -> list[list[Any]]:
    """The new µGraphs of a program by idea, cheapest first: the same ops by the same laws of the file, under any loop and
    split."""
    ideas: dict[object, list[Any]] = {}
    for new in row.found:
        ops = (line.split()[1] for line in new.steps)
        what = sorted(op for op in ops if op not in ("load", "sum") and not op.startswith("accum_"))
        ideas.setdefault((tuple(what), new.only_with), []).append(new)
    return [*ideas.values()]


def _also(alike: list[Any]) -> str:
    return f" (and {len(alike)} alike)" if alike else ""


def found_rows(impact: Any, most: int) -> list[tuple[str, ...]]:
    """The cheapest new µGraphs of each program; one idea is one row."""
    return [
        (row.program, first.structure + _also(alike), figure(first.us, 1), first.verdict, ", ".join(first.proof) or "–")
        for row in impact.programs
        for first, *alike in _ideas(row)[:most]
    ]


_COLOURS = ("bar", "floor", "epilogue", "once", "library", "bad")  # of the laws, in turn
_BARS, _LONGEST = 16, 72  # ideas of a picture, and letters of one


def impact_pictures(impact: Any) -> dict[str, str]:
    """For each program with new µGraphs their predicted times as SVG: a bar for each idea, coloured by the laws it needs."""
    pictures = {}
    for row in impact.programs:
        ideas = [idea for idea in _ideas(row) if idea[0].us is not None][:_BARS]
        laws = [" and ".join(first.only_with) or "any of several laws" for first, *_ in ideas]
        colours = dict(zip(dict.fromkeys(laws), _COLOURS, strict=False))  # the cheapest; further laws have the colour of others
        shown = [
            Bar(_shortened(_term(first.steps)) + _also(alike), first.us, colours.get(law, "other"))
            for (first, *alike), law in zip(ideas, laws, strict=True)
        ]
        marks = [] if row.best_us_without is None else [("best without the file", row.best_us_without)]
        title = f"{row.program}: new µGraphs with {Path(impact.file).name}, predicted µs on {impact.device}"
        if shown:
            pictures[row.program] = bars(shown, marks, title, legend={colour: law for law, colour in colours.items()})
    return pictures


def _term(steps: Sequence[str]) -> str:
    """The last step of a structure as a term of the inputs."""
    terms: dict[str, str] = {}
    number = ""
    for line in steps:
        number, op, *operands = line.split()
        known = [terms.get(operand, operand) for operand in operands]
        if op == "load":
            terms[number] = f"partial {known[0]}" if known[0].isdigit() else known[0]
        else:
            terms[number] = known[0] if op.startswith("accum_") else f"{op}({', '.join(known)})"
    return terms.get(number, "")


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def impact_html(impact: Any) -> str:
    """The programs, the laws and the cheapest new µGraphs as tables and pictures."""
    parts = [table(IMPACT_HEAD, impact_rows(impact)), table(LAW_HEAD, law_rows(impact))]
    return "".join([*parts, *impact_pictures(impact).values(), table(FOUND_HEAD, found_rows(impact, 8))])


ABLATION_HEAD = ("law left out", "program", "matches", "lost", "gained", "visited", "e-nodes", "ms", "best predicted µs")


def ablation_rows(ablation: Any, changed_only: bool = True) -> list[tuple[str, ...]]:
    """A row for each program with all laws, and for each law and program: figures with all laws → without the law."""
    rows: list[tuple[str, ...]] = []
    for row in ablation.programs:
        full = row.baseline
        figures = (f"{full.visited:,}", f"{full.nodes:,}", f"{full.milliseconds:.0f}", figure(row.best_us, 1))
        rows.append((f"none ({counted(full.structures, 'structure')})", row.program, "", "", "", *figures))
        for law in row.laws:
            if changed_only and not law.changes_structures:
                continue
            counts = (f"{law.matches:,}", f"{law.lost:,}", f"{law.gained:,}")
            sizes = (change(full.visited, law.visited), change(full.nodes, law.nodes), f"{law.milliseconds:.0f}")
            rows.append((law.law, row.program, *counts, *sizes, change(row.best_us, law.best_us, 1)))
    return rows


def ablation_html(ablation: Any) -> str:
    """The laws that change something, and the names of the others."""
    rest = ", ".join(ablation.without_change())
    return table(ABLATION_HEAD, ablation_rows(ablation)) + (f"<p>Without change: {rest}</p>" if rest else "")


COMPARISON_HEAD = ("program", "e-nodes", "visited", "structures", "only in A", "only in B", "s", "best predicted µs")


def comparison_rows(comparison: Any) -> list[tuple[str, ...]]:
    """A row for each program: A | B."""

    def both(a: float | int | None, b: float | int | None, digits: int = 0) -> str:
        return f"{figure(a, digits)} | {figure(b, digits)}"

    return [
        (
            row.program,
            both(row.a.nodes, row.b.nodes),
            both(row.a.visited, row.b.visited),
            both(row.a.structures, row.b.structures),
            f"{len(row.only_a):,}{incomplete(row.a)}",
            f"{len(row.only_b):,}{incomplete(row.b)}",
            both(row.a.seconds, row.b.seconds, 2),
            both(row.best_us_a, row.best_us_b, 1),
        )
        for row in comparison.programs
    ]


def comparison_html(comparison: Any) -> str:
    """The figures of both rule sets, and examples of structures of only one."""
    only = [
        (row.program, name, entry)
        for row in comparison.programs
        for name, entries in ((comparison.a, row.only_a), (comparison.b, row.only_b))
        for entry in entries[:5]
    ]
    head = f"<p>A: {comparison.a}; B: {comparison.b}</p>"
    return head + table(COMPARISON_HEAD, comparison_rows(comparison)) + table(("program", "only in", "structure"), only)
