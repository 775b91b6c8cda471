"""The public names in the reference, from the lists of `mirage_eg` and its public modules; docs/build.py writes them."""

from importlib import import_module
from inspect import getdoc

import mirage_eg
from mirage_eg import onnx, testing, torch

_OPTIONS = {"ir.builder": ", inherited_members: true", "ir.threadblock_graph": ", inherited_members: true"}
_TESTING = "../how_to/testing.md"
_VALUES = {  # names of values, which have no documentation of their own
    **dict.fromkeys(mirage_eg._DTYPES, "element type, a member of `DType`"),
    "NEW_DIM": "in an output map: this grid dim becomes a new first dim",
    "REPLICATED": "in a map: no dim",
    "__version__": "the version of the package",
    "onnx": "module, see below",
    "torch": "module, see below",
}


def homes() -> dict[str, tuple[str, ...]]:
    """The public names of every module, without values."""
    found = {module: tuple(it for it in names if it not in _VALUES) for module, names in mirage_eg._HOMES.items()}
    for module, names in (torch._HOMES | onnx._HOMES).items():
        found[module] = (*found.get(module, ()), *names)
    return found


def reference() -> str:
    """A table of all public names, and the documentation of each."""
    shown = {f"mi.{name}": f"mirage_eg.{module}.{name}" for module, names in mirage_eg._HOMES.items() for name in names}
    shown |= {f"mi.torch.{name}": f"mirage_eg.{module}.{name}" for module, names in torch._HOMES.items() for name in names}
    shown |= {f"mi.onnx.{name}": f"mirage_eg.{module}.{name}" for module, names in onnx._HOMES.items() for name in names}
    shown |= {f"mirage_eg.testing.{name}": f"{_TESTING}#mirage_eg.testing.{name}" for name in testing.__all__}
    rows = [
        f"| [`{name}`]({place if place.startswith(_TESTING) else f'#{place}'}) | {_sentence(place.rpartition('#')[2])} |"
        for name, place in shown.items()
        if name.rpartition(".")[2] not in (*_VALUES, "EVERY", "TAME")
    ]
    rows += [f"| `mi.{name}` | {said} |" for name, said in _VALUES.items()]
    rows += [f"| `mirage_eg.testing.EVERY`, `mirage_eg.testing.TAME` | sets of ops, see [Testing]({_TESTING}) |"]
    parts = []
    for module, names in homes().items():
        options = f"show_root_heading: false, members: [{', '.join(names)}]{_OPTIONS.get(module, '')}"
        parts.append(f"::: mirage_eg.{module}\n    options: {{ {options} }}\n")
    return "\n".join(["| name | meaning |", "| --- | --- |", *rows]) + "\n\n" + "\n".join(parts)


def _sentence(place: str) -> str:
    """The first sentence of the documentation of a class or function."""
    module, _, name = place.rpartition(".")
    text = " ".join((getdoc(getattr(import_module(module), name)) or "").split("\n\n")[0].split())
    return text.split(". ")[0].split("; ")[0].rstrip(".").replace("|", "\\|")
