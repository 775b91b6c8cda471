"""The rule files of a run: the packaged files of a domain, and the files of the user. Laws are parsed in `rulebook`."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path

from mirage_eg.egraph.op_rules import custom_op_rules, op_rules
from mirage_eg.ir.errors import RuleError

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
