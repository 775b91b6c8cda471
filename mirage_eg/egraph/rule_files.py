"""Which rule files a run reads: the packaged ones of a domain, and those that a user names. Nothing is parsed here."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from mirage_eg.ir.errors import RuleError

DOMAINS = ("indexed", "abstract")
LARGEST_FILE = 100_000  # characters

_HEADER = re.compile(r"^;+\s*(?P<key>domain|default)\s*:\s*(?P<value>\w+)\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RuleFile:
    path: str
    text: str
    packaged: bool


def chosen_files(domain: str, extra: Sequence[str | Path] = (), without: Sequence[str] = ()) -> list[RuleFile]:
    """The files of `rulebook.load_rules`, in load order."""
    if domain not in DOMAINS:
        raise RuleError(f"got domain {domain!r}, wanted one of {', '.join(DOMAINS)}")
    shelf = {theory_name(file.path): file for file in packaged_files(domain)}
    for name in without:
        if name not in shelf:
            raise RuleError(f"got theory {name!r}, wanted one of {', '.join(shelf)}")
    files = [file for name, file in shelf.items() if name not in without and header(file.text, "default") != "off"]
    for file in (found for path in extra for found in _find(path, domain, shelf)):
        if file not in files:
            files.append(file)
    return files


def text_hash(text: str) -> str:
    """The hash of a rule file's text, for reports and caches."""
    return hashlib.sha256(text.encode()).hexdigest()


def packaged_names(domain: str) -> tuple[str, ...]:
    """The names of all theories of a domain that came with the package, those that are off by default too."""
    return tuple(theory_name(file.path) for file in packaged_files(domain))


def theory_name(path: str) -> str:
    """The name by which a packaged theory is switched on or off: its file's, without the ending."""
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
    """The domain that the header of a rule file names, if it names one."""
    named = header(file.text, "domain")
    if named is not None and named not in DOMAINS:
        raise RuleError(f"{file.path}:1: got domain {named!r}, wanted one of {', '.join(DOMAINS)}")
    return named


@cache
def packaged_files(domain: str) -> tuple[RuleFile, ...]:
    """The rule files of a domain that came with the package, by name."""
    folder = resources.files("mirage_eg") / "rules" / domain
    files = sorted((item for item in folder.iterdir() if item.name.endswith(".egg")), key=lambda item: item.name)
    return tuple(RuleFile(f"rules/{domain}/{item.name}", item.read_text(encoding="utf-8"), True) for item in files)


def _find(path: str | Path, domain: str, shelf: Mapping[str, RuleFile]) -> Iterator[RuleFile]:
    if str(path) in shelf and not os.path.exists(path):
        yield shelf[str(path)]
        return
    for file in read_files(path):
        named = domain_of(file)
        if named in (None, domain):
            yield next((known for known in shelf.values() if known.text == file.text), file)
        elif not Path(path).is_dir():
            raise RuleError(f"{file.path}:1: got laws of the {named} domain, wanted the {domain} one; choose it with --domain")


def read_files(path: str | Path) -> Iterator[RuleFile]:
    """The file, or the .egg files of a folder by name."""
    for file in rule_files(path):
        try:
            if file.exists() and not file.is_file():
                raise RuleError(f"{file}: got a folder, pipe or device, wanted a file of text")
            text = file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            raise RuleError(
                f"{file}:{line}: got bytes that are no text in UTF-8, wanted laws; is it another kind of file?"
            ) from None
        except OSError as error:
            raise RuleError(f"{file}: cannot be read: {error.strerror or error}") from None
        if len(text) > LARGEST_FILE:  # parsing takes the square of the length
            raise RuleError(f"{file}:1: got {len(text):,} characters, wanted at most {LARGEST_FILE:,}; split the file")
        yield RuleFile(str(file), text, False)


def rule_files(path: str | Path) -> tuple[Path, ...]:
    """The path itself, or the paths of the .egg files of a folder by name."""
    path = Path(path)
    files = tuple(sorted(path.glob("*.egg"))) if path.is_dir() else (path,)
    if not files:
        raise RuleError(f"{path}: the folder holds no .egg file")
    return files
