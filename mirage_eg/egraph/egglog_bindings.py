"""egglog's bindings without its language for Python, which is not used, and whose import takes 0.2 s of every process."""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from egglog import bindings
else:
    NAME = "egglog.bindings"

    def _loaded() -> Any:
        if NAME in sys.modules:
            return sys.modules[NAME]
        package = PathFinder.find_spec("egglog")
        found = None if package is None else PathFinder.find_spec(NAME, package.submodule_search_locations)
        if found is None:
            raise ImportError("egglog is not installed; pip install egglog")
        module = module_from_spec(found)
        found.loader.exec_module(module)
        sys.modules.pop(NAME, None)  # so that a later `import egglog` finds its submodule, which is the same classes
        return module

    bindings = _loaded()

__all__ = ["bindings"]
