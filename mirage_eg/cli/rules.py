"""`mirage-eg rules list | check`: list the laws, check a rule file for soundness.

Experiments are in `rule_experiments`, finding and dropping laws in `synthesis`.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirage_eg.cli.rule_experiments import DomainOption, ablate, compare, impact
from mirage_eg.cli.synthesis import minimize, synthesize
from mirage_eg.cli.terminal import JsonOption, as_job, json_line, print_law, print_table, progress
from mirage_eg.egraph.rule_files import DOMAINS, LAW_DOMAINS
from mirage_eg.frontend.load import load_program
from mirage_eg.ir.errors import RuleError
from mirage_eg.ir.plurals import counted
from mirage_eg.pipeline.run.json_values import plain
from mirage_eg.pipeline.run.options import Options

if TYPE_CHECKING:
    from mirage_eg.egraph.soundness.check_file import Report

app = typer.Typer(help="Laws: list them, check a rule file, measure what laws are worth, find laws.", no_args_is_help=True)
app.command("impact")(impact)
app.command("ablate")(ablate)
app.command("compare")(compare)
app.command("minimize")(minimize)
app.command("synthesize")(synthesize)

RulesOption = Annotated[list[str] | None, typer.Option(metavar="PATH", help="More rules: a file or folder.")]


@app.command("list")
@as_job
def list_rules(
    rules: RulesOption = None,
    domain: Annotated[str, typer.Option(help=f"{', '.join(LAW_DOMAINS)}.")] = "indexed",
    laws: Annotated[bool, typer.Option("--laws", help="Print every law.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Print the theories of a domain, and with --laws every law."""

    from mirage_eg.egraph.rule_files import packaged_files, theory_name
    from mirage_eg.egraph.rulebook import load_rules

    loaded = load_rules(domain, rules or ())
    on = {theory.path for theory in loaded.theories}
    off = [theory_name(file.path) for file in packaged_files(domain) if file.path not in on]
    theories = [*loaded.theories, *(theory for theory in load_rules(domain, off).theories if theory.path not in on)]
    if as_json:
        print(json_line([plain(theory) | {"sha256": theory.sha256, "on": theory.path in on} for theory in theories]))
        return 0
    rows = ((it.path, str(len(it.laws)), "on" if it.path in on else "off", it.sha256[:12]) for it in theories)
    print_table(("theory", "laws", "by default", "sha256"), rows)
    for law in (law for theory in theories if laws for law in theory.laws):
        print_law(f"{law.place}: {law.text}")
    return 0


@app.command("check")
@as_job
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Rule files, or folders of them.", show_default=False)],
    domain: DomainOption = None,
    examples: Annotated[
        int | None, typer.Option(help="Random assignments for each law; 1,500, or fewer for many laws.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of every random choice.")] = 0,
    ops: Annotated[list[Path] | None, typer.Option(metavar="FILE.py", help="A Python file that registers ops.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Test every law in the model of its domain, lint, measure growth; exit code 0 sound, 1 refuted or lint error, 2 bad file
    or limit hit. Laws of whole tensors (`; domain: tensor`) are proved for all shapes where the normal form decides them."""

    from mirage_eg.egraph.rule_files import rule_files
    from mirage_eg.egraph.soundness.check_law import Truth
    from mirage_eg.frontend.workloads import paper_programs
    from mirage_eg.verify.tensor_laws import check_rule_file

    Options(seed=seed, domain=domain if domain in DOMAINS else DOMAINS[0])  # its argument checks
    if domain is not None and domain not in LAW_DOMAINS:
        raise RuleError(f"--domain: got {domain!r}, wanted one of {', '.join(LAW_DOMAINS)}")
    if examples is not None and examples < 10:
        raise RuleError(f"--examples: got {examples}, wanted at least 10")
    for file in ops or ():
        load_program(str(file))
    code = 0
    for file in (file for path in files for file in rule_files(path)):
        with progress() as observer:
            report = check_rule_file(
                file, paper_programs(), domain, examples, seed, lambda stage, done, total: observer(stage, done, total, "")
            )
        if as_json:
            print(json_line(plain(report) | {"sound": report.sound}))
        else:
            _print_report(report)
        code = max(code, 0 if report.sound else 2 if any(it.truth is Truth.UNTESTED for it in report.findings) else 1)
    return code


def _print_report(report: "Report") -> None:
    from mirage_eg.egraph.soundness.check_law import Truth

    kinds = Counter(finding.truth for finding in report.findings)
    failed = [kind for kind in (Truth.ILL_TYPED, Truth.UNTESTED) if kinds[kind]]
    counts = ", ".join(f"{kinds[kind]} {kind}" for kind in (Truth.REFUTED, *failed))
    print_law(f"{report.path}: {counted(len(report.findings), 'law')} of the {report.domain} domain, {counts}")
    for finding in report.findings:
        name = "" if finding.law.name == finding.law.place else f"{finding.law.name}: "
        print_law(f"  {finding.law.place}: {name}{finding.verdict}")
        for line in str(finding.counterexample).splitlines() if finding.counterexample else ():
            print_law(f"      {line}")
    for lint in report.lints:
        print_law(f"  {lint.place}: {lint.level}: {lint.message}")
    if report.growth:
        rows = (
            (a.workload, *map(str, (a.nodes, b.nodes, a.classes, b.classes)), f"{a.milliseconds:.0f}", f"{b.milliseconds:.0f}")
            for a, b in report.growth
        )
        print_table(("workload", "e-nodes", "with the file", "classes", "with the file", "ms", "with the file"), rows)
    if report.unmeasured is not None:
        print_law(f"  growth was not measured completely: {report.unmeasured}")
    print_law(
        "sound" if report.sound else "not sound" if failed or kinds[Truth.REFUTED] else "true, but not fit for the search"
    )
