"""The shared memory that the compiler allocates for a kernel, without compiling it to the end: at most a fifth of the time.

Triton's own passes run as far as the one that allocates, called as Triton 3.6, 3.7 and 3.9 call them; with another version, and
for another kind of GPU, the kernel is compiled to the end.
"""

from functools import cache
from importlib import metadata
from types import ModuleType
from typing import Any

from mirage_eg.backends.triton.compile import compile_module
from mirage_eg.backends.triton.targets import TARGETS

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
