"""`mirage-eg rules list | check | impact`: list the laws, check a rule file for soundness, measure its impact."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from mirage_eg.cli.arguments import ProgramsArgument, load_programs
from mirage_eg.cli.terminal import Job, JsonOption, console, json_line, progress
from mirage_eg.egraph.rule_files import DOMAINS
from mirage_eg.frontend.load import load_program
from mirage_eg.frontend.workloads import PAPER
from mirage_eg.ir.errors import RuleError
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.run_report import plain

if TYPE_CHECKING:
    from mirage_eg.egraph.soundness.check_file import Report

app = typer.Typer(help="Laws: list them, check a rule file, measure its impact.", no_args_is_help=True)

DomainOption = Annotated[
    str | None, typer.Option(help=f"Read the file in this domain: {' or '.join(DOMAINS)}.", show_default=False)
]
RulesOption = Annotated[list[str] | None, typer.Option(metavar="PATH", help="More rules: a file or folder.")]


@app.command("list")
def list_rules(
    rules: RulesOption = None,
    domain: Annotated[str, typer.Option(help=f"{' or '.join(DOMAINS)}.")] = "indexed",
    laws: Annotated[bool, typer.Option("--laws", help="Print every law.")] = False,
    as_json: JsonOption = False,
) -> Job:
    """Print the theories of a domain, and with --laws every law."""

    def job() -> int:
        from mirage_eg.egraph.rule_files import header, packaged_files, theory_name
        from mirage_eg.egraph.rulebook import load_rules

        options = Options(domain=domain, rules=tuple(rules or ()))
        off = [theory_name(file.path) for file in packaged_files(domain) if header(file.text, "default") == "off"]
        loaded = load_rules(domain, options.rules)
        on = {theory.path for theory in loaded.theories}
        theories = [*loaded.theories, *(theory for theory in load_rules(domain, off).theories if theory.path not in on)]
        if as_json:
            print(json_line([plain(theory) | {"sha256": theory.sha256, "on": theory.path in on} for theory in theories]))
            return 0
        table = Table("theory", "laws", "by default", "sha256")
        for theory in theories:
            table.add_row(theory.path, str(len(theory.laws)), "on" if theory.path in on else "off", theory.sha256[:12])
        console().print(table)
        for law in (law for theory in theories if laws for law in theory.laws):
            console().print(f"{law.place}: {law.text}", soft_wrap=True, highlight=False, markup=False)
        return 0

    return job


@app.command("check")
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Rule files, or folders of them.", show_default=False)],
    domain: DomainOption = None,
    examples: Annotated[
        int | None, typer.Option(help="Random assignments for each law; 1,500, or fewer for many laws.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of every random choice.")] = 0,
    ops: Annotated[list[Path] | None, typer.Option(metavar="FILE.py", help="A Python file that registers ops.")] = None,
    as_json: JsonOption = False,
) -> Job:
    """Test every law in the model of its domain, lint, measure growth; exit code 0 sound, 1 refuted or lint error, 2 bad file
    or limit hit."""

    def job() -> int:
        from mirage_eg.egraph.rule_files import rule_files
        from mirage_eg.egraph.soundness.check_file import check_file

        Options(seed=seed, domain=domain or DOMAINS[0])  # its argument checks
        if examples is not None and examples < 10:
            raise RuleError(f"--examples: got {examples}, wanted at least 10")
        for file in ops or ():
            load_program(str(file))
        code = 0
        for file in (file for path in files for file in rule_files(path)):
            with progress() as observer:
                report = check_file(
                    file, domain, examples, seed, on_progress=lambda stage, done, total: observer(stage, done, total, "")
                )
            if as_json:
                print(json_line(plain(report) | {"sound": report.sound}))
            else:
                _print_report(report)
            code = max(code, 0 if report.sound else 1)
        return code

    return job


def _print_report(report: "Report") -> None:
    from mirage_eg.egraph.soundness.check_law import Truth

    def write(text: str) -> None:
        out.print(text, soft_wrap=True, highlight=False, markup=False)

    out = console()
    refuted = [finding for finding in report.findings if finding.truth is Truth.REFUTED]
    write(f"{report.path}: {len(report.findings)} laws of the {report.domain} domain, {len(refuted)} refuted")
    for finding in report.findings:
        name = "" if finding.law.name == finding.law.place else f"{finding.law.name}: "
        write(f"  {finding.law.place}: {name}{finding.truth} ({finding.trials} assignments)")
        for line in str(finding.counterexample).splitlines() if finding.counterexample else ():
            write(f"      {line}")
    for lint in report.lints:
        write(f"  {lint.place}: {lint.level}: {lint.message}")
    if report.growth:
        table = Table("workload", "e-nodes", "with the file", "classes", "with the file", "ms", "with the file")
        for before, after in report.growth:
            table.add_row(
                before.workload,
                *map(str, (before.nodes, after.nodes, before.classes, after.classes)),
                f"{before.milliseconds:.0f}",
                f"{after.milliseconds:.0f}",
            )
        out.print(table)
    if report.unmeasured is not None:
        write(f"  growth was not measured completely: {report.unmeasured}")
    write("sound" if report.sound else "not sound" if refuted else "true, but not fit for the search")


@app.command("impact")
def impact(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A rule file.", show_default=False)],
    programs: ProgramsArgument = None,
    domain: DomainOption = None,
    max_block_ops: Annotated[int, typer.Option(help="Most ops in a block graph.")] = 16,
    as_json: JsonOption = False,
) -> Job:
    """Search programs with FILE and without: sizes, visited states, and the structures that are newly found or lost."""

    def job() -> int:
        from mirage_eg.bench.rule_impact import impact as run
        from mirage_eg.bench.search_programs import search_programs
        from mirage_eg.egraph.rule_files import domain_of, read_files
        from mirage_eg.egraph.rulebook import load_rules
        from mirage_eg.search.structure_search import SearchLimits

        chosen = domain or next((named for entry in read_files(file) if (named := domain_of(entry))), DOMAINS[0])
        Options(domain=chosen, max_block_ops=max_block_ops)  # its argument checks
        rulebooks = load_rules(chosen), load_rules(chosen, [file])
        graphs = load_programs(programs, PAPER)
        parts = [part for name, graph in graphs.items() for part in search_programs(name, graph, max_block_ops)]
        with progress() as observer:
            rows = run(
                *rulebooks, parts, SearchLimits(max_block_ops), lambda stage, done, total: observer(stage, done, total, "")
            )
        if as_json:
            print(json_line({"file": file, "domain": chosen, "max_block_ops": max_block_ops, "workloads": rows}))
            return 0
        table = Table("workload", "e-nodes", "ms", "visited", "structures", "newly found", "lost", title_justify="left")
        table.title = f"{file} in the {chosen} domain, {max_block_ops} ops: without → with"
        for row in rows:
            old, new = row.without, row.with_
            pairs = ((old.nodes, new.nodes), (round(old.milliseconds), round(new.milliseconds)), (old.visited, new.visited))
            cells = [f"{x:,} → {y:,}" for x, y in (*pairs, (old.structures, new.structures))]
            limited = "" if old.complete and new.complete else " (incomplete)"
            table.add_row(row.workload, *cells, f"{len(row.found)}{limited}", f"{len(row.lost)}{limited}")
        out = console()
        out.print(table)
        for row in rows:
            for word, entries in (("newly found", row.found), ("lost", row.lost)):
                for entry in sorted(entries, key=len)[:3]:
                    out.print(f"{row.workload}: {word}: {entry}", soft_wrap=True, highlight=False, markup=False)
        return 0

    return job
