"""`mirage-eg rules minimize | synthesize`: drop the laws that follow from others, and find laws from ops alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from mirage_eg.cli.terminal import JsonOption, as_job, json_line, print_law, print_line, print_table, progress
from mirage_eg.egraph.rule_files import LAW_DOMAINS
from mirage_eg.frontend.load import register_ops
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.plurals import counted
from mirage_eg.pipeline.run.json_values import plain
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.output_files import check_writable, write_atomically
from mirage_eg.verify.verdict import Observer

if TYPE_CHECKING:
    from mirage_eg.lab.synthesis.progress_file import Begun
    from mirage_eg.lab.synthesis.synthesize import Synthesis

MOST_SHOWN = 5  # refuted, ill-typed and tested candidates each, in the text output
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="FILE.egg", help="Write the rule file here.", show_default=False)
]


def check_rule_file(path: Path | None) -> None:
    """Raise an OptionError unless `path` is a place for a rule file; before the work."""
    if path is None:
        return
    if path.suffix != ".egg":
        raise OptionError(f"--out: got {str(path)!r}, wanted a file that ends in .egg")
    if path.is_dir():
        raise OptionError(f"--out: got the folder {str(path)!r}, wanted a file that ends in .egg")
    check_writable(path.parent)


@as_job
def minimize(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A rule file.", show_default=False)],
    out: OutOption = None,
    domain: Annotated[
        str | None, typer.Option(help=f"Read the file in this domain: {', '.join(LAW_DOMAINS)}.", show_default=False)
    ] = None,
    with_packaged: Annotated[
        bool, typer.Option("--with-packaged", help="Drop what follows from the packaged laws, too.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Print which laws of FILE follow from its other laws, each with its derivation; with --out write the file without them."""

    from mirage_eg.lab.minimize import minimize as run

    if domain is not None and domain not in LAW_DOMAINS:
        raise OptionError(f"--domain: got {domain!r}, wanted one of {', '.join(LAW_DOMAINS)}")
    check_rule_file(out)
    with progress() as observer:
        found = run(file, domain, with_packaged, observer)
    if out is not None:
        write_atomically(out, found.text)
    if as_json:
        print(json_line(plain(found) | {"out": out}))
        return 0

    follow = "follows" if len(found.derived) == 1 else "follow"
    print_law(
        f"{found.path}: {len(found.derived)} of {counted(len(found.derived) + len(found.kept), 'law')} {follow} from others"
    )
    for it in found.derived:
        print_law(f"{it.law.place}: {it.law.name} follows from {', '.join(it.laws) or 'the language'}")
        for line in str(it.chain).splitlines() if it.chain else (f"  {it.missing}",):
            print_law(f"  {line}")
    if out is not None:
        print_law(f"{out}: {counted(len(found.kept), 'law')}")
    return 0


@as_job
def synthesize(
    ops: Annotated[
        str,
        typer.Option(
            "--ops",
            metavar="Exp,Sum,…",
            help="Ops by constructor or name, with commas; `all` in the domain tensor; FILE.py for the ops that it registers.",
            show_default=False,
        ),
    ],
    out: OutOption = None,
    size: Annotated[int, typer.Option("--size", help="Most ops on a side of a law.")] = 3,
    domain: Annotated[
        str, typer.Option(help="The language of the terms: indexed, or tensor (kernel-level ops, proved for all shapes).")
    ] = "indexed",
    seed: Annotated[int, typer.Option(help="Seed of every random choice.")] = 0,
    only_enumerate: Annotated[
        bool, typer.Option("--only-enumerate", help="Count terms, classes and equal pairs of the domain tensor; find no law.")
    ] = False,
    budget: Annotated[
        float | None,
        typer.Option(help="Seconds after which the laws found so far are written, marked incomplete.", show_default=False),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the synthesis that --out was stopped at.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Find laws over OPS by enumeration and equality saturation, check each, and write them with their evidence to --out.

    Stopped by --budget or Ctrl-C, it leaves its state next to --out (OUT.state.json), and --resume continues from there to the
    laws that a run without a stop finds.
    """

    from mirage_eg.lab.synthesis.progress_file import NOTHING, Arguments, read_state, state_path, state_text
    from mirage_eg.lab.synthesis.synthesize import rule_text
    from mirage_eg.lab.synthesis.synthesize import synthesize as run

    Options(seed=seed)  # its argument checks
    if only_enumerate and (out is not None or domain != "tensor"):
        raise OptionError("--only-enumerate: got it with --out or another domain than tensor, wanted --domain tensor alone")
    if out is not None:
        check_rule_file(out)
    elif not only_enumerate:
        raise OptionError("--out: got none, wanted the rule file to write, as --out found.egg")
    names = [name.strip() for name in ops.split(",") if name.strip()]
    names = [op for name in names for op in (register_ops(Path(name)) if name.endswith(".py") else (name,))]
    if out is None:
        return _enumerate_tensor_terms(names, size, seed, as_json)
    if budget is not None and not budget > 0:
        raise OptionError(f"--budget: got {budget:g}, wanted seconds above 0")
    if domain == "tensor":
        if resume:
            raise OptionError("--resume: got it with the domain tensor, wanted the domain indexed")
        return _synthesize_tensor_laws(names, size, seed, out, as_json, budget)
    arguments, state = Arguments(tuple(names), size, seed), state_path(out)
    begun = read_state(state, arguments) if resume else NOTHING

    def keep_state(begun: "Begun") -> None:
        write_atomically(state, state_text(arguments, begun))

    found = None
    with progress() as observer, left_if_stopped(out, domain) as keep:
        watched = _within(observer, budget)
        keep_state(begun)
        found = run(names, size, domain, seed, watched, keep, begun, keep_state)
    if found is None:
        return 0
    state.unlink(missing_ok=True)
    write_atomically(out, rule_text(found))
    if as_json:
        print(json_line(plain(found) | {"out": out}))
    else:
        _print_synthesis(found, out)
    return 0


def _within(observe: Observer, budget: float | None) -> Observer:
    """The observer, which ends the work once the budget is spent."""
    from mirage_eg.lab.synthesis.progress_file import BudgetSpent

    start = perf_counter()

    def watched(stage: str, done: int, total: int | None, note: str) -> None:
        observe(stage, done, total, note)
        if budget is not None and perf_counter() - start > budget:
            of = "" if total is None else f" of {total:,}"
            raise BudgetSpent(f"the budget of {budget:g} s ended during {stage}, {done:,}{of}")

    return watched


def _enumerate_tensor_terms(ops: list[str], size: int, seed: int, as_json: bool) -> int:
    from mirage_eg.lab.synthesis.tensor.synthesize import enumerate_up_to

    with progress() as observer:
        found = enumerate_up_to(ops, size, seed, observer)
    counts = {"terms": found.terms, "classes": found.classes, "pairs": sum(map(len, found.pairs))}
    if as_json:
        print(json_line({"domain": "tensor", "ops": ops, "size": size, "seed": seed} | counts))
        return 0
    print_table(counts, [(f"{count:,}" for count in counts.values())])
    return 0


@contextmanager
def left_if_stopped(out: Path, domain: str) -> Iterator[Callable[[str], None]]:
    """A function that adds laws to the file OUT.partial.egg, which is removed at the end and left by a stopped synthesis.

    Where the budget is spent the file is OUT itself, and the block ends without an error.
    """
    from mirage_eg.lab.synthesis.progress_file import BudgetSpent, state_path

    partial = out.with_name(f"{out.stem}.partial.egg")
    lines: dict[str, None] = {}

    def add(line: str) -> None:
        lines[line] = None
        head = [f"; domain: {domain}", "; default: off", "; Stopped before the end: some of these laws follow from others."]
        write_atomically(partial, "\n".join([*head, *lines]) + "\n")

    try:
        yield add
    except BudgetSpent as spent:
        head = [f"; domain: {domain}", f"; incomplete: {spent}.", "; Some of these laws follow from others."]
        write_atomically(out, "\n".join([*head, "", *lines]) + "\n")
        again = f"; --resume continues ({state_path(out)})" if state_path(out).exists() else ""
        print_line(f"{out}: incomplete, {counted(len(lines), 'law')} so far: {spent}{again}")
    except KeyboardInterrupt:
        if lines:
            raise KeyboardInterrupt(f"{partial} has the {counted(len(lines), 'law')} found so far") from None
        raise
    partial.unlink(missing_ok=True)


def _synthesize_tensor_laws(ops: list[str], size: int, seed: int, out: Path, as_json: bool, budget: float | None = None) -> int:
    from mirage_eg.egraph.tensor.term import text
    from mirage_eg.lab.synthesis.tensor.rule_file import tensor_rule_text
    from mirage_eg.lab.synthesis.tensor.synthesize import synthesize_tensor_laws

    found = None
    with progress() as observer, left_if_stopped(out, "tensor") as keep:
        found = synthesize_tensor_laws(ops, size, seed, _within(observer, budget), keep)
    if found is None:
        return 0
    write_atomically(out, tensor_rule_text(found))
    refuted = [f"{text(it.equation[0])} = {text(it.equation[1])}: {it.counterexample}" for it in found.refuted]
    ill_typed, tested = ([f"{text(left)} = {text(right)}" for left, right in it] for it in (found.ill_typed, found.tested))
    if as_json:
        record = {"domain": "tensor", "ops": found.ops, "size": size, "seed": seed, "funnel": plain(found.funnel)}
        laws = [{"name": law.name, "attributes": plain(law.attributes), "lines": law.lines} for law in found.laws]
        print(json_line(record | {"laws": laws, "refuted": refuted, "ill_typed": ill_typed, "tested": tested, "out": out}))
        return 0
    funnel = plain(found.funnel)
    print_table(funnel, [(f"{count:,}" for count in funnel.values())])
    for kind, entries in (("refuted", refuted), ("ill-typed", ill_typed), ("only tested, left out", tested)):
        for entry in entries[:MOST_SHOWN]:
            print_line(f"{kind}: {entry}")
        if len(entries) > MOST_SHOWN:
            print_line(f"{kind}: {len(entries) - MOST_SHOWN:,} more; --json prints all")
    print_line(f"{out}: {counted(len(found.laws), 'law')}")
    return 0


def _print_synthesis(found: "Synthesis", out: Path) -> None:
    funnel = plain(found.funnel)
    print_table(funnel, [(f"{count:,}" for count in funnel.values())])
    for rejected in found.rejected:
        print_law(f"refuted: {rejected.law.name}: {rejected.reason}")
    derived = len(found.shipped) - len(found.missed)
    print_law(f"packaged laws over these ops up to size {found.size}: {len(found.shipped)}, derived: {derived}")
    for law in found.missed:
        print_law(f"  not derived: {law.name}: {law.text}")
    print_law(f"laws that the packaged laws do not derive: {len(found.new)}")
    for law in found.new:
        print_law(f"  {law.name}")
    print_law(f"{out}: {counted(len(found.laws), 'law')}")
