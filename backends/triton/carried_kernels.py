"""Kernels that another machine compiled, in a file of JSON lines: the Triton that torch brings need not compile them.

Thread block clusters need a later Triton than some versions of torch allow. `MIRAGE_EG_KERNELS` names such a file; a kernel
with the text, types, options and target of one in the file is loaded instead of compiled.
"""

import base64
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mirage_eg.ir.errors import OptionError

VARIABLE = "MIRAGE_EG_KERNELS"
RESOURCES = ("name", "shared", "num_warps", "num_ctas", "global_scratch_size")  # of the metadata of Triton's compiled kernel


@dataclass(frozen=True, slots=True)
class CarriedKernel:
    """A kernel that Triton compiled: what the runtime reads of it. Registers and spills are as in `KernelCompile`."""

    key: str
    metadata: dict[str, Any]
    registers: int | None
    spills: int | None
    image: bytes

    @property
    def compiled(self) -> Any:
        """In the form of Triton's compiled kernel."""
        return SimpleNamespace(metadata=SimpleNamespace(**self.metadata), asm={"cubin": self.image})


def key_of(source: Any, options: Mapping[str, Any], target: str) -> str:
    """The name of a kernel in a file: the same for all versions of Triton."""
    texts, wanted = {}, [source.fn]
    while wanted:
        function = wanted.pop()
        if function.fn.__name__ not in texts:
            texts[function.fn.__name__] = function.src
            names = set(re.findall(r"\w+", function.src))
            own = {name: value for name, value in function.fn.__globals__.items() if name in names and hasattr(value, "src")}
            wanted += [value for value in own.values() if value.fn.__module__ == function.fn.__module__]
    contents = (sorted(texts.items()), sorted(source.signature.items()), sorted(map(repr, source.constants.items())))
    return hashlib.sha256(repr((contents, sorted(options.items()), target)).encode()).hexdigest()


def write_kernels(path: Path, kernels: Iterable[CarriedKernel]) -> None:
    """Write the kernels to a file, each once."""
    with path.open("w", encoding="utf-8") as file:
        for kernel in {kernel.key: kernel for kernel in kernels}.values():
            image = base64.b64encode(zlib.compress(kernel.image, 9)).decode()
            file.write(json.dumps(asdict(kernel) | {"image": image}) + "\n")


def carried_kernel(key: str) -> CarriedKernel | None:
    """The kernel of the file that the environment names, if it is there. Raises OptionError: the file cannot be read."""
    path = os.environ.get(VARIABLE)
    return _kernels(path).get(key) if path else None


def carried_hash() -> str | None:
    """A hash of the names of the kernels in the file that the environment names, on which results depend."""
    path = os.environ.get(VARIABLE)
    return hashlib.sha256(" ".join(sorted(_kernels(path))).encode()).hexdigest()[:16] if path else None


def carries_clusters() -> bool:
    """Whether the file that the environment names has kernels in clusters."""
    path = os.environ.get(VARIABLE)
    return bool(path) and any(kernel.metadata["num_ctas"] > 1 for kernel in _kernels(str(path)).values())


@cache
def _kernels(path: str) -> Mapping[str, CarriedKernel]:
    try:
        lines = [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]
        kernels = [CarriedKernel(**line | {"image": zlib.decompress(base64.b64decode(line["image"]))}) for line in lines]
    except (OSError, ValueError, TypeError, KeyError, zlib.error) as error:
        raise OptionError(f"{VARIABLE}: got {path}, wanted a file of compiled kernels: {error}") from None
    return {kernel.key: kernel for kernel in kernels}
