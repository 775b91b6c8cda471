"""mirage_eg: an equality-saturation superoptimizer for GPU tensor programs.

Write a program with `new_kernel_graph`, or read one with `from_json`; every stage of the search is a function of its own.
"""

from mirage_eg.api import MuGraph, MuGraphs, Program, new_kernel_graph, superoptimize
from mirage_eg.draw import picture
from mirage_eg.ir.builder import (
    NEW_DIM,
    REPLICATED,
    KernelGraph,
    Tensor,
    ThreadblockGraph,
    new_threadblock_graph,
)
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.errors import GraphError, MirageError, OptionError, ProgramError, RuleError, UnsupportedError
from mirage_eg.ir.graph import Graph, Node
from mirage_eg.ir.serialize import from_json, to_json
from mirage_eg.new_op import register_op
from mirage_eg.shown import teach
from mirage_eg.version import __version__

teach()

float16 = DType.float16
bfloat16 = DType.bfloat16
float32 = DType.float32
float64 = DType.float64

__all__ = [
    "NEW_DIM",
    "REPLICATED",
    "DType",
    "Graph",
    "GraphError",
    "KernelGraph",
    "MirageError",
    "MuGraph",
    "MuGraphs",
    "Node",
    "OptionError",
    "Program",
    "ProgramError",
    "RuleError",
    "Tensor",
    "ThreadblockGraph",
    "UnsupportedError",
    "__version__",
    "bfloat16",
    "float16",
    "float32",
    "float64",
    "from_json",
    "new_kernel_graph",
    "new_threadblock_graph",
    "picture",
    "register_op",
    "superoptimize",
    "to_json",
]
