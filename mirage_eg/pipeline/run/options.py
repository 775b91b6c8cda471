"""What `optimize` can be told: one frozen record, checked at the border."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from math import inf, prod
from pathlib import Path
from time import time
from typing import Any

from mirage_eg.backends.cost.devices import DEFAULT_TARGET, Device, device_for, find_device
from mirage_eg.backends.triton.targets import TARGETS
from mirage_eg.backends.triton.warps import MOST_WARPS, WARP, warps_of
from mirage_eg.egraph.rule_files import DOMAINS, packaged_names
from mirage_eg.ir.errors import OptionError
from mirage_eg.pipeline.run.executors import check_executor

PLACES = ("auto", "cpu", "cuda")
RULES_VARIABLE = "MIRAGE_EG_RULES"  # more rule files and folders, separated as in PATH

Map = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a run; restrictions (`griddims` … `franges`) are None where anything may be chosen.

    `blockdims`: threads of a block in up to three extents, whose product is what counts; without a GPU to tune on, 128
    threads where they are among them, else the first. `imaps`, `omaps`: maps that an input, an output may have; `fmaps`:
    dims that the loop may walk (-1: none); `franges`: loop counts. `rules` are files and folders of laws besides the
    packaged ones, after those that MIRAGE_EG_RULES names; `without` are packaged theories to leave out. `max_kernels` None
    is as many kernels as it takes; what needs more stands behind. With `prefer_few_kernels` the number of kernels comes
    before time in the order of the results. `budget` is in seconds, of each stage before verification; `jobs` local
    processes, None is one a core; or an `executor`: dask, dask://HOST:PORT, or any concurrent.futures.Executor. With
    `cache`, a finished result is kept on disk and found again. Lists are taken for tuples.

    Raises:
        OptionError: a value that is not offered; the message names the option.
    """

    batch: int = 1
    domain: str = "indexed"
    max_block_ops: int = 16
    max_outputs: int = 3
    max_kernels: int | None = None
    prefer_few_kernels: bool = False
    target: str | None = None
    gpu: Device | str | None = None
    device: str = "auto"
    seed: int = 0
    top: int = 16
    trials: int = 2
    jobs: int | None = None
    executor: Executor | str | None = None
    budget: float | None = None
    cache: bool = True
    rules: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    griddims: tuple[Map, ...] | None = None
    blockdims: tuple[Map, ...] | None = None
    imaps: tuple[Map, ...] | None = None
    omaps: tuple[Map, ...] | None = None
    fmaps: tuple[int, ...] | None = None
    franges: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "max_block_ops", "max_outputs", "top", "trials"):
            _check_int(name, getattr(self, name), 1)
        for name in ("jobs", "max_kernels"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), 1)
        check_executor(self.executor)
        for name in ("cache", "prefer_few_kernels"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name}: got {getattr(self, name)!r}, wanted True or False")
        _check_int("seed", self.seed, 0)
        _check_choice("domain", self.domain, DOMAINS)
        self._check_gpu()
        _check_choice("device", self.device, PLACES)
        if self.budget is not None and (not isinstance(self.budget, int | float) or not 0 < self.budget < float("inf")):
            raise OptionError(f"budget: got {self.budget!r}, wanted a number of seconds above 0")
        self._check_rules()
        for name, least in (("griddims", 1), ("blockdims", 1), ("imaps", -1), ("omaps", -2)):
            if hint := _example(name, getattr(self, name)):
                raise OptionError(f"{name}: got {getattr(self, name)!r}, wanted a list of tuples{hint}")
            self._restrict(name, [_tuple_of_ints(name, entry, least, 3) for entry in _entries(name, getattr(self, name))])
        for entry in self.blockdims or ():
            if warps_of(prod(entry)) is None:
                raise OptionError(
                    f"blockdims: got {entry}, {prod(entry)} threads; wanted a power of two from {WARP} to {WARP * MOST_WARPS}"
                )
        for name, least in (("fmaps", -1), ("franges", 1)):
            self._restrict(name, [_check_int(name, entry, least) for entry in _entries(name, getattr(self, name))])

    @property
    def warps(self) -> tuple[int, ...] | None:
        """The warps that `blockdims` allow, in their order; None: any."""
        if self.blockdims is None:
            return None
        return tuple(dict.fromkeys(prod(entry) // WARP for entry in self.blockdims))

    @property
    def warps_untuned(self) -> int | None:
        """The warps of all blocks until tuning; None: as many as the lowering takes."""
        return None if self.warps is None else 4 if 4 in self.warps else self.warps[0]

    @property
    def kernels_of_search(self) -> int:
        """Kernels of one structure, which share a split: two where partial results may leave the first."""
        return 2 if self.max_kernels is None else min(2, self.max_kernels)

    def until(self) -> float:
        """When a stage that begins now has spent the budget, in seconds since 1970; infinite without a budget."""
        return inf if self.budget is None else time() + self.budget

    @property
    def device_record(self) -> Device:
        """The GPU that µGraphs are ranked for; its target is compiled for."""
        return self.gpu if isinstance(self.gpu, Device) else device_for(self.target or DEFAULT_TARGET)

    def _check_gpu(self) -> None:
        if self.target is not None:
            _check_choice("target", self.target, TARGETS)
        if self.gpu is None:
            return
        if not isinstance(self.gpu, Device | str):
            raise OptionError(f"gpu: got {self.gpu!r}, wanted a name, a FILE.json or a Device")
        gpu = find_device(self.gpu) if isinstance(self.gpu, str) else self.gpu
        _check_choice("gpu: target", gpu.target, TARGETS)
        if self.target not in (None, gpu.target):
            raise OptionError(
                f"gpu: got {gpu.name}, whose target is {gpu.target}, and target {self.target}; try: either of them alone"
            )
        object.__setattr__(self, "gpu", gpu)

    def _check_rules(self) -> None:
        if isinstance(self.rules, str | Path):
            raise OptionError(f"rules: got the single path {str(self.rules)!r}, wanted a sequence of paths")
        if isinstance(self.without, str):
            raise OptionError(f"without: got the single name {self.without!r}, wanted a sequence of names")
        named = os.environ.get(RULES_VARIABLE, "").split(os.pathsep)
        paths = tuple(dict.fromkeys([*filter(None, named), *map(str, self.rules)]))
        if paths or self.without:
            theories = packaged_names(self.domain)
            for path in paths:
                if not os.path.exists(path) and path not in theories:
                    raise OptionError(f"rules: no such file or folder: {path}")
            for name in self.without:
                if name not in theories:
                    raise OptionError(f"without: got {name!r}, wanted a theory: {', '.join(theories)}")
        object.__setattr__(self, "without", tuple(self.without))
        object.__setattr__(self, "rules", paths)

    def _restrict(self, name: str, entries: list[Any]) -> None:
        if getattr(self, name) is None:
            return
        if not entries:
            raise OptionError(f"{name}: got nothing to choose from; leave it out to allow everything")
        object.__setattr__(self, name, tuple(entries))


def _check_int(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name}: got {value!r}, wanted an int of at least {least}")
    return value


def _check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    if value not in choices:
        raise OptionError(f"{name}: got {value!r}, wanted one of {', '.join(choices)}")


def _entries(name: str, value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise OptionError(f"{name}: got {value!r}, wanted a list{_example(name, value)}")
    return value


def _example(name: str, value: Any) -> str:
    """A hint where one entry was given in place of a list of entries."""
    if name in ("fmaps", "franges"):
        return f"; for one entry: {name}=[{value}]" if isinstance(value, int) else ""
    entry = isinstance(value, tuple | list) and bool(value) and all(isinstance(extent, int) for extent in value)
    return f"; for one entry: {name}=[{tuple(value)}]" if entry else ""


def _tuple_of_ints(name: str, value: Any, least: int, longest: int) -> Map:
    if isinstance(value, str) or not isinstance(value, Sequence) or not 1 <= len(value) <= longest:
        raise OptionError(f"{name}: got {value!r}, wanted one to {longest} ints")
    return tuple(_check_int(name, entry, least) for entry in value)
