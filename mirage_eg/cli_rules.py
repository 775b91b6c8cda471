"""`mirage-eg rules list | check | impact`: which laws there are, whether a file of laws is sound, and what it changes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from mirage_eg.ir.errors import RuleError
from mirage_eg.options import DOMAINS, Options
from mirage_eg.terminal import Job, JsonOption, console, json_line, progress, record

if TYPE_CHECKING:
    from mirage_eg.rules_check import Report

app = typer.Typer(help="Laws: list them, check a file of them, see what it changes.", no_args_is_help=True)

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
        from mirage_eg.rulebook import header, load_rules, packaged_files, theory_name

        options = Options(domain=domain, rules=tuple(rules or ()))
        off = [theory_name(file.path) for file in packaged_files(domain) if header(file.text, "default") == "off"]
        loaded = load_rules(domain, options.rules)
        everything = load_rules(domain, [*options.rules, *off])
        on = {theory.path for theory in loaded.theories}
        if as_json:
            print(
                json_line(
                    [record(theory) | {"sha256": theory.sha256, "on": theory.path in on} for theory in everything.theories]
                )
            )
            return 0
        table = Table("theory", "laws", "by default", "sha256")
        for theory in everything.theories:
            table.add_row(theory.path, str(len(theory.laws)), "on" if theory.path in on else "off", theory.sha256[:12])
        console().print(table)
        for law in everything.laws if laws else ():
            console().print(f"{law.place}: {law.text}", soft_wrap=True, highlight=False, markup=False)
        return 0

    return job


@app.command("check")
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Rule files.", show_default=False)],
    domain: DomainOption = None,
    examples: Annotated[int, typer.Option(help="Random assignments on which each law is tested.")] = 300,
    seed: Annotated[int, typer.Option(help="Seed of every random choice.")] = 0,
    as_json: JsonOption = False,
) -> Job:
    """Test every law in the model of its domain, lint, measure growth; exit code 0 sound, 1 refuted or lint error, 2 bad file
    or limit hit."""

    def job() -> int:
        from mirage_eg.rules_check import check_file

        Options(seed=seed, domain=domain or DOMAINS[0])  # the same checks as everywhere
        if examples < 10:
            raise RuleError(f"--examples: got {examples}, wanted at least 10")
        code = 0
        for file in files:
            with progress() as observer:
                report = check_file(
                    file, domain, examples, seed, on_progress=lambda stage, done, total: observer(stage, done, total, "")
                )
            if as_json:
                print(json_line(record(report) | {"sound": report.sound}))
            else:
                _print_report(report)
            code = max(code, 0 if report.sound else 1)
        return code

    return job


def _print_report(report: "Report") -> None:
    from mirage_eg.soundness import Truth

    def say(text: str) -> None:
        out.print(text, soft_wrap=True, highlight=False, markup=False)

    out = console()
    refuted = [finding for finding in report.findings if finding.truth is Truth.REFUTED]
    say(f"{report.path}: {len(report.findings)} laws of the {report.domain} domain, {len(refuted)} refuted")
    for finding in report.findings:
        name = "" if finding.law.name == finding.law.place else f"{finding.law.name}: "
        say(f"  {finding.law.place}: {name}{finding.truth} ({finding.trials} assignments)")
        for line in str(finding.counterexample).splitlines() if finding.counterexample else ():
            say(f"      {line}")
    for lint in report.lints:
        say(f"  {lint.place}: {lint.level}: {lint.message}")
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
    elif not report.sound:
        say("  growth was not measured, since the file fails already")
    say("sound" if report.sound else "not sound" if refuted else "true, but not fit for the search")
