"""Scripts of the repository as modules: they are in no package."""

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


@cache
def script(path: str) -> ModuleType:
    """The script at a path in the repository, loaded once; `benchmarks/mutants.py` is the module `benchmarks_mutants`."""
    name = path.removesuffix(".py").replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # its dataclasses ask for it
    spec.loader.exec_module(module)
    return module
