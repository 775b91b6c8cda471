"""mirage_eg: an equality-saturation superoptimizer for GPU tensor programs.

Write a program with `new_kernel_graph`, or read one with `from_json`; every stage of the search is a function of its own.
A name is imported when it is first used (PEP 562), so that importing one module of the package does not load the others.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mirage_eg.version import __version__

if TYPE_CHECKING:
    from mirage_eg import onnx, torch
    from mirage_eg.api import MuGraph, MuGraphs, Program, SizedMuGraph, new_kernel_graph, optimize_graph, superoptimize
    from mirage_eg.egraph_api import EGraph, egraph
    from mirage_eg.frontend.custom_op import register_op
    from mirage_eg.ir.builder import KernelGraph, Tensor
    from mirage_eg.ir.dtypes import DType
    from mirage_eg.ir.errors import GraphError, MirageError, OptionError, ProgramError, RuleError, UnsupportedError
    from mirage_eg.ir.graph import Graph
    from mirage_eg.ir.node import NEW_DIM, REPLICATED, Node
    from mirage_eg.ir.pair import LawPair
    from mirage_eg.ir.serialize import from_json, to_json
    from mirage_eg.ir.sizes import Dim
    from mirage_eg.ir.threadblock_graph import ThreadblockGraph, new_threadblock_graph
    from mirage_eg.lab.minimize import minimize
    from mirage_eg.lab.synthesis.synthesize import synthesize
    from mirage_eg.partial_equivalence.mutants import mutants
    from mirage_eg.pipeline.why import why
    from mirage_eg.report.draw import picture
    from mirage_eg.verify.tensor_laws import equal_for_all_shapes

    float16, bfloat16, float32, float64, _, int8, uint8, int16, int32, int64, float8_e4m3fn, float8_e5m2, float8_e8m0fnu = DType

_HOMES = {  # module: the public names that it holds; a test holds them to the imports above
    "egraph_api": ("EGraph", "egraph"),
    "api": ("MuGraph", "MuGraphs", "Program", "SizedMuGraph", "new_kernel_graph", "optimize_graph", "superoptimize"),
    "pipeline.why": ("why",),
    "report.draw": ("picture",),
    "ir.builder": ("KernelGraph", "Tensor"),
    "ir.dtypes": ("DType",),
    "ir.errors": ("GraphError", "MirageError", "OptionError", "ProgramError", "RuleError", "UnsupportedError"),
    "ir.graph": ("Graph",),
    "ir.node": ("NEW_DIM", "REPLICATED", "Node"),
    "ir.pair": ("LawPair",),
    "ir.serialize": ("from_json", "to_json"),
    "ir.sizes": ("Dim",),
    "ir.threadblock_graph": ("ThreadblockGraph", "new_threadblock_graph"),
    "frontend.custom_op": ("register_op",),
    "partial_equivalence.mutants": ("mutants",),
    "lab.minimize": ("minimize",),
    "lab.synthesis.synthesize": ("synthesize",),
    "verify.tensor_laws": ("equal_for_all_shapes",),
}
_MODULES = {"onnx": "onnx", "torch": "torch"}  # public names that are modules
_HOME_OF = {name: f"mirage_eg.{module}" for module, names in _HOMES.items() for name in names}
_DTYPES = (
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float16", "float32", "float64"),
    *("int8", "uint8", "int16", "int32", "int64"),
)


class _CallablePackage(ModuleType):
    """The package `mirage_eg.egraph`, which is called as the function of that name; its modules stay where they are."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return import_module("mirage_eg.egraph_api").egraph(*arguments, **options)


import_module("mirage_eg.egraph").__class__ = _CallablePackage


def __getattr__(name: str) -> Any:
    if name in _DTYPES:
        value = import_module("mirage_eg.ir.dtypes").DType[name]
    elif name in _MODULES:
        value = import_module(f"mirage_eg.{_MODULES[name]}")
    elif name in _HOME_OF:
        value = getattr(import_module(_HOME_OF[name]), name)
    else:
        raise AttributeError(f"module 'mirage_eg' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "IPython" in sys.modules:  # a notebook: objects show themselves
    import_module("mirage_eg.report.notebook").register_formatters()

__all__ = [
    "NEW_DIM",
    "REPLICATED",
    "DType",
    "Dim",
    "EGraph",
    "Graph",
    "GraphError",
    "KernelGraph",
    "LawPair",
    "MirageError",
    "MuGraph",
    "MuGraphs",
    "Node",
    "OptionError",
    "Program",
    "ProgramError",
    "RuleError",
    "SizedMuGraph",
    "Tensor",
    "ThreadblockGraph",
    "UnsupportedError",
    "__version__",
    "bfloat16",
    "egraph",
    "equal_for_all_shapes",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "float16",
    "float32",
    "float64",
    "from_json",
    "int8",
    "int16",
    "int32",
    "int64",
    "minimize",
    "mutants",
    "new_kernel_graph",
    "new_threadblock_graph",
    "onnx",
    "optimize_graph",
    "picture",
    "register_op",
    "superoptimize",
    "synthesize",
    "to_json",
    "torch",
    "uint8",
    "why",
]
