"""The layers of the house: which room may import which, and the imports that are there, read from the sources."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAY_IMPORT: Mapping[str, tuple[str, ...]] = {  # besides itself; a name stands for the rooms within it, too
    "ir": (),
    "version": (),
    "backends/evaluator": ("ir",),
    "backends/launches": ("ir",),
    "backends/triton": ("ir", "backends/evaluator", "backends/launches"),
    "backends/cost": ("ir", "backends/launches", "backends/triton"),
    "backends/runtime": ("ir", "backends/triton"),
    "backends/measure": ("ir", "backends/triton", "backends/runtime"),
    "frontend": ("ir", "backends/evaluator", "backends/triton", "backends/cost"),
    "egraph": ("ir", "backends/evaluator"),
    "verify": ("ir", "backends/evaluator", "backends/triton", "egraph", "partial_equivalence"),
    "transforms": ("ir", "backends/evaluator", "backends/launches", "backends/cost", "egraph", "verify"),
    "partial_equivalence": ("ir", "backends"),
    "graph_optimizer": ("ir", "backends", "egraph", "verify", "search"),
    "optimizer": ("ir", "backends"),
    "search": ("ir", "backends", "egraph", "verify", "transforms"),
    "pipeline": (
        *("version", "ir", "backends", "frontend", "transforms", "egraph", "verify", "optimizer", "graph_optimizer", "search"),
    ),
    "report": (*("ir", "backends", "egraph", "verify", "partial_equivalence", "optimizer", "search", "pipeline"),),
    "torch_compile": ("ir", "backends", "frontend", "optimizer", "search", "pipeline"),
    "lab": (
        *("ir", "backends", "frontend", "transforms", "egraph", "verify", "optimizer", "graph_optimizer", "search"),
        *("pipeline", "torch_compile", "report", "version"),
    ),
    "api": (
        *("version", "ir", "backends", "frontend", "egraph", "verify", "partial_equivalence", "graph_optimizer", "report"),
        *("pipeline", "torch_compile", "lab"),
    ),
    "testing": ("ir", "frontend", "egraph", "verify"),
    "cli": (
        *("version", "api", "ir", "backends", "frontend", "transforms", "egraph", "verify", "optimizer", "search"),
        *("partial_equivalence", "graph_optimizer", "pipeline", "torch_compile", "report", "lab"),
    ),
}
FOREIGN = {  # rooms that may import a package from outside the standard library; numpy and rich are free but for `ir`
    "egglog": ("egraph", "transforms", "graph_optimizer", "report", "lab"),
    "triton": ("backends", "pipeline", "lab"),
    "cupy": ("backends", "lab", "verify"),
    "helion": ("lab",),
    "flashinfer": ("lab",),
    "flash_attn": ("lab",),
    "torch": ("backends", "frontend", "optimizer", "pipeline", "torch_compile", "lab"),
    "onnx": ("frontend",),
    "onnxruntime": ("frontend",),
    "ortools": ("backends", "optimizer", "graph_optimizer"),
    "typer": ("cli",),
    "hypothesis": ("testing",),
}


@dataclass(frozen=True, slots=True)
class Import:
    """One import: of a module of ours or, with `target` a package's name, of another."""

    source: str  # module
    target: str
    line: int


def modules(root: Path = ROOT) -> dict[str, Path]:
    """The file of every module: mirage_eg.ir.graph -> ir/graph.py."""
    found = {}
    for top in ("ir", "backends", "mirage_eg"):
        for path in sorted((root / top).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            if top == "mirage_eg" and parts[1] in ("ir", "backends", "rules"):
                continue  # links to the folders above
            name = ".".join(parts if top == "mirage_eg" else ("mirage_eg", *parts))
            found[name.removesuffix(".__init__")] = path
    return found


def room_of(module: str) -> str:
    """ir, backends/triton, search …; modules beside the rooms are `version`, `cli` and `api`."""
    parts = module.split(".")[1:]
    match parts:
        case ["backends", _, *_]:
            return "/".join(parts[:2])
        case ["ir" | "backends", *_] | [_, _, *_]:
            return parts[0]
        case ["__main__"]:
            return "cli"
        case ["version" | "testing" as name]:
            return name
        case _:
            return "api"


def imports_of(name: str, source: str, known: Iterable[str]) -> Iterator[Import]:
    """Every import of a source, wherever it is: at the top, in a function, under TYPE_CHECKING."""
    known = set(known)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: a relative import"
            module = node.module or ""
            targets = [full if (full := f"{module}.{alias.name}") in known else module for alias in node.names]
        else:
            continue
        for target in dict.fromkeys(targets):
            yield Import(name, target, node.lineno)


def allowed(source: str, target: str) -> bool:
    """Whether a room may import another, or a package."""
    if target in FOREIGN:
        return any(source == room or source.startswith(f"{room}/") for room in FOREIGN[target])
    return source == target or any(target == room or target.startswith(f"{room}/") for room in MAY_IMPORT[source])


def forbidden(imports: Iterable[Import]) -> list[str]:
    """The imports that the table does not allow, as file-like lines."""
    wrong = []
    for it in imports:
        package, source = it.target.split(".")[0], room_of(it.source)
        target = room_of(it.target) if package == "mirage_eg" else package
        if (package == "mirage_eg" or package in FOREIGN) and not allowed(source, target):
            wrong.append(f"{it.source}:{it.line} imports {it.target}: {source} may not import {target}")
    return wrong


def circles(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Nodes that reach themselves."""
    reached = {node: set(targets) - {node} for node, targets in graph.items()}
    changed = True
    while changed:
        changed = False
        for targets in reached.values():
            further = set[str]().union(*(reached.get(target, set()) for target in targets)) - targets
            changed |= bool(further)
            targets |= further
    return sorted(node for node, targets in reached.items() if node in targets)
