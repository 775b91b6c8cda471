"""The commands of rule files: parsed, of the allowed kinds, and each law named and in a ruleset."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.laws import Signature, directions, read_law, read_signatures
from mirage_eg.egraph.rational_literals import with_rationals
from mirage_eg.egraph.rule_errors import OWN_RULESET, located, refused_command
from mirage_eg.egraph.rule_files import forms, unclosed
from mirage_eg.ir.errors import RuleError

Command = Any  # a command object of egglog.bindings; the union has no public name

_ALLOWED = (
    bindings.Sort,
    bindings.Datatype,
    bindings.Constructor,
    bindings.Relation,
    bindings.FunctionCommand,
    bindings.AddRuleset,
    bindings.RewriteCommand,
    bindings.BiRewriteCommand,
    bindings.RuleCommand,
)
LAWS = (bindings.RewriteCommand, bindings.BiRewriteCommand, bindings.RuleCommand)


def commands_of(egraph: bindings.EGraph, path: str, text: str) -> Iterator[tuple[Command, str]]:
    """The commands of a file with their places; the default name of a law is its place, its default ruleset OWN_RULESET."""
    try:
        commands = egraph.parse_program(text, path)
    except bindings.EggSmolError as error:
        if "unexpected end of file" in str(error) and (opened := unclosed(text)) is not None:
            raise RuleError(f"{path}:{opened}: parse error: the parenthesis opened here is never closed") from None
        raise RuleError(f"{located(error, path)} (are the parentheses balanced, and the quotes?)") from None
    unnamed: Counter[str] = Counter()
    for command, form in zip(commands, forms(text), strict=True):
        place = f"{path}:{form.line}"
        if not isinstance(command, _ALLOWED):
            raise RuleError(f"{place}: {refused_command(command, form.word)}")
        name = place
        if isinstance(command, LAWS) and not core_of(command).name:
            unnamed[place] += 1  # laws of one line are numbered
            name += f" #{unnamed[place]}" if unnamed[place] > 1 else ""
        is_law = isinstance(command, LAWS)
        yield in_ruleset(command, ruleset_of(command) or OWN_RULESET, name) if is_law else command, place


def commands_one_by_one(path: str, text: str) -> Iterator[tuple[Command, str]]:
    """`commands_of` of each outermost form by itself: the time of parsing grows with the square of the length."""
    if (opened := unclosed(text)) is not None:
        raise RuleError(f"{path}:{opened}: parse error: the parenthesis opened here is never closed")
    egraph, end = bindings.EGraph(), 0
    for form in forms(text):
        _check_between(path, text, end, form.start)
        end = form.stop
        yield from commands_of(egraph, path, "\n" * (form.line - 1) + text[form.start : form.stop])
    _check_between(path, text, end, len(text))


def _check_between(path: str, text: str, start: int, stop: int) -> None:
    """Between the forms of a file are comments only."""
    for number, line in enumerate(text[start:stop].split("\n"), text.count("\n", 0, start) + 1):
        if words := line.partition(";")[0].strip():
            raise RuleError(f"{path}:{number}: parse error: got {words[:40]!r} outside parentheses, wanted a command in them")


@dataclass(frozen=True, slots=True)
class LoadedCommand:
    """A command; for a law its name and its `laws.directions`, else the names that it declares."""

    command: Command
    name: str
    directions: tuple[tuple[frozenset[str], frozenset[str]], ...] = ()
    declared: frozenset[str] = frozenset()


@lru_cache(maxsize=64)
def loaded_commands(files: tuple[tuple[str, str], ...], sorts: tuple[tuple[str, Signature], ...]) -> tuple[LoadedCommand, ...]:
    """The commands of files (path and text), each parsed once for the e-graphs of all targets."""
    return tuple(it for path, text in files for it in _of_file(path, text, sorts))


@lru_cache(maxsize=256)
def _of_file(path: str, text: str, sorts: tuple[tuple[str, Signature], ...]) -> tuple[LoadedCommand, ...]:
    signatures = dict(sorts)
    commands = commands_of(bindings.EGraph(), path, text)
    written = ((with_rationals(command, signatures, place), place) for command, place in commands)
    return tuple(
        LoadedCommand(command, core_of(command).name, directions(read_law(command, place, "")))
        if isinstance(command, LAWS)
        else LoadedCommand(command, "", declared=frozenset(read_signatures(command)))
        for command, place in written
    )


def ruleset_of(command: Command) -> str:
    """The ruleset of a law."""
    return str(command.rule.ruleset if isinstance(command, bindings.RuleCommand) else command.name)


def in_ruleset(command: Command, ruleset: str, name: str = "") -> Command:
    """A law in another ruleset; `name` is for one that has none."""
    core = core_of(command)
    if isinstance(command, bindings.RuleCommand):
        return bindings.RuleCommand(bindings.Rule(core.span, core.head, core.body, core.name or name, ruleset))
    rewrite = bindings.Rewrite(core.span, core.lhs, core.rhs, core.conditions, core.name or name)
    if isinstance(command, bindings.BiRewriteCommand):
        return bindings.BiRewriteCommand(ruleset, rewrite)
    return bindings.RewriteCommand(ruleset, rewrite, command.subsume)


def law_spans(path: str, text: str) -> dict[str, tuple[int, int]]:
    """The first byte of each law of a file, and the byte after its last, by its name."""
    laws = (core_of(command) for command, _ in commands_of(bindings.EGraph(), path, text) if isinstance(command, LAWS))
    return {law.name: (law.span.i, law.span.j) for law in laws}


def core_of(command: Command) -> Any:
    """The rule or rewrite of a law, which has its name and span."""
    return command.rule if isinstance(command, bindings.RuleCommand) else command.rewrite


def source_of(command: Command) -> str:
    """The text of a law in one line."""
    span = core_of(command).span
    return " ".join(span.file.contents.encode()[span.i : span.j].decode().split())
