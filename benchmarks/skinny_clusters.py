"""What a cluster shares in a product of few rows: the statistics of RMSNorm, and x, which is multicast.

    python benchmarks/skinny_clusters.py build FOLDER                    Triton 3.9, no GPU
    python benchmarks/skinny_clusters.py measure FOLDER [--json FILE]    torch and a GPU, any Triton

`build` compiles the kernels of `skinny_kernels.py` for sm_90. `measure` launches them by the CUDA driver, in a process for each
program. Each form is compared with float64. Then the right forms are timed in turn, in CUDA graphs, with warm caches and with a
flushed L2 cache. The weight has one row for each element of a result; RMSNorm has no weight of its own.
"""

import argparse
import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from clusters import asked

from mirage_eg.backends.measure.timing import gpu_available, gpu_name, time_alternately, timing_stream
from mirage_eg.backends.runtime.cuda_driver import Function, cuda_driver

ROWS, K, WIDTHS = 16, 4096, (6144, 28_672)
TILE, COLUMNS, STAGES, CLUSTERS = 64, 128, (4, 8), (2, 4, 8)  # of the weight: rows a block, columns an iteration, buffers
WARPS, WRONG = 4, 1e-2
_TILED, _FLOAT16, _SWIZZLE_128, _PROMOTE_128 = 2, 6, 3, 2  # rank, then CU_TENSOR_MAP_…


@dataclass(frozen=True)
class Launch:
    """A kernel of a form, by the name of its file; `n` is 0 for RMSNorm alone, one row in each cluster."""

    file: str
    cluster: int
    n: int
    stages: int = 0
    multicast: bool = False
    statistics: str | None = None


@dataclass(frozen=True)
class Form:
    """The launches that compute a program of width `n`, with RMSNorm or without."""

    norm: bool
    n: int
    name: str
    launches: tuple[Launch, ...]

    @property
    def program(self) -> str:
        """Its name in the table."""
        return f"{'RMSNorm and product' if self.norm else 'product'}, {ROWS} × {K:,} × {self.n:,}"


def forms() -> Iterator[Form]:
    """All forms, those of a program together."""
    for n in WIDTHS:
        for stages in STAGES:
            yield Form(False, n, f"one block, {stages} buffers", (_product(1, n, stages),))
            for cluster in CLUSTERS:
                for multicast in (False, True):
                    name = f"cluster of {cluster}, {'multicast' if multicast else 'x in each block'}, {stages} buffers"
                    yield Form(False, n, name, (_product(cluster, n, stages, multicast),))
    for n in WIDTHS:
        for stages in STAGES:
            yield Form(True, n, f"statistics in each block, {stages} buffers", (_product(1, n, stages, statistics="whole"),))
            for cluster in CLUSTERS:
                one = _product(cluster, n, stages, statistics="shared")
                yield Form(True, n, f"statistics in a cluster of {cluster}, {stages} buffers", (one,))
            for cluster in (1, 4):
                row = f"a row a cluster of {cluster}" if cluster > 1 else "a row a block"
                norm = Launch(f"norm_{cluster}", cluster, 0)
                yield Form(True, n, f"two launches, {row}, {stages} buffers", (norm, _product(1, n, stages)))


def _product(cluster: int, n: int, stages: int, multicast: bool = False, statistics: str | None = None) -> Launch:
    name = "_".join(map(str, ("product", cluster, n, stages, "multicast" if multicast else "each", statistics)))
    return Launch(name, cluster, n, stages, multicast, statistics)


def build(folder: Path) -> int:
    """Compile each kernel, into a cubin and what its launch needs."""
    from skinny_kernels import compile_norm, compile_product

    folder.mkdir(parents=True, exist_ok=True)
    for launch in dict.fromkeys(launch for form in forms() for launch in form.launches):
        if launch.n == 0:
            kernel = compile_norm(K, launch.cluster)
        else:
            settings = launch.stages, launch.multicast, launch.statistics
            kernel = compile_product(ROWS, K, launch.n, launch.cluster, TILE, COLUMNS, *settings)
        (folder / f"{launch.file}.cubin").write_bytes(kernel.asm["cubin"])
        about = {"name": kernel.metadata.name, "shared": kernel.metadata.shared}
        (folder / f"{launch.file}.json").write_text(json.dumps(about), encoding="utf-8")
        print(f"{launch.file}: {about}", flush=True)
    return 0


def _descriptor(tensor: Any, rows: int) -> tuple[Any, ...]:
    """The arguments for a matrix of which a load takes `rows` rows of 128 bytes: its tensor map, extents and strides."""
    storage = ctypes.create_string_buffer(128 + 64)
    place = ctypes.addressof(storage)
    tensor_map = (ctypes.c_char * 128).from_buffer(storage, -place % 64)
    extents, box = (ctypes.c_uint64 * 2)(tensor.shape[1], tensor.shape[0]), (ctypes.c_uint32 * 2)(64, rows)
    strides, steps = (ctypes.c_uint64 * 1)(2 * tensor.shape[1]), (ctypes.c_uint32 * 2)(1, 1)
    encode = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    address = ctypes.c_void_p(tensor.data_ptr())
    kinds = 0, _SWIZZLE_128, _PROMOTE_128, 0
    if status := encode(tensor_map, _FLOAT16, _TILED, address, extents, strides, box, steps, *kinds):
        raise SystemExit(f"cuTensorMapEncodeTiled: error {status}")
    shape = (ctypes.c_int32(extent) for extent in tensor.shape)
    return (tensor_map, *shape, *(ctypes.c_int64(stride) for stride in tensor.stride()))


def prepared(folder: Path, form: Form) -> tuple[Callable[[], None], Any, dict[str, Any]]:
    """A function that launches a form on the current stream, its result, and its inputs."""
    import torch

    driver, device = cuda_driver(), torch.cuda.current_device()
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn((ROWS, K), generator=generator, device="cuda").half()
    weight = (torch.randn((form.n, K), generator=generator, device="cuda") / K**0.5).half()
    normal, out = torch.zeros_like(x), torch.full((ROWS, form.n), torch.nan, dtype=torch.float16, device="cuda")
    calls, source = [], x
    for launch in form.launches:
        about = json.loads((folder / f"{launch.file}.json").read_text("utf-8"))
        image, shared = (folder / f"{launch.file}.cubin").read_bytes(), about["shared"]
        handle = driver.load(device, about["name"], image, shared, launch.cluster)
        if launch.n == 0:
            arguments, grid, source = _pointers(x, normal), ROWS, normal
        else:
            matrices = *_descriptor(source, ROWS), *_descriptor(weight, TILE)
            arguments, grid = (*matrices, *_pointers(source, out)), launch.n // (TILE * launch.cluster)
        arguments += ctypes.c_void_p(0), ctypes.c_void_p(0)  # no scratch memory
        function = Function(handle, 32 * WARPS, shared, cluster=launch.cluster)
        parameters = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        calls.append((function, (grid, 1, 1), parameters, arguments))

    def run() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for function, grid, parameters, _ in calls:
            if status := driver.prepare(function, grid, stream, parameters)():
                driver.refuse(status)

    return run, out, {"x": x, "weight": weight, "normal": normal}


def _pointers(*tensors: Any) -> tuple[Any, ...]:
    return tuple(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors)


def _torch(form: Form, x: Any, weight: Any) -> Any:
    import torch

    return torch.nn.functional.linear(torch.nn.functional.rms_norm(x, (K,), eps=0.0) if form.norm else x, weight)


def check_and_time(folder: Path, places: list[int]) -> int:
    """Print the error of each form at these places, and microseconds, warm, spread and cold, of torch and of the right forms.

    An error is the largest of an element, relative to the wanted element plus the mean of all.
    """
    import torch

    chosen, errors = [[*forms()][place] for place in places], []
    with timing_stream():
        ready = [prepared(folder, form) for form in chosen]
        inputs = ready[0][2]
        wanted = _torch(chosen[0], inputs["x"].double(), inputs["weight"].double())
        for run, out, _ in ready:
            run()
            torch.cuda.synchronize()
            differences = (out - wanted).abs() / (wanted.abs() + wanted.abs().mean())
            errors.append(float(differences.nan_to_num(torch.inf).max()))
    runs: list[Callable[[], object]] = [lambda: _torch(chosen[0], inputs["x"], inputs["weight"])]
    runs += [run for (run, _, _), error in zip(ready, errors, strict=True) if error < WRONG]
    print(json.dumps([errors, [[it.warm_us, it.warm_spread_us, it.cold_us] for it in time_alternately(runs, 20)]]))
    return 0


def measure(folder: Path, path: Path | None) -> int:
    """Check every form, time the right ones, print a table; exit code 1 if one is wrong or fails, 2 without a GPU."""
    if not gpu_available():
        print("skinny_clusters: no CUDA GPU is usable here; run it on a machine with one", file=sys.stderr)
        return 2
    every, device, lines = [*forms()], gpu_name(), []
    for program, group in groupby(range(len(every)), lambda place: every[place].program):
        places = [*group]
        found, problem = asked(__file__, "time", folder, *places)
        errors, timed = found or ([None] * len(places), [])
        times = iter(timed)
        rows = [("torch", 0.0), *((every[place].name, error) for place, error in zip(places, errors, strict=True))]
        for name, error in rows:
            right = error is not None and error < WRONG
            warm, spread, cold = next(times, (None, None, None)) if right else (None, None, None)
            line = {"program": program, "form": name, "us": warm, "spread_us": spread, "cold_us": cold, "error": error}
            lines.append(line | {"problem": problem or None, "device": device})
            shown = f"{'-':>9}" if warm is None else f"{warm:9.2f} ± {spread:5.2f}, cold {cold:9.2f}"
            verdict = problem or ("" if name == "torch" else f"{'' if right else 'WRONG, '}error {error:.0e}")
            print(f"{program:38} {name:42} {shown} µs  {verdict}", flush=True)
    if path:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return 0 if all(line["us"] is not None for line in lines) else 1


def main() -> int:
    """Build or measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=["build", "measure", "time"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("places", nargs="*", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    match given.step:
        case "build":
            return build(given.folder)
        case "time":
            return check_and_time(given.folder, given.places)
    return measure(given.folder, given.json)


if __name__ == "__main__":
    sys.exit(main())
