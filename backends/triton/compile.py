"""Compiles emitted programs for a target, with or without a GPU: whether each kernel fits, its resources, its errors."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, groupby
from pathlib import Path
from types import ModuleType
from typing import Any

from mirage_eg.backends.evaluator.cpu_threads import raise_if_stopped
from mirage_eg.backends.triton.bounded_ptxas import SECONDS, Bound, bounded_ptxas
from mirage_eg.backends.triton.field_helpers import ASSEMBLER
from mirage_eg.backends.triton.kernel_binaries import ALIGNED_SIZE, CONSTANT, SIZE, Binary, binaries_of, kernel_name
from mirage_eg.backends.triton.miscompilations import find_miscompilation
from mirage_eg.backends.triton.targets import TARGETS, Target, why_no_clusters
from mirage_eg.ir.errors import MirageError, OptionError


@dataclass(frozen=True, slots=True)
class KernelCompile:
    """How one kernel compiled. Registers are per thread, shared memory and spills in bytes (spills per thread); None is
    unknown.
    """

    kernel: str
    target: str
    ok: bool
    shared_memory: int | None
    registers: int | None
    spills: int | None
    error: str | None
    seconds: float

    @property
    def wants_fewer_stages(self) -> bool:
        """Whether fewer stages may help: it exceeds shared memory, or Triton miscompiled it."""
        return not self.ok and self.shared_memory is not None


_module_numbers = count()


@contextmanager
def loaded(source: str | Path) -> Iterator[ModuleType]:
    """An emitted program, imported from its file or from its text.

    Raises MirageError: the file cannot be read, or it is no program that this package emits.
    """
    with tempfile.TemporaryDirectory(prefix="mirage_eg_") as folder:
        path = source if isinstance(source, Path) else Path(folder) / "program.py"  # Triton reads kernels from a file
        if isinstance(source, str):
            path.write_text(source, encoding="utf-8")
        name = f"_mirage_eg_program_{next(_module_numbers)}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise MirageError(f"{path}: not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except (OSError, SyntaxError) as error:
            raise MirageError(f"{path}: {error}") from error
        finally:
            del sys.modules[name]
        if not (hasattr(module, "INPUTS") or hasattr(module, "layouts")) or not hasattr(module, "run"):
            raise MirageError(f"{path}: has no INPUTS and run; wanted a program written by mirage_eg")
        yield module
        getattr(module, "KEPT", {}).clear()  # tensors; the module and its functions refer to each other


def cache_folder() -> Path:
    home = os.environ.get("TRITON_HOME") or Path.home()
    with _without_inductors_settings():
        return Path(os.environ.get("TRITON_CACHE_DIR") or Path(home, ".triton", "cache"))


@contextmanager
def _without_inductors_settings() -> Iterator[None]:
    """Triton's environment without what Inductor adds when it compiles a kernel in this process: a cache, and torch's ptxas.

    A process asks once for the version of ptxas, which is a part of Triton's keys. Workers that begin after Inductor inherit
    its ptxas: this process would not find what they compile, and would compile it again.
    """
    cache, ptxas = (Path(os.environ.get(name, "")) for name in ("TRITON_CACHE_DIR", "TRITON_PTXAS_PATH"))
    added = {}
    if cache.parent == Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""), "triton"):
        added["TRITON_CACHE_DIR"] = os.environ.pop("TRITON_CACHE_DIR")
    if ptxas.parts[-3:] == ("torch", "bin", "ptxas"):
        added["TRITON_PTXAS_PATH"] = os.environ.pop("TRITON_PTXAS_PATH")
    try:
        yield
    finally:
        os.environ.update(added)


def compile_source(source: str | Path, target: str) -> list[KernelCompile]:
    """Compile every kernel of an emitted program (its text, or the path of its file) for `target`.

    A kernel that fails to compile or needs more shared memory than a block may have is a record with `ok` false, no exception.

    Raises:
        OptionError: an unknown target.
        MirageError: the source is no emitted program.
    """
    known = target_of(target)
    with loaded(source) as module:
        return by_kernel(record for record, _ in compile_module(module, known))


def by_kernel(records: Iterable[KernelCompile]) -> list[KernelCompile]:
    """A record for each kernel, of those of its binaries (`kernel_binaries`)."""
    return [_of_kernel(name, [*its]) for name, its in groupby(records, lambda record: kernel_name(record.kernel))]


def _of_kernel(name: str, binaries: Sequence[KernelCompile]) -> KernelCompile:
    """The record of a kernel's binaries: the first that fails, else that which needs the most."""
    failed = [record for record in binaries if not record.ok]
    most = (failed or sorted(binaries, key=lambda each: (each.shared_memory or 0, each.registers or 0), reverse=True))[0]
    return replace(most, kernel=name, seconds=sum(record.seconds for record in binaries))


def compile_module(module: ModuleType, target: str | Target, resources: bool = True) -> list[tuple[KernelCompile, Any]]:
    """Compile every binary of an imported program: the record, and Triton's compiled kernel where there is one.

    `target` is a name in TARGETS, or a Target. Without `resources`, registers and spills stay unknown, which saves one
    process a kernel. Triton caches compiled kernels on disk, for all processes.

    Raises OptionError: an unknown target.
    """
    texts, device = compiled_texts(module, target), target_of(target)
    return [_compile(name, text, device, resources) for name, text in texts.items()]


def compile_kernel(source: str, name: str, target: str | Target, seconds: int, resources: bool = False) -> KernelCompile:
    """Compile one kernel of an emitted program, which is in Triton's cache then; ptxas has so many seconds of the processor."""
    with loaded(source) as module:
        return _compile(name, compiled_texts(module, target)[name], target_of(target), resources, seconds)[0]


@dataclass(frozen=True, slots=True)
class CompiledText:
    """What Triton compiles of a kernel, its options, and the key of both for a target."""

    source: Any
    options: dict[str, Any]
    key: str


def compiled_texts(module: ModuleType, target: str | Target) -> dict[str, CompiledText]:
    """What Triton compiles of each binary of an imported program (`kernel_binaries`): those with equal keys are compiled once.

    Raises OptionError: an unknown target.
    """
    device = target_of(target)
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise MirageError("TRITON_INTERPRET=1 is set, under which Triton compiles nothing; unset it")
    if device.backend != "cuda" and hasattr(module, ASSEMBLER):
        setattr(module, ASSEMBLER, type(getattr(module, ASSEMBLER))(False))
    texts = {}
    for name, types in getattr(module, "SIGNATURES", {}).items():
        for binary in binaries_of(name, types):
            source, options = _kernel_source(getattr(module, name), types, binary), dict(module.OPTIONS[name])
            source.warps = options.get("num_warps", source.warps)
            texts[binary.name] = CompiledText(source, options, f"{source.hash()} {options} {device}")
    return texts


def target_of(target: str | Target) -> Target:
    """The record of a target. Raises OptionError: an unknown name."""
    if isinstance(target, Target):
        return target
    if target not in TARGETS:
        raise OptionError(f"target: got {target!r}, wanted one of {', '.join(TARGETS)}")
    return TARGETS[target]


def _kernel_source(kernel: Any, types: tuple[str, ...], binary: Binary) -> Any:
    """What Triton compiles: a kernel with the types of its arguments and its constant; its place in the file is none."""
    from mirage_eg.backends.triton.kernel_size import MeasuredSource  # loads Triton

    kernel.starting_line_number = 1  # a part of the key of Triton's cache
    aligned = {
        (position,): [["tt.divisibility", 16]]
        for position, kind in enumerate(types)
        if kind.startswith("*") or (kind == ALIGNED_SIZE and binary.aligned)  # torch and CuPy allocate so
    }
    constants = {} if binary.full is None else {(types.index(CONSTANT),): binary.full}
    plain = (SIZE if kind == ALIGNED_SIZE else kind for kind in types)
    return MeasuredSource(kernel, dict(zip(kernel.arg_names, plain, strict=True)), constants, aligned)


def _compile(
    name: str, text: CompiledText, device: Target, resources: bool, most_seconds: int = SECONDS
) -> tuple[KernelCompile, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.errors import TritonError

    raise_if_stopped()
    started = time.perf_counter()
    target = device.name
    bound = Bound(most_seconds)
    if text.options.get("num_ctas", 1) > 1 and (why := why_no_clusters(target)) is not None:
        return KernelCompile(name, target, False, None, None, None, why, time.perf_counter() - started), None
    try:
        gpu = GPUTarget(device.backend, device.arch, device.warp_size)
        with bounded_ptxas(bound), _without_inductors_settings():
            compiled = triton.compile(text.source, target=gpu, options=text.options)
    # The stages of Triton's compiler raise its own errors, MLIR's (RuntimeError), and errors of checks in Python.
    except (TritonError, RuntimeError, ValueError, TypeError, AssertionError, LookupError) as error:
        why = bound.problem or (str(error) if isinstance(error, MirageError) else _one_line(error))
        return KernelCompile(name, target, False, None, None, None, why, time.perf_counter() - started), None
    except OSError as error:  # its cache cannot be written
        raise OptionError(
            f"{cache_folder()}: Triton cannot write its cache: {error.strerror or error}; try: another TRITON_CACHE_DIR"
        ) from None
    shared = int(compiled.metadata.shared)
    registers, spills = _resources(compiled.asm) if resources else (None, None)
    fits = shared <= device.shared_memory
    too_much = f"needs {shared} bytes of shared memory; a block on {target} may have {device.shared_memory}"
    problem = find_miscompilation(compiled.asm["ttgir"], compiled.asm.get("ptx", "")) if fits else too_much
    seconds = time.perf_counter() - started
    return KernelCompile(name, target, problem is None, shared, registers, spills, problem, seconds), compiled


def _one_line(error: BaseException) -> str:
    """The last line with text; Triton's errors begin with the source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^\t")]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"


def _resources(assembly: dict[str, Any]) -> tuple[int | None, int | None]:
    """Registers and bytes of spills of one thread."""
    if "cubin" in assembly:
        return _cubin_resources(assembly["cubin"])
    text = assembly.get("amdgcn", "")
    registers, spilled = (re.search(rf"\.{name}:\s+(\d+)", text) for name in ("vgpr_count", "vgpr_spill_count"))
    return (int(registers[1]) if registers else None), (4 * int(spilled[1]) if spilled else None)


def _cubin_resources(cubin: bytes) -> tuple[int | None, int | None]:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        return None, None
    with tempfile.TemporaryDirectory(prefix="mirage_eg_") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([tool, "--dump-resource-usage", path], capture_output=True, text=True, check=False)
    match = re.search(r"REG:(\d+) STACK:(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else (None, None)
