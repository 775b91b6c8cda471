"""The rule files of a run: the packaged files of a domain, and the files of the user. Laws are parsed in `rulebook`.

The rules of elementwise ops are derived from their records: constructor, parts of axes, slices, subexpressions, definition.
Those of the package's ops belong to the theories of THEORIES, after their files. A rule file that declares the constructor of
a user's op brings these rules itself: nothing is derived for such an op.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from functools import cache
from importlib import resources
from pathlib import Path

from mirage_eg.egraph.expression import constructor
from mirage_eg.ir.definitions import by_definition, definition_of
from mirage_eg.ir.errors import RuleError
from mirage_eg.ir.op.elementwise import PACKAGED, REGISTRY
from mirage_eg.ir.op.record import ElementwiseOp
from mirage_eg.ir.ops import OPS

DOMAINS = ("indexed", "abstract")  # expressions that prune the search
TENSOR = "tensor"  # laws of whole tensors, which rewrite programs
LAW_DOMAINS = (*DOMAINS, TENSOR)
LARGEST_FILE = 100_000  # characters
UNDEFINED = ("free", "keep")  # what laws may do with a value that is undefined: give it one, or nothing

_RATIONAL_NUMBER = re.compile(r"\(bigrat \(bigint (-?\d+)\) \(bigint (\d+)\)\)")
_LAW_NAME = re.compile(r':name\s+"([^"]*)"')
_HEADER = re.compile(r"^;+\s*(?P<key>domain|default|undefined)\s*:\s*(?P<value>\w+)\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RuleFile:
    path: str
    text: str
    packaged: bool


def chosen_files(
    domain: str, extra: Sequence[str | Path | RuleFile] = (), without: Sequence[str] = (), undefined: str = UNDEFINED[0]
) -> list[RuleFile]:
    """The files of `rulebook.load_rules`, in load order."""
    if domain not in LAW_DOMAINS:
        raise RuleError(f"got domain {domain!r}, wanted one of {', '.join(LAW_DOMAINS)}")
    packaged = packaged_files(domain)
    for name in without:
        if name not in packaged_names(domain):
            check_law_name(name, domain)
    files = [
        file
        for file in packaged
        if theory_name(file.path) not in without
        and header(file.text, "default") != "off"
        and header(file.text, "undefined") in (None, undefined)
    ]
    own = [file for path in extra for file in _find(path, domain, {theory_name(file.path): file for file in packaged})]
    derived = custom_op_rules(domain, (file.text for file in own))
    files += [*(RuleFile(path, text, True) for path, text in derived), *own]
    return list(dict.fromkeys(files))


def readable(text: str) -> str:
    """A text with plain numbers, as rule files may have them, in place of egglog's rationals."""
    return _RATIONAL_NUMBER.sub(lambda it: it[1] if it[2] == "1" else f"{it[1]}/{it[2]}", text)


def text_hash(text: str) -> str:
    """The hash of a rule file's text, for reports and caches."""
    return hashlib.sha256(text.encode()).hexdigest()


def packaged_names(domain: str) -> tuple[str, ...]:
    """The names of all packaged theories of a domain, including those that are off by default."""
    return tuple(dict.fromkeys(theory_name(file.path) for file in packaged_files(domain)))


@cache
def packaged_law_names(domain: str) -> tuple[str, ...]:
    """The names of all packaged laws of a domain, in load order."""
    return tuple(name for file in packaged_files(domain) for name in _LAW_NAME.findall(file.text))


def check_law_name(name: str, domain: str) -> None:
    """Raise a RuleError unless a packaged law of the domain has this name; the message says what may be left out."""
    laws = packaged_law_names(domain)
    if name not in laws:
        near = get_close_matches(name, [*packaged_names(domain), *laws], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "; `mirage-eg rules list --laws` prints the laws"
        raise RuleError(f"without: got {name!r}, wanted a theory ({', '.join(packaged_names(domain))}) or a law{hint}")


def theory_name(path: str) -> str:
    """The name of a theory, for options: its file's name without the ending."""
    return Path(path).stem


def header(text: str, key: str) -> str | None:
    """The value of `; key: value` in the comments at the head of a rule file."""
    for line in text.splitlines():
        if line.strip() and not line.startswith(";"):
            return None
        if (match := _HEADER.match(line)) and match["key"].lower() == key:
            return match["value"].lower()
    return None


def domain_of(file: RuleFile) -> str | None:
    """The domain in the header of a rule file, if it has one. Raises RuleError: for an unknown domain."""
    named = header(file.text, "domain")
    if named is not None and named not in LAW_DOMAINS:
        raise RuleError(f"{file.path}:1: got domain {named!r}, wanted one of {', '.join(LAW_DOMAINS)}")
    return named


@cache
def packaged_text(path: str) -> str:
    """The text of a packaged rule file, such as simplify/00_simplify.egg."""
    return (resources.files("mirage_eg") / "rules" / path).read_text("utf-8")


@cache
def packaged_files(domain: str) -> tuple[RuleFile, ...]:
    """The packaged rule files of a domain, and those of both domains, sorted by name, each with its lines of records of ops."""
    rules = resources.files("mirage_eg") / "rules"
    found = [(item, folder) for folder in (domain, *["both"] * (domain in DOMAINS)) for item in (rules / folder).iterdir()]
    files = sorted(((item, folder) for item, folder in found if item.name.endswith(".egg")), key=lambda it: it[0].name)
    texts: list[tuple[str, str]] = []
    for item, folder in files:
        own, derived = (f"rules/{folder}/{item.name}", item.read_text("utf-8")), op_rules(domain, theory_name(item.name))
        texts += (own, *derived) if "(constructor " in own[1] else (*derived, own)  # after declarations, before laws
    return tuple(RuleFile(path, text, True) for path, text in texts)


def _find(path: str | Path | RuleFile, domain: str, packaged: Mapping[str, RuleFile]) -> Iterator[RuleFile]:
    if isinstance(path, RuleFile):
        yield path
        return
    if str(path) in packaged and not os.path.exists(path):
        yield packaged[str(path)]
        return
    for file in read_files(path):
        named = domain_of(file)
        if named in (None, domain):
            yield next((same for same in packaged.values() if same.text == file.text), file)
        elif not Path(path).is_dir():
            raise RuleError(f"{file.path}:1: got laws of the {named} domain, wanted the {domain} one; choose it with --domain")


def read_files(path: str | Path) -> Iterator[RuleFile]:
    """The file, or the .egg files of a folder sorted by name.

    Raises RuleError: a file is not readable, not text in UTF-8, or longer than LARGEST_FILE.
    """
    for file in rule_files(path):
        try:
            if file.exists() and not file.is_file():
                raise RuleError(f"{file}: got a folder, pipe or device, wanted a text file")
            text = file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            raise RuleError(
                f"{file}:{line}: got bytes that are not UTF-8, wanted a text file of laws; is it another kind of file?"
            ) from None
        except OSError as error:
            raise RuleError(f"{file}: cannot be read: {error.strerror or error}") from None
        if len(text) > LARGEST_FILE:  # the time of parsing grows with the square of the length
            raise RuleError(f"{file}:1: got {len(text):,} characters, wanted at most {LARGEST_FILE:,}; split the file")
        yield RuleFile(str(file), text, False)


def rule_files(path: str | Path) -> tuple[Path, ...]:
    """The path itself, or the paths of the .egg files of a folder sorted by name."""
    path = Path(path)
    files = tuple(sorted(path.glob("*.egg"))) if path.is_dir() else (path,)
    if not files:
        raise RuleError(f"{path}: got a folder without .egg files, wanted a rule file or a folder of them")
    return files


_TOKEN = re.compile(r';[^\n]*|"(?:\\.|[^"\\])*"|[()\n]')
_HEAD = re.compile(r"\s*(?P<word>[^\s()]*)")


def unclosed(text: str) -> int | None:
    """The line of the first parenthesis that is never closed."""
    line, opened = 1, list[int]()
    for token in _TOKEN.findall(text):
        line += token.count("\n")
        if token == "(":
            opened.append(line)
        elif token == ")" and opened:
            opened.pop()
    return opened[0] if opened else None


@dataclass(frozen=True, slots=True)
class Form:
    """An outermost form of a rule file: its line, first word, and place in the text."""

    line: int
    word: str
    start: int
    stop: int


def forms(text: str) -> list[Form]:
    """The outermost forms: not all of egglog's commands have a source position."""
    found: list[Form] = []
    line, depth, start, first, word = 1, 0, 0, 1, ""
    for match in _TOKEN.finditer(text):
        if match[0] == "(" and depth == 0:
            head = _HEAD.match(text, match.end())
            start, first, word = match.start(), line, head["word"] if head else ""
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if match[0] == ")" and depth == 0:
            found.append(Form(first, word, start, match.end()))
        line += match[0].count("\n")
    return found


LARGEST_DEFINITION = 300  # characters of a term; a longer definition is no law
_LARGEST_LITERAL = 1 << 62


def op_rules(domain: str, theory: str) -> Iterator[tuple[str, str]]:
    """The path and the text of the lines of a packaged theory that are derived from records; most theories have none."""
    if (line := THEORIES.get(domain, {}).get(theory)) is not None:
        head = [f"; domain: {domain}", f"; Lines of {theory} that are derived from the records of ops."]
        yield f"ir/op/{theory}.egg", "\n".join([*head, *map(line, PACKAGED.values())]) + "\n"


def custom_op_rules(domain: str, others: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The path and the text of a rule file for each op of the user that the texts of `others` do not declare."""
    texts = list(others)
    for op in REGISTRY.values():
        if not any(re.search(rf"\(\s*constructor\s+{constructor(op.name)}\s", text) for text in texts):
            lines = [line(op) for theory, line in THEORIES[domain].items() if theory != _SLICES]
            head = [f"; domain: {domain}", f"; Derived from register_op({op.name!r})."]
            yield f"register_op/{op.name}.egg", "\n".join([*head, *lines, *_definition(op)]) + "\n"


def _term(op: ElementwiseOp, operands: Iterable[str]) -> str:
    constants = (f"c{place}" for place, _ in enumerate(op.attributes))
    return f"({' '.join((constructor(op.name), *constants, *operands))})"


def _law(text: str, family: str, op: ElementwiseOp, ruleset: str = "equivalence") -> str:
    return f'{text} :ruleset {ruleset} :name "{family} {op.name.replace("_", "-")}")'


def _declaration(op: ElementwiseOp) -> str:
    sorts = ("String" if name == "dtype" else "BigRat" for name in op.attributes)
    return f"(constructor {constructor(op.name)} ({' '.join((*sorts, *['E'] * op.arity))}) E)"


def _axes(op: ElementwiseOp) -> str:
    """A value varies with what its operands vary with."""
    if op.constant:
        return _law(f"(rule ((= e {_term(op, op.operands)})) ((set (axes e) (set-empty)))", "axes of", op)
    read = " ".join(f"(= a{x} (axes {x}))" for x in op.operands)
    union = f"a{op.operands[-1]}"
    for x in reversed(op.operands[:-1]):
        union = f"(set-union a{x} {union})"
    return _law(f"(rule ((= e {_term(op, op.operands)}) {read}) ((set (axes e) {union}))", "axes of", op)


def _slice(op: ElementwiseOp) -> str:
    """split(f(x, y)) = f(split(x), split(y))."""
    sliced = [f"(Slice i h s t {x})" for x in op.operands]
    return _law(f"(rewrite (Slice i h s t {_term(op, op.operands)}) {_term(op, sliced)}", "slice of", op)


def _below(op: ElementwiseOp) -> str:
    """below(f(x, y)) gives below(x) and below(y): operands of a part of the root are parts of the root."""
    below = " ".join(f"(below {x})" for x in op.operands)
    return _law(f"(rule ((below e) (= e {_term(op, op.operands)})) ({below})", "below", op, "subexpression")


_SLICES = "35_slices"
THEORIES: Mapping[str, Mapping[str, Callable[[ElementwiseOp], str]]] = {
    "indexed": {"00_language": _declaration, "05_axes": _axes, _SLICES: _slice, "40_subexpression": _below},
    "abstract": {"00_language": _declaration, "40_subexpression": _below},
}
"""The theories of each domain to which each op adds a line, and the line."""


def _definition(op: ElementwiseOp) -> Iterator[str]:
    """The definition as a law, of an op without attributes."""
    if op.definition is not None and not op.attributes and (meaning := _meaning(op)) is not None:
        yield f'(rewrite {_term(op, op.operands)} {meaning} :name "definition of {op.name}")'


def _meaning(defined: ElementwiseOp) -> str | None:
    """The definition as a term of the package's ops; None where the term is too long."""

    def apply(op: str, /, *x: str | None, **attributes: Fraction) -> str | None:
        if (definition := definition_of(op, attributes)) is not None:
            return by_definition(definition, x, apply)
        constants = [_literal(attributes[given]) for given in OPS[op].attributes]
        if op in REGISTRY or None in x or None in constants:
            return None
        term = f"({constructor(op)} {' '.join(map(str, (*constants, *x)))})"
        return term if len(term) <= LARGEST_DEFINITION else None

    return apply(defined.name, *defined.operands)


def _literal(value: Fraction) -> str | None:
    numerator, denominator = value.as_integer_ratio()
    if max(abs(numerator), denominator) >= _LARGEST_LITERAL:
        return None
    return f"(bigrat (bigint {numerator}) (bigint {denominator}))"
