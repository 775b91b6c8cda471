"""An array module that stands for CuPy where there is no GPU: NumPy's arrays, and CuPy's elementwise kernels built by g++."""

import ctypes
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

_C = {"float32": "float", "float64": "double", "uint64": "unsigned long long"}


class FakeCupy:
    """`launches` counts the kernels that were run, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launches: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def where(self, condition: np.ndarray, x: Any, y: Any) -> np.ndarray:
        return np.where(condition.astype(bool), x, y)  # CuPy's refuses a condition of Python

    def ElementwiseKernel(self, parameters: str, result: str, operation: str, name: str, preamble: str) -> "_Kernel":
        return _Kernel(self, parameters, operation, name, preamble)

    def ReductionKernel(
        self, parameters: str, result: str, term: str, add: str, value: str, zero: str, name: str, preamble: str
    ) -> "_Reduction":
        assert (result, add, zero) == ("float64 result", "a + b", "0")
        return _Reduction(self, parameters, term, value, name, preamble)


class _Reduction:
    """The terms by one kernel, their sums by NumPy, the values by another kernel."""

    def __init__(self, module: FakeCupy, parameters: str, term: str, value: str, name: str, preamble: str) -> None:
        self.module, self.name = module, name
        self.term = _Kernel(module, parameters, f"result = {term};", f"{name}_term", preamble)
        constants = parameters.split(", ", 1)[1]  # of one array, and numbers
        self.value = _Kernel(module, f"float64 a, {constants}", value, f"{name}_value", preamble)

    def __call__(self, x: Any, *constants: float, axis: tuple[int, ...], keepdims: bool) -> np.ndarray:
        sums = self.term.run(np.asarray(x), *constants).sum(axis=axis, keepdims=keepdims)
        self.module.launches[self.name] += 1
        return self.value.run(sums, *constants)


class _Kernel:
    def __init__(self, module: FakeCupy, parameters: str, operation: str, name: str, preamble: str) -> None:
        self.module, self.operation, self.name, self.preamble = module, operation, name, preamble
        self.parameters = [part.split() for part in parameters.split(", ")]

    def __call__(self, *arguments: Any) -> np.ndarray:
        self.module.launches[self.name] += 1
        return self.run(*arguments)

    def run(self, *arguments: Any) -> np.ndarray:
        pairs = list(zip(arguments, self.parameters, strict=True))
        arrays = [x for x, words in pairs if len(words) == 2 and isinstance(x, np.ndarray)]
        shape = np.broadcast_shapes(*(x.shape for x in arrays))
        result = np.empty(shape)
        heads, locals_, given = [], [], []
        keep = []
        for value, words in pairs:
            kind, name = words[-2], words[-1]
            if words[0] == "raw":
                assert str(value.dtype) == kind
                heads.append(f"const {_C[kind]}* {name}")
                given.append(ctypes.c_void_p(value.ctypes.data))
            elif isinstance(value, np.ndarray):  # one that CuPy would convert is refused by it: types are as declared
                assert kind in ("T", "U", str(value.dtype))
                dense = np.ascontiguousarray(np.broadcast_to(value, shape))
                keep.append(dense)
                heads.append(f"const {_C[str(dense.dtype)]}* all_{name}")
                locals_.append(f"const {_C[str(dense.dtype)]} {name} = all_{name}[i];")
                given.append(ctypes.c_void_p(dense.ctypes.data))
            else:
                heads.append(f"{_C[kind]} {name}")
                given.append(ctypes.c_double(value) if kind == "float64" else ctypes.c_uint64(int(value)))
        heads += ["double* results", "long n"]
        body = f"double result; {' '.join(locals_)} {self.operation}; results[i] = result;"
        source = (
            f"#include <cmath>\nusing std::floor, std::fabs, std::isfinite;\n#define __device__ static\n{self.preamble}\n"
            f'extern "C" void run({", ".join(heads)}) {{ for (long i = 0; i < n; i++) {{ {body} }} }}\n'
        )
        _built(self.module.folder, self.name, source).run(
            *given, ctypes.c_void_p(result.ctypes.data), ctypes.c_long(result.size)
        )
        return result


_libraries: dict[str, ctypes.CDLL] = {}


def _built(folder: Path, name: str, source: str) -> ctypes.CDLL:
    if source not in _libraries:
        stem = f"{name}_{len(_libraries)}"
        (folder / f"{stem}.cpp").write_text(source)
        assert re.fullmatch(r"\w+", stem)
        command = ["g++", "-O1", "-shared", "-fPIC", "-o", str(folder / f"{stem}.so"), str(folder / f"{stem}.cpp")]
        subprocess.run(command, check=True, capture_output=True)
        _libraries[source] = ctypes.CDLL(str(folder / f"{stem}.so"))
    return _libraries[source]
