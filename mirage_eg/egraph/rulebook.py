"""The rulebook: laws and declarations of rule files, parsed and type-checked, with `path:line` for each law and each error.

A theory is one .egg file. The loader parses it, allows declarations and laws only, names every law, refuses a second law of
the same name, and type-checks each command by itself, so that every error message has `path:line`.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from mirage_eg.backends.evaluator.sandbox import in_worker
from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.laws import Law, Signature, read_law, read_signatures, wording
from mirage_eg.egraph.rational_literals import with_rationals
from mirage_eg.egraph.rule_commands import (
    LAWS,
    Command,
    LoadedCommand,
    commands_of,
    core_of,
    in_ruleset,
    loaded_commands,
    ruleset_of,
    source_of,
)
from mirage_eg.egraph.rule_errors import MEANING, OWN_RULESET, RULESETS, hint, located
from mirage_eg.egraph.rule_files import (
    DOMAINS,
    RuleFile,
    chosen_files,
    domain_of,
    forms,
    header,
    packaged_names,
    read_files,
    text_hash,
    theory_name,
    unclosed,
)
from mirage_eg.ir.errors import RuleError, RuleErrors

READABLE = ("E", "String", "i64", "BigRat")  # sorts of arguments in the oracle's table

CHECKING_SECONDS = 30.0
MOST_ERRORS = 20  # that one run prints

_EGGLOG = logging.getLogger("egglog")  # it logs each rule that it reads, at level INFO
if _EGGLOG.level == logging.NOTSET:
    _EGGLOG.setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class Theory:
    """One rule file; `packaged` if it is part of the package."""

    path: str
    text: str
    laws: tuple[Law, ...]
    packaged: bool

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return theory_name(self.path)

    @property
    def sha256(self) -> str:
        """Hash of the text, for reports and caches."""
        return text_hash(self.text)


@dataclass(frozen=True, slots=True)
class Rulebook:
    """The theories of one domain in load order; the laws named in `left_out` do not take part."""

    domain: str
    theories: tuple[Theory, ...]
    signatures: Mapping[str, Signature]  # of all constructors, relations and functions
    left_out: frozenset[str] = frozenset()

    @property
    def _steps(self) -> tuple[LoadedCommand, ...]:
        files = tuple((theory.path, theory.text) for theory in self.theories)
        return loaded_commands(files, tuple(self.signatures.items()))

    @property
    def laws(self) -> tuple[Law, ...]:
        """All laws in load order."""
        return tuple(law for theory in self.theories for law in theory.laws if law.name not in self.left_out)

    def leaving_out(self, laws: Iterable[str]) -> "Rulebook":
        """The rulebook without these laws, too; their declarations stay."""
        return replace(self, left_out=self.left_out.union(laws))

    def keeping_undefined(self) -> "Rulebook":
        """The rulebook without the packaged laws that give an undefined value one."""
        return self.leaving_out(self.widening)

    @property
    def widening(self) -> frozenset[str]:
        """The packaged laws that give an undefined value one, by the headers of their theories; no other one is partial."""
        free = (theory for theory in self.theories if theory.packaged and header(theory.text, "undefined") == "free")
        return frozenset(law.name for theory in free for law in theory.laws)

    @property
    def packaged(self) -> bool:
        """Whether all theories are packaged; other rulebooks run under limits in a separate process."""
        return all(theory.packaged for theory in self.theories)

    def call(self, function: Callable[..., Any], *arguments: Any, seconds: float, task: str) -> Any:
        """The result of a function that saturates e-graphs with these laws, which may not end if they are not packaged.

        Raises LimitError: laws of the user took more than `seconds`; the message names their files and the `task`.
        """
        if self.packaged:
            return function(*arguments)
        paths = ", ".join(theory.path for theory in self.theories if not theory.packaged)
        return in_worker(function, *arguments, seconds=seconds, task=f"{paths}: {task}")

    def applicable(self, inserted: Iterable[str]) -> frozenset[str]:
        """The names of the laws that can match in an e-graph that grows from the tables `inserted`."""
        return frozenset(step.name for step in self._reached(inserted) if step.directions)

    def _reached(self, inserted: Iterable[str]) -> list[LoadedCommand]:
        """The laws that can match in an e-graph that grows from the tables `inserted`, and the declarations of its tables."""
        steps = self._steps
        laws = [step for step in steps if step.directions and step.name not in self.left_out]
        filled = set(inserted)
        names: set[str] = set()
        grown = True
        while grown:
            grown = False
            for law in laws:
                for matched, added in law.directions:
                    if all(name in filled or name not in self.signatures for name in matched):
                        grown |= not filled >= added
                        filled |= added
                        names.add(law.name)
        return [step for step in steps if (step.name in names if step.directions else step.declared <= filled)]

    def add_laws(self, egraph: bindings.EGraph, names: Iterable[str]) -> None:
        """Add the laws of these names to an e-graph that has the declarations."""
        chosen = set(names)
        egraph.run_program(*(step.command for step in self._steps if step.name in chosen))

    def new_egraph(self, inserted: Iterable[str], without: frozenset[str] = frozenset()) -> bindings.EGraph:
        """A fresh e-graph with the tables that fill and the applicable laws, but the laws named in `without`.

        Laws that cannot match (`applicable`) are left out, and tables of theirs: adding them takes longer than saturation.
        """
        egraph = bindings.EGraph()
        egraph.run_program(*(step.command for step in self._reached(inserted) if step.name not in without))
        return egraph

    def new_egraph_by_law(
        self, inserted: Iterable[str], without: frozenset[str] = frozenset()
    ) -> tuple[bindings.EGraph, Mapping[str, str]]:
        """`new_egraph` with a ruleset for each law of OWN_RULESET, by the law's name, so that laws can be run one by one."""
        egraph = bindings.EGraph()
        rulesets: dict[str, str] = {}
        for step in self._reached(inserted):
            if step.name in without:
                continue
            command = step.command
            if step.directions and ruleset_of(command) == OWN_RULESET:
                rulesets[step.name] = f"law_{len(rulesets)}"
                egraph.run_program(bindings.AddRuleset(core_of(command).span, rulesets[step.name]))
                command = in_ruleset(command, rulesets[step.name])
            egraph.run_program(command)
        return egraph, rulesets


def load_rules(
    domain: str = "indexed", extra: Sequence[str | Path] = (), without: Sequence[str] = (), undefined: str = "free"
) -> Rulebook:
    """The packaged theories of `domain` (`rules/DOMAIN/*.egg`, by name), and then `extra`.

    `without` names packaged theories and laws to leave out. With `undefined` "keep" no packaged law gives an undefined value
    one: theories whose header says `undefined: keep` take the place of those that say `undefined: free`. `extra` holds files,
    folders (without the files whose header names another domain), and names of packaged theories that are off by default.
    Files that are not packaged are type-checked in a separate process.

    Raises RuleError: `path:line: the error`.
    """
    files = chosen_files(domain, extra, without, undefined)
    laws = set(without).difference(packaged_names(domain))
    if not extra and len(laws) == len(set(without)):
        return _packaged(domain, tuple(files)).leaving_out(laws) if laws else _packaged(domain, tuple(files))
    return (_check if all(file.packaged for file in files) else _check_in_worker)(domain, files).leaving_out(laws)


def load_file(path: str | Path, domain: str | None = None) -> tuple[Rulebook, Theory]:
    """The packaged theories with one rule file, and its theory; its domain is that of its header by default, else indexed.

    Raises RuleError: `path:line: the error`, or a folder of several files.
    """
    files = list(read_files(path))
    if len(files) != 1:
        raise RuleError(f"{path}: got a folder of {len(files)} rule files, wanted one file")
    rulebook = load_rules(domain or domain_of(files[0]) or DOMAINS[0], [path])
    return rulebook, next(theory for theory in rulebook.theories if theory.text == files[0].text)


def read_rules(text: str, domain: str = "indexed") -> Rulebook:
    """The packaged theories of `domain`, and a text of laws and declarations as the last theory, for checks and tests.

    Raises RuleError: `law:line: the error`.
    """
    return _check(domain, chosen_files(domain, [RuleFile("law", text, False)]))


def is_added(theory: Theory) -> bool:
    """Whether the user added the theory: a file of the user, or a packaged theory that is off by default."""
    return not theory.packaged or header(theory.text, "default") == "off"


@lru_cache(maxsize=64)
def _packaged(domain: str, files: tuple[RuleFile, ...]) -> Rulebook:
    return _check(domain, files)


def _check_in_worker(domain: str, files: Sequence[RuleFile]) -> Rulebook:
    paths = ", ".join(file.path for file in files if not file.packaged)
    rulebook: Rulebook = in_worker(_check, domain, files, seconds=CHECKING_SECONDS, task=f"{paths}:1: reading the rules")
    return rulebook


def _check(domain: str, files: Sequence[RuleFile]) -> Rulebook:
    packaged = tuple(takewhile(lambda file: file.packaged, files))
    is_main = current_thread() is main_thread()  # an e-graph belongs to its thread
    read, theories = (_read if is_main else _read.__wrapped__)(packaged)
    with read.copied() as loading:
        more = [loading.theory(file) for file in files[len(packaged) :]]
        raise_errors(loading.errors)
    return Rulebook(domain, (*theories, *more), loading.signatures)


@lru_cache(maxsize=8)
def _read(files: tuple[RuleFile, ...]) -> "tuple[_Loading, tuple[Theory, ...]]":
    """The theories of packaged files, and the e-graph that has read them, for all files of users that follow."""
    loading = _Loading()
    theories = tuple(loading.theory(file) for file in files)
    raise_errors(loading.errors)
    return loading, theories


def raise_errors(errors: Sequence[str]) -> None:
    """Raise one error for all messages, if there are any; the message has a line for each of the first MOST_ERRORS."""
    if len(errors) == 1:
        raise RuleError(errors[0])
    if errors:
        left = len(errors) - MOST_ERRORS
        raise RuleErrors("\n".join([*errors[:MOST_ERRORS], *([f"and {left} more"] if left > 0 else [])]))


@dataclass(slots=True)
class _Loading:
    """Rule files that are read one after another into one e-graph; all their errors are collected, one line each."""

    egraph: bindings.EGraph = field(default_factory=bindings.EGraph)
    places: dict[str, str] = field(default_factory=dict)  # of each law by its name
    signatures: dict[str, Signature] = field(default_factory=dict)
    rulesets: set[str] = field(default_factory=set)  # of files of the user: no one runs them
    errors: list[str] = field(default_factory=list)
    undeclared: set[str] = field(default_factory=set)  # names of declarations with an error

    @contextmanager
    def copied(self) -> Iterator["_Loading"]:
        """A copy to read more files into, which leaves this one as it is."""
        mutable = {it.name: copy(getattr(self, it.name)) for it in fields(self) if it.name != "egraph"}
        self.egraph.run_program(bindings.Push(1))
        try:
            yield _Loading(self.egraph, **mutable)
        finally:
            self.egraph.run_program(bindings.Pop(bindings.PanicSpan(), 1))

    def theory(self, file: RuleFile) -> Theory:
        """Read one file."""
        laws: list[Law] = []
        earlier = len(self.errors)
        places_by_wording: dict[tuple[str, ...], str] = {}
        for command, place in self.commands(file):
            try:
                exact = with_rationals(command, self.signatures, place)
                law = self.law(exact, place, places_by_wording)
                self.run(exact, file, place)
            except RuleError as error:
                declared = read_signatures(command).keys()
                self.undeclared |= declared
                if not self.follows(error):
                    self.errors.append(str(error))
                continue
            laws += [law] if law is not None else []
        self.errors[earlier:] = sorted(self.errors[earlier:], key=_line)
        return Theory(file.path, file.text, tuple(laws), file.packaged)

    def commands(self, file: RuleFile) -> list[tuple[Command, str]]:
        """The commands of a file; where a form does not parse, those of the others."""
        try:
            return list(commands_of(self.egraph, file.path, file.text))
        except RuleError as error:
            alone: list[tuple[Command, str]] = []
            errors: list[str] = []
            for form in forms(file.text):
                try:
                    alone += commands_of(self.egraph, file.path, "\n" * (form.line - 1) + file.text[form.start : form.stop])
                except RuleError as found:
                    errors.append(str(found))
            between = [] if errors and unclosed(file.text) is None else [str(error)]  # the error is in no closed form
            self.errors += [*errors, *between]
            return alone

    def law(self, command: Command, place: str, places_by_wording: dict[tuple[str, ...], str]) -> Law | None:
        """The law of a command, if it is one; its name and wording are new."""
        if not isinstance(command, LAWS):
            return None
        law = read_law(command, place, source_of(command))
        if law.ruleset in self.rulesets:
            raise RuleError(f"{place}: got the ruleset {law.ruleset}, which is never run; wanted {' or '.join(RULESETS)}")
        if law.name in self.places:
            raise RuleError(f"{place}: a law named {law.name!r} is already at {self.places[law.name]}; rename one of them")
        self.places[law.name] = place
        if (words := wording(law)) in places_by_wording:
            raise RuleError(f"{place}: the same law is already at {places_by_wording[words]}; delete one of them")
        places_by_wording[words] = place
        return law

    def run(self, command: Command, file: RuleFile, place: str) -> None:
        """Type-check a command, and record what it declares."""
        try:
            self.egraph.run_program(command)
        except bindings.EggSmolError as error:
            raise RuleError(located(error, file.path) + hint(str(error), self.signatures)) from None
        if isinstance(command, bindings.AddRuleset) and not file.packaged and command.name not in (*RULESETS, MEANING):
            self.rulesets.add(command.name)
        declared = read_signatures(command)
        _check_declared(declared, place)
        self.signatures.update(declared)

    def follows(self, error: RuleError) -> bool:
        """Whether an error is that a declaration has an error, which is reported there."""
        return any(f"Unbound function {name}" in str(error) for name in self.undeclared)


def _line(error: str) -> int:
    match = re.search(r":(\d+): ", error)
    return int(match[1]) if match else 0


def _check_declared(declared: Mapping[str, Signature], place: str) -> None:
    """Constructors of expressions have arguments that the oracle reads, and are recognized by their capital letter."""
    for name, signature in declared.items():
        if signature.output != "E":
            continue
        if name[0].isupper() != (signature.kind == "constructor"):
            rule = "a constructor of expressions begins with a capital, a function into expressions with a small letter"
            raise RuleError(f"{place}: got the {signature.kind} {name}, but {rule}")
        for sort in signature.inputs if signature.kind == "constructor" else ():
            if sort not in READABLE:
                raise RuleError(f"{place}: {name}: got an argument of sort {sort}, wanted one of {', '.join(READABLE)}")
