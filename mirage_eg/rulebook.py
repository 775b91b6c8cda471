"""Rule files: which laws the e-graph knows, where each is written, and one clear line for every mistake in them.

A theory is one .egg file. The loader parses it, allows declarations and laws only, names every law, refuses a second law of
the same name, and type-checks each command on a fresh e-graph, so that a mistake carries `path:line`.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from egglog import bindings

from mirage_eg.ir.errors import RuleError

DOMAINS = ("indexed", "abstract")
OWN_RULESET = "equivalence"  # what a law without :ruleset joins

Command = Any  # a command object of egglog.bindings; the union has no public name

_ALLOWED = (
    bindings.Sort,
    bindings.Datatype,
    bindings.Datatypes,
    bindings.Constructor,
    bindings.Relation,
    bindings.FunctionCommand,
    bindings.AddRuleset,
    bindings.UnstableCombinedRuleset,
    bindings.RewriteCommand,
    bindings.BiRewriteCommand,
    bindings.RuleCommand,
)
_LAWS = (bindings.RewriteCommand, bindings.BiRewriteCommand, bindings.RuleCommand)
_ERROR = re.compile(r"^In (?P<line>\d+):\d+-(?:\d+:)?\d+ of [^:]*: (?P<rest>.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Law:
    """One rewrite, birewrite or rule."""

    name: str
    place: str  # path:line
    text: str


@dataclass(frozen=True, slots=True)
class Theory:
    """One rule file."""

    path: str
    text: str
    laws: tuple[Law, ...]

    @property
    def sha256(self) -> str:
        """Hash of the text, for reports and caches."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Rulebook:
    """The theories of one domain in load order."""

    domain: str
    theories: tuple[Theory, ...]

    @property
    def laws(self) -> tuple[Law, ...]:
        """All laws in load order."""
        return tuple(law for theory in self.theories for law in theory.laws)

    def new_egraph(self) -> bindings.EGraph:
        """A fresh e-graph that knows the declarations and laws."""
        egraph = bindings.EGraph()
        for theory in self.theories:
            egraph.run_program(*(command for command, _ in _commands(egraph, theory.path, theory.text)))
        return egraph


def load_rules(domain: str = "indexed", extra: Sequence[str | Path] = ()) -> Rulebook:
    """The packaged theories of `domain` (`rules/DOMAIN/*.egg`, by name) and then `extra` files or folders of such.

    Raises:
        RuleError: `path:line: what is wrong`.
    """
    if domain not in DOMAINS:
        raise RuleError(f"got domain {domain!r}, wanted one of {', '.join(DOMAINS)}")
    packaged = _packaged(domain)
    if not extra:
        return packaged
    return _check(domain, [(theory.path, theory.text) for theory in packaged.theories] + list(_read(extra)))


@cache
def _packaged(domain: str) -> Rulebook:
    folder = resources.files("mirage_eg") / "rules" / domain
    files = sorted((item for item in folder.iterdir() if item.name.endswith(".egg")), key=lambda item: item.name)
    return _check(domain, [(f"rules/{domain}/{item.name}", item.read_text(encoding="utf-8")) for item in files])


def _read(paths: Iterable[str | Path]) -> Iterable[tuple[str, str]]:
    for path in map(Path, paths):
        files = sorted(path.glob("*.egg")) if path.is_dir() else [path]
        if not files:
            raise RuleError(f"{path}: the folder holds no .egg file")
        for file in files:
            try:
                yield str(file), file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise RuleError(f"{file}: cannot be read: {error}") from None


def _check(domain: str, files: Sequence[tuple[str, str]]) -> Rulebook:
    egraph = bindings.EGraph()
    places: dict[str, str] = {}
    theories = []
    for path, text in files:
        laws = []
        for command, place in _commands(egraph, path, text):
            if not isinstance(command, _ALLOWED):
                raise RuleError(f"{place}: {_hint(command)}")
            if isinstance(command, _LAWS):
                law = Law(_core(command).name, place, _source(command))
                if law.name in places:
                    raise RuleError(f"{place}: a law named {law.name!r} stands already at {places[law.name]}; rename one")
                places[law.name] = place
                laws.append(law)
            try:
                egraph.run_program(command)
            except bindings.EggSmolError as error:
                raise RuleError(_located(error, path)) from None
        theories.append(Theory(path, text, tuple(laws)))
    return Rulebook(domain, tuple(theories))


def _commands(egraph: bindings.EGraph, path: str, text: str) -> Iterator[tuple[Command, str]]:
    """The commands of a file with their places; an unnamed law gets its place as name, and OWN_RULESET if it names none."""
    try:
        commands = egraph.parse_program(text, path)
    except bindings.EggSmolError as error:
        raise RuleError(_located(error, path)) from None
    for command in commands:
        place = f"{path}:{_line(command)}"
        match command:
            case bindings.RewriteCommand(name=ruleset, rewrite=rewrite, subsume=subsume):
                yield bindings.RewriteCommand(ruleset or OWN_RULESET, _named(rewrite, place), subsume), place
            case bindings.BiRewriteCommand(name=ruleset, rewrite=rewrite):
                yield bindings.BiRewriteCommand(ruleset or OWN_RULESET, _named(rewrite, place)), place
            case bindings.RuleCommand(rule=rule):
                name, ruleset = rule.name or place, rule.ruleset or OWN_RULESET
                yield bindings.RuleCommand(bindings.Rule(rule.span, rule.head, rule.body, name, ruleset)), place
            case _:
                yield command, place


def _named(rewrite: bindings.Rewrite, place: str) -> bindings.Rewrite:
    return bindings.Rewrite(rewrite.span, rewrite.lhs, rewrite.rhs, rewrite.conditions, rewrite.name or place)


def _core(command: Command) -> Any:
    return command.rule if isinstance(command, bindings.RuleCommand) else command.rewrite


def _located(error: bindings.EggSmolError, path: str) -> str:
    """egglog says `In 3:10-14 of FILE: SOURCE` and then the mistake; we say `FILE:3: mistake: SOURCE`."""
    match = _ERROR.match(str(error))
    if match is None:
        return f"{path}:1: {' '.join(str(error).split())}"
    source, _, mistake = match["rest"].partition("\n")
    shown = f": {source.strip()}" if source.strip() and source.strip() not in mistake else ""
    return f"{path}:{match['line']}: {' '.join(mistake.split())}{shown}"


def _span(command: Command) -> bindings.EgglogSpan | None:
    for owner in (command, *(getattr(command, part, None) for part in ("rewrite", "rule", "action"))):
        if isinstance(span := getattr(owner, "span", None), bindings.EgglogSpan):
            return span
    return None


def _line(command: Command) -> int:
    span = _span(command)
    return 1 if span is None else span.file.contents.encode()[: span.i].decode(errors="replace").count("\n") + 1


def _source(command: Command) -> str:
    span = _core(command).span
    return " ".join(span.file.contents.encode()[span.i : span.j].decode().split())


def _hint(command: Command) -> str:
    kind = type(command).__name__
    if kind == "ActionCommand":
        return "got an action at the top level (is a command misspelt?); wanted declarations, rewrite, birewrite or rule"
    return f"got the command {kind}; a rule file may hold sorts, constructors, relations, functions, rulesets and laws only"
