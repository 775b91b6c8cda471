"""`mirage-eg rules impact | ablate | compare`: what laws are worth, measured by searches of programs."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirage_eg.cli.arguments import ProgramsArgument, load_programs, with_options
from mirage_eg.cli.terminal import JsonOption, as_job, json_line, print_law, print_line, print_table, progress
from mirage_eg.egraph.rule_files import LAW_DOMAINS, TENSOR
from mirage_eg.frontend.workloads import PAPER
from mirage_eg.ir import serialize
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.plurals import counted
from mirage_eg.pipeline.run.json_values import plain
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.output_files import check_writable, write_atomically

if TYPE_CHECKING:
    from mirage_eg.lab.bench.rule_impact import Impact
    from mirage_eg.lab.bench.search_programs import SearchProgram
    from mirage_eg.search.structure_search import SearchLimits

_SATURATION = ("egraph_nodes", "egraph_iterations", "egraph_seconds", "egraph_backoff", "allow_cut")
_MOST_LAWS = 40  # of a file whose laws without matches are printed, too
_SHOWN = 5  # new µGraphs of a program in the table
DomainOption = Annotated[
    str | None, typer.Option(help=f"Read the file in this domain: {', '.join(LAW_DOMAINS)}.", show_default=False)
]


@with_options(Options, "batch", "max_block_ops", "target", "gpu", *_SATURATION)
@as_job
def impact(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A rule file.", show_default=False)],
    options: Options,
    programs: ProgramsArgument = None,
    domain: DomainOption = None,
    top: Annotated[int, typer.Option(help="New structures of a program that become µGraphs, the cheapest.")] = 64,
    proofs: Annotated[int, typer.Option(help="New µGraphs of a program that are proved, the cheapest.")] = 8,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write impact.json, a picture of each program, and each new µGraph as JSON and SVG."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Search programs with FILE and without it: matches of each law, and the µGraphs that only FILE makes findable.

    Each new µGraph is priced and tested, the cheapest are proved where the laws can; `structures only with it` counts what is
    lost if one law of FILE alone is left out.
    """

    from mirage_eg.lab.bench.rule_impact import part_impacts
    from mirage_eg.lab.bench.tensor_rules import is_tensor_rules

    if top < 1:
        raise OptionError(f"--top: got {top}, wanted 1 or more")
    if proofs < 0:
        raise OptionError(f"--proofs: got {proofs}, wanted 0 or more")
    if domain is not None and domain != TENSOR:
        replace(options, domain=domain)  # its argument checks
    if out is not None:
        check_writable(out)
    if domain == TENSOR or (domain is None and is_tensor_rules(str(file))):
        return _tensor_comparison("impact", (), (str(file),), programs, options, out, as_json)
    parts = _parts(programs, options)
    with progress() as observer:
        result = part_impacts(
            file,
            parts,
            domain,
            _limits(options),
            options.device_record,
            lambda stage, done, total: observer(stage, done, total, ""),
            (top, proofs),
        )
    if out is not None:
        _write_impact(result, out)
    if as_json:
        print(json_line(_impact_data(result)))
        return 0
    _print_impact(result, top, proofs)
    if out is not None:
        print_line(f"µGraphs: {out}")
    return 0


def _tensor_comparison(
    what: str,
    a: tuple[str, ...],
    b: tuple[str, ...],
    programs: Sequence[str] | None,
    options: Options,
    out: Path | None,
    as_json: bool,
) -> int:
    """Programs rewritten with two sets of laws of whole tensors; the laws of B with their matches."""
    from mirage_eg.lab.bench.tensor_rules import tensor_comparison

    graphs = load_programs(programs, PAPER, options.batch)
    with progress() as observer:
        result = tensor_comparison(
            graphs, a, b, options.device_record, lambda stage, done, total: observer(stage, done, total, "")
        )
    if out is not None:
        write_atomically(out / f"{what}.json", json.dumps(plain(result), indent=2, ensure_ascii=False) + "\n")
    if as_json:
        print(json_line(plain(result)))
        return 0
    head = ("program", "ops, A", "B", "predicted µs, A", "B", "gain", "e-nodes, A", "B")
    rows = [
        (
            *(row.program, str(row.a.ops), str(row.b.ops), f"{row.a.us:.1f}", f"{row.b.us:.1f}"),
            *(f"{row.a.us / row.b.us:.2f}" if row.b.us else "–", f"{row.a.enodes:,}", f"{row.b.enodes:,}"),
        )
        for row in result.programs
    ]
    _print_table(head, rows, f"A: {result.a} | B: {result.b}; whole programs rewritten, µs on {result.device}")
    for law in result.laws:
        count = result.matches(law)
        if count or len(result.laws) <= _MOST_LAWS:
            said = f"not used: {law.unused}" if law.unused else counted(count, "match", "matches")
            print_law(f"law {law.name} ({law.place}): {said}")
    for row in result.programs:
        _print_cut(row.program, filter(None, (row.a.stopped, row.b.stopped)))
    return 0


def _parts(programs: Sequence[str] | None, options: Options) -> "list[SearchProgram]":
    from mirage_eg.lab.bench.search_programs import search_programs

    graphs = load_programs(programs, PAPER, options.batch)
    parts = [part for name, graph in graphs.items() for part in search_programs(name, graph, options.max_block_ops)]
    segments = Counter((part.name.partition(", segment")[0], part.parted_because) for part in parts if part.parted_because)
    for (name, reason), count in segments.items():
        print(f"note: {name} is searched in {counted(count, 'segment')}: {reason}", file=sys.stderr)
    return parts


def _limits(options: Options) -> "SearchLimits":
    from mirage_eg.egraph.oracle import Limits
    from mirage_eg.pipeline.search_stage import saturation_limits
    from mirage_eg.search.structure_search import SearchLimits

    return SearchLimits(options.max_block_ops, saturation=saturation_limits(options, Limits()))


def _impact_data(result: "Impact") -> dict[str, Any]:
    """The result in JSON's types, µGraphs in the format of `show` and `verify`."""
    bare = [replace(row, found=tuple(replace(new, graph=None) for new in row.found)) for row in result.programs]
    data: dict[str, Any] = plain(replace(result, programs=tuple(bare)))
    for row, written in zip(result.programs, data["programs"], strict=True):
        for new, entry in zip(row.found, written["found"], strict=True):
            entry["graph"] = None if new.graph is None else json.loads(serialize.to_json(new.graph))
    return data


def _write_impact(result: "Impact", out: Path) -> None:
    from mirage_eg.lab.rule_pages import impact_pictures
    from mirage_eg.report.draw import to_svg

    texts, pictures = (
        {"impact.json": json.dumps(_impact_data(result), indent=2, ensure_ascii=False) + "\n"},
        impact_pictures(result),
    )
    for row in result.programs:
        name = row.program.partition(":")[0].replace(", ", "-").replace(" ", "")
        if row.program in pictures:
            texts[f"{name}.svg"] = pictures[row.program]
        for rank, new in enumerate(row.found, 1):
            if new.graph is not None:
                texts[f"{name}-{rank:02}.json"] = serialize.to_json(new.graph)
                texts[f"{name}-{rank:02}.svg"] = to_svg(new.graph)
    for path, text in texts.items():
        write_atomically(out / path, text)


def _print_impact(result: "Impact", top: int, proofs: int) -> None:
    from mirage_eg.lab import rule_pages

    title = f"{result.file} in the {result.domain} domain, {result.max_block_ops} ops: without → with; µs on {result.device}"
    _print_table(rule_pages.IMPACT_HEAD, rule_pages.impact_rows(result), title)
    _print_table(rule_pages.LAW_HEAD, rule_pages.law_rows(result), "the laws of the file")
    found = rule_pages.found_rows(result, _SHOWN)
    if found:
        _print_table(rule_pages.FOUND_HEAD, found, f"newly found, the cheapest {_SHOWN} of each program; --out writes all")
    for row in result.programs:
        none = "" if any(law.matches for law in row.laws) else "; no law of the file matches"
        count = counted(row.new_structures, "structure")
        best = " → ".join(rule_pages.figure(us, 1) for us in (row.best_us_without, row.best_us_with))
        print_law(f"{row.program}: newly found: {count}; best predicted µs {best}{none}")
        if (rest := row.left_out(top, proofs)) is not None:
            print_law(rest)
        for entry in sorted(row.lost, key=len)[:3]:
            print_law(f"{row.program}: lost: {entry}")
        _print_cut(row.program, (*row.without.cut, *row.with_.cut))
    for law in result.never_matched():
        print_law(f"warning: {law.place}: law {law.law!r} matches in none of these programs")


def _print_cut(program: str, cut: Iterable[str]) -> None:
    for limit in dict.fromkeys(cut):
        print_law(f"warning: {program}: saturation {limit}; the e-graph may prune too much")


def _print_table(head: Sequence[str], rows: Iterable[Sequence[str]], title: str) -> None:
    print_table(head, rows, title, widths={head[0]: 8})


@with_options(Options, "batch", "domain", "max_block_ops", "target", "gpu", "jobs", "rules", "without", *_SATURATION)
@as_job
def ablate(
    options: Options,
    programs: ProgramsArgument = None,
    law: Annotated[list[str] | None, typer.Option(metavar="LAW", help="Leave out these laws only.", show_default=False)] = None,
    every: Annotated[bool, typer.Option("--all", help="Print also the laws that change nothing.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Leave each law out in turn: structures lost and gained, states, e-nodes, time, best predicted µs.

    Laws on axes and subexpressions stay: they belong to the declarations of ops. A law that does not match changes nothing.
    """

    from mirage_eg.egraph.rulebook import load_rules
    from mirage_eg.lab import rule_pages
    from mirage_eg.lab.bench.rule_ablation import ablation

    rulebook = load_rules(options.domain, options.rules, options.without)
    _check_laws(law or (), [entry.name for entry in rulebook.laws])
    parts = _parts(programs, options)
    with progress() as observer:
        result = ablation(
            parts,
            rulebook,
            _limits(options),
            law,
            options.device_record,
            options.jobs,
            lambda program, done, total: observer(f"ablate {program}", done, total, ""),
        )
    if as_json:
        print(json_line(result))
        return 0
    title = f"laws left out one at a time, {result.domain} domain, {result.max_block_ops} ops: with all laws → without one"
    _print_table(rule_pages.ABLATION_HEAD, rule_pages.ablation_rows(result, not every), title)
    rest = result.without_change()
    count = len(result.programs[0].laws)
    print_law(f"{len(rest)} of {count} laws change no structure of these programs" + ("" if every else "; --all prints them"))
    for row in result.programs:
        _print_cut(row.program, row.baseline.cut)
    return 0


def _check_laws(laws: Iterable[str], known: Sequence[str]) -> None:
    from difflib import get_close_matches

    for name in laws:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "`mirage-eg rules list --laws` prints the laws"
            raise OptionError(f"--law: got {name!r}, wanted the name of a loaded law; {hint}")


@with_options(Options, "batch", "max_block_ops", "target", "gpu", *_SATURATION)
@as_job
def compare(
    a: Annotated[
        str,
        typer.Argument(metavar="A", help="indexed, abstract, tensor, a theory, a rule file or a folder.", show_default=False),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The other rule set.", show_default=False)],
    options: Options,
    programs: ProgramsArgument = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="THEORY|LAW", help="Leave a theory or a law out of B.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Search programs with two rule sets, side by side: states, e-nodes, structures of only one, seconds, best predicted µs.

    A file or folder is added to the packaged laws of its domain, or stands alone if it declares the language itself.
    """

    from mirage_eg.lab import rule_pages
    from mirage_eg.lab.bench.rule_comparison import comparison, rule_set
    from mirage_eg.lab.bench.tensor_rules import is_tensor_rules, rule_set_of

    if is_tensor_rules(a) and is_tensor_rules(b) and not without:
        return _tensor_comparison("compare", rule_set_of(a), rule_set_of(b), programs, options, None, as_json)
    name = b if not without else f"{b} without {', '.join(without)}"
    sets = (a, rule_set(a)), (name, rule_set(b, without or ()))
    parts = _parts(programs, options)
    with progress() as observer:
        result = comparison(
            parts, *sets, _limits(options), options.device_record, lambda stage, done, total: observer(stage, done, total, "")
        )
    if as_json:
        print(json_line(result))
        return 0
    title = f"A: {result.a} | B: {result.b}; {result.max_block_ops} ops, e-nodes of all splits, µs on {result.device}"
    _print_table(rule_pages.COMPARISON_HEAD, rule_pages.comparison_rows(result), title)
    for row in result.programs:
        for word, entries in (("A", row.only_a), ("B", row.only_b)):
            for entry in sorted(entries, key=len)[:3]:
                print_law(f"{row.program}: only in {word}: {entry}")
        _print_cut(row.program, (*row.a.cut, *row.b.cut))
    return 0
