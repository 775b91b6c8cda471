"""`mirage-eg bench laws`: a folder of pairs of programs, each proved, refuted or undecided."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirage_eg.cli.terminal import JsonOption, append_line, as_job, json_line, print_table, progress
from mirage_eg.ir.errors import OptionError

if TYPE_CHECKING:
    from mirage_eg.lab.bench.laws import LawCounts, LawRow

_HEAD = ("pairs of", "pairs", "decided", "proved for all sizes", "and all ranks", "at a size", "undecided", "wrong")


@as_job
def bench_laws(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME…", help="Words in names of files or pairs; all pairs without.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="FOLDER", help="Python files with PAIRS = [mi.LawPair(…)], or one file.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.jsonl", help="Append one JSON line a pair.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Decide pairs of programs at their ranks: for all sizes, at a size, or not at all; exit code 1 if a verdict is wrong.

    A pair is wrong if a verdict is not what it expects (equal, or not equal), or if its broken twin is equal.
    """

    from mirage_eg.lab.bench.laws import counts, law_rows, pairs_of

    if folder is None:
        raise OptionError("--dir: wanted a folder of pairs, as benchmarks/rewrites of the repository")
    pairs = [it for it in pairs_of(folder) if not names or any(word in f"{it[0]} {it[1].name}" for word in names)]
    if not pairs:
        raise OptionError(f"got {', '.join(names or ())}, wanted words in the name of a file or pair of {folder}")
    rows = []
    with progress() as observe:
        observe("laws", 0, len(pairs), pairs[0][1].name)
        for row in law_rows(pairs):
            rows.append(row)
            if out is not None:
                append_line(out, json_line(row))
            if not as_json:
                print(_line(row), flush=True)
            observe("laws", len(rows), len(pairs), row.verdict.pair)
    if as_json:
        print(json_line({"rows": rows, "counts": counts(rows)}))
    else:
        print_table((*_HEAD, "twins", "refuted", "s"), map(_cells, counts(rows)))
    return int(any(row.verdict.wrong for row in rows))


def _cells(it: "LawCounts") -> tuple[str, ...]:
    numbers = (it.pairs, it.decided, it.all_sizes, it.all_ranks, it.at_a_size, it.undecided, it.wrong)
    return it.file, *map(str, (*numbers, it.twins, it.twins_refuted)), f"{it.seconds:.1f}"


def _line(row: "LawRow") -> str:
    """What is known of a pair: the weakest verdict of its ranks, and what contradicts the pair."""
    verdict = row.verdict
    weakest = next(it for it in verdict.ranks if it.outcome is verdict.outcome)
    ranks = f" (at rank {weakest.rank})" if len({it.outcome for it in verdict.ranks}) > 1 else ""
    by = f"{', by ' if row.decided else '; '}{weakest.by}" if weakest.by else ""
    known = f"{verdict.outcome}{ranks}{by}"
    every = f"; for all ranks: {verdict.all_ranks}" if verdict.all_ranks else ""
    wrong = "".join(
        f"; WRONG: {it.candidate} at rank {it.rank}: {it.outcome}" for it in (*verdict.ranks, *verdict.twins) if not it.right
    )
    open_twins = "".join(
        f"; twin at rank {it.rank}: {it.outcome}" for it in verdict.twins if it.right and it.outcome != "not equal"
    )
    return f"{row.file}: {verdict.pair}: {known}{every}{wrong}{open_twins}"
