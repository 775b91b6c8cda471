"""How large the house is: source lines, files that spell ops by name outside their records, the largest file.

Run: python benchmarks/house.py
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from mirage_eg.ir.ops import OPS

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("mirage_eg", "ir", "backends")
# Names that are words of English or of Python, too: a string that is one of them need not be an op.
PLAIN_WORDS = frozenset(
    {
        *(
            "input",
            "output",
            "block",
            "thread",
            "split",
            "take",
            "sum",
            "mean",
            "max",
            "where",
            "slice",
            "full",
            "scale",
            "shift",
        ),
        *("fill", "equal", "less", "repeat", "flip", "pad", "abs", "pow", "log", "exp", "patch"),
    }
)


def sources(suffix: str, folders: tuple[str, ...]) -> Iterator[Path]:
    """The files of some folders; what is reached through the links in mirage_eg/ counts once."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob(f"*{suffix}")):
            if path.resolve() == path:
                yield path


def spelled(path: Path) -> set[str]:
    """The ops that are string literals in a file; docstrings do not count."""
    text = path.read_text(encoding="utf-8")
    met = {name for name in set(OPS) - PLAIN_WORDS if f'"{name}"' in text}
    if not met:
        return met
    tree = ast.parse(text)
    docs = {
        id(item.body[0].value)
        for item in ast.walk(tree)
        if isinstance(item, ast.Module | ast.ClassDef | ast.FunctionDef) and item.body and isinstance(item.body[0], ast.Expr)
    }
    return met & {item.value for item in ast.walk(tree) if isinstance(item, ast.Constant) and id(item) not in docs}


def spelling_files() -> dict[Path, set[str]]:
    """The files outside the records of ops that spell ops by name."""
    files = (path for path in sources(".py", SOURCES) if not path.is_relative_to(ROOT / "ir" / "op"))
    return {path: found for path in files if (found := spelled(path))}


def main() -> None:
    """Print the figures."""
    files = list(sources(".py", SOURCES))
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    rules = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources(".egg", ("rules",)))
    largest = max(files, key=lines.__getitem__)
    named = spelling_files()
    print(f"source: {sum(lines.values()):,} lines of {len(files)} files; rules: {rules:,} lines")
    print(f"largest file: {largest.relative_to(ROOT)}, {lines[largest]} lines")
    several = sum(len(found) > 2 for found in named.values())
    print(f"files outside ir/op that spell ops by name: {len(named)}, {several} of them three or more")
    for path, found in sorted(named.items(), key=lambda it: (-len(it[1]), it[0])):
        print(f"  {len(found):3} {path.relative_to(ROOT)}: {' '.join(sorted(found)[:8])}{' …' if len(found) > 8 else ''}")


if __name__ == "__main__":
    main()
