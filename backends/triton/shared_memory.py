"""Whether a block graph fits shared memory: by two bounds, and by the compiler if the limit is between them.

Triton places tiles in shared memory itself. The compiler gets the block graph alone, as a program of one kernel, and stops
after its allocation, a tenth of a second. Nothing here is trusted: kernels that a run keeps are compiled to the end.
"""

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from importlib import metadata
from importlib.util import find_spec
from math import prod
from os import environ
from types import ModuleType
from typing import Any

from mirage_eg.backends.triton.clusters import sliced_values
from mirage_eg.backends.triton.compile import compile_module, loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.backends.triton.storage import WGMMA_ROWS, is_dot
from mirage_eg.backends.triton.targets import TARGETS
from mirage_eg.backends.triton.tiles import expanded, padding
from mirage_eg.ir.errors import UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, Phase, node
from mirage_eg.ir.ops import OPS, Kind, Level
from mirage_eg.ir.reached import reached

_WARP_GROUPS: dict[str, tuple[bool, ...]] = {"3.6": (), "3.7": (), "3.9": (False,)}  # arguments of the pass of this name


@cache
def _version() -> str:
    """The version of the installed Triton, to its second number; "" without one."""
    try:
        return ".".join(metadata.version("triton").split(".")[:2])
    except metadata.PackageNotFoundError:
        return ""


def allocate(module: ModuleType, name: str, types: tuple[str, ...], target: str) -> int | None:
    """Bytes of shared memory of one kernel of an imported program; None if it does not compile."""
    device = TARGETS[target]
    if device.backend != "cuda" or _version() not in _WARP_GROUPS:
        records = {record.kernel: record for record, _ in compile_module(module, target, resources=False)}
        return records[name].shared_memory
    from triton._C.libtriton import ir, nvidia, passes
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import get_ptx_version_from_options
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend
    from triton.errors import TritonError

    kernel = getattr(module, name)
    aligned = {(position,): [["tt.divisibility", 16]] for position in range(len(types))}
    source = ASTSource(kernel, dict(zip(kernel.arg_names, types, strict=True)), {}, aligned)
    gpu = GPUTarget(device.backend, device.arch, device.warp_size)
    backend = make_backend(gpu)
    options = backend.parse_options(module.OPTIONS[name] | source.parse_options())
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    code_of = backend.get_codegen_implementation(options)
    settings = {"target": gpu, **options.__dict__}
    try:
        code = source.make_ir(gpu, options, code_of, backend.get_module_map(), context)
        for stage in ("ttir", "ttgir"):
            code = stages[stage](code, settings)
        manager = ir.pass_manager(code.context)
        passes.ttgpuir.add_combine_tensor_select_and_if(manager)
        passes.ttgpuir.add_allocate_warp_groups(manager, *_WARP_GROUPS[_version()])
        passes.convert.add_scf_to_cf(manager)
        passes.gluon.add_inliner(manager)
        version = get_ptx_version_from_options(options, device.arch)
        nvidia.passes.ttgpuir.add_allocate_shared_memory_nv(manager, device.arch, version)
        manager.run(code, "allocate_shared_memory")
    except (TritonError, RuntimeError):  # its own errors, MLIR's
        return None
    return int(code.get_int_attr("ttg.shared"))


_FLOAT32 = 4  # bytes
_SUMS = (Kind.MATMUL, Kind.REDUCTION, Kind.ACCUMULATOR)


def bounds(block: Graph, stages: int) -> tuple[int, int]:
    """The least and the most bytes of shared memory of a block graph whose loads are fetched ahead in `stages` stages.

    At least: the loads that a `tl.dot` reads; where there is a loop those of the loop alone, in `stages` − 1 buffers. At most:
    every load from which operands of `tl.dot` are computed, those of the loop in as many buffers (wgmma needs one more); every
    computed operand; and, to change its layout in float32, the largest result of a product or a reduction. Scratch of a few
    KiB is left out, as that of kernels without `tl.dot`. The lower bound holds for operands that are not swapped.
    """
    graph = expanded(block)
    padded, makers, slices = padding(graph), graph.node_of, sliced_values(graph)
    dots = [value for value, item in enumerate(makers) if item.kind is Kind.MATMUL and is_dot(graph, item)]
    operands = {operand for value in dots for operand in makers[value].operands}
    held = [prod(shape) // (graph.cluster if value in slices else 1) for value, shape in enumerate(padded)]  # by one block
    by_wgmma = any(prod(padded[value][:-1]) >= WGMMA_ROWS for value in dots)
    buffers = max(1, stages if by_wgmma else stages - 1)
    least = most = 0
    for value in _sources(operands, makers):
        nbytes, in_loop = held[value] * graph.types[value].dtype.itemsize, graph.phases[value] is Phase.LOOP
        if makers[value].op != "input":
            most += nbytes if value in operands else 0
            continue
        most += nbytes * (buffers if in_loop else 1)
        if value in operands and (in_loop or Phase.LOOP not in graph.phases):
            least += nbytes * (stages - 1 if in_loop else 1)
    results = [held[value] for value, item in enumerate(makers) if item.kind in _SUMS]
    return least, most + _FLOAT32 * max(results, default=0)


def _sources(operands: Iterable[int], makers: Sequence[Node]) -> set[int]:
    """The operands, and the values from which elementwise ops and rearrangements compute them."""
    moved = (Kind.ELEMENTWISE, Kind.REARRANGEMENT)
    return {*reached(operands, lambda value: makers[value].operands if OPS[makers[value].op].kind in moved else ())}


def fits_lower_bound(block: Graph, limit: int, stages: int) -> bool:
    """Whether the lower bound allows a block graph to fit `limit` bytes of shared memory."""
    return bounds(block, stages)[0] <= limit


def needed(block: Graph, limit: int, stages: int, target: str) -> int:
    """Bytes of shared memory: a bound if it decides whether they exceed `limit`, else the allocation of the compiler.

    Without a compiler, the lower bound.
    """
    least, most = bounds(block, stages)
    if least > limit:
        return least
    if most <= limit:
        return most
    allocated = allocated_bytes(block, stages, target)
    return least if allocated is None else allocated


@lru_cache(maxsize=4096)  # of the process: searches with equal blocks ask the compiler once
def allocated_bytes(block: Graph, stages: int, target: str) -> int | None:
    """Bytes that the compiler allocates for a block graph; None without a compiler, or if it cannot compile the kernel."""
    if find_spec("triton") is None or environ.get("TRITON_INTERPRET") == "1":
        return None
    try:
        source = emit(alone(block), schedule=Schedule(num_stages=stages))
    except UnsupportedError:
        return None
    with loaded(source) as module:
        [(name, types)] = module.SIGNATURES.items()
        return allocate(module, name, types, target)


def alone(block: Graph) -> Graph:
    """A kernel graph of a block graph and nothing else."""
    inputs = [node("input", shape=item["shape"], dtype=item["dtype"]) for item in block.inputs]
    outputs = [node("output", len(inputs) + number) for number in range(len(block.outputs))]
    return Graph((*inputs, node("block", *range(len(inputs)), graph=block), *outputs), Level.KERNEL)
