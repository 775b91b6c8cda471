"""Options of `optimize`: one frozen record, checked where it is built; the command line has the same options."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any

from mirage_eg.backends.cost.devices import DEFAULT_TARGET, DEVICES, Device, device_for, find_device
from mirage_eg.backends.cost.user_cost import CostedKernel, UserCost, priced, user_cost
from mirage_eg.backends.triton.targets import TARGETS
from mirage_eg.backends.triton.warps import MOST_WARPS, WARP, warps_of
from mirage_eg.egraph.rule_files import DOMAINS, UNDEFINED, check_law_name, packaged_names
from mirage_eg.ir.deadline import Deadline, after
from mirage_eg.ir.errors import OptionError, RuleError
from mirage_eg.ir.expand import has_choices
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.run.executors import check_executor
from mirage_eg.pipeline.run.option_fields import Option, check_fields, check_int

PLACES = ("auto", "cpu", "cuda")
NOT_FINITE = ("lose", "keep")
RULES_VARIABLE = "MIRAGE_EG_RULES"  # more rule files and folders, separated as in PATH

Map = tuple[int, ...]
_GPU = f"What to rank for: {', '.join(DEVICES).lower()}, or a file of `bench cost`; default: the --target's first."


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a run; restrictions (`griddims` … `franges`) are None where every value is allowed.

    `blockdims`: threads of a block in up to three extents, of which the product counts; without a GPU to tune on, 128 threads
    if allowed, else the first. `imaps`, `omaps`: maps allowed for an input, an output; `fmaps`: dims that the loop may split
    (-1: none); `franges`: loop counts. `rules`: files and folders of laws besides the packaged ones, after those in
    MIRAGE_EG_RULES; `without`: packaged theories and laws to leave out. `weights`: names of inputs that are weights, besides
    the marked ones; `*` and `?` stand for any letters. The `egraph_*` fields limit the saturation of each e-graph of the
    search. Without `max_kernels` the number of kernels is free. `gpu` is a name, a JSON file or a record; it sets `target`,
    which it must equal where both are given. `cost` is a function of a `CostedKernel`, or FILE.py:FUNCTION. `budget` is in
    seconds, for the whole run; `jobs` counts local processes, None is one a core; or an `executor`: dask, dask://HOST:PORT, or
    any concurrent.futures.Executor. Lists are tuples.

    Raises OptionError: a value that is not allowed; the message names the option.
    """

    batch: Annotated[int, Option("Batch size of a workload, or of program(batch).", least=1)] = 1
    domain: Annotated[str, Option(f"Expressions that prune: {' or '.join(DOMAINS)}.", choices=DOMAINS)] = "indexed"
    max_block_ops: Annotated[int, Option("Most ops in a block graph, without loads and stores.", least=1)] = 16
    max_outputs: Annotated[int, Option("Most outputs of a block graph.", least=1)] = 3
    max_kernels: Annotated[int | None, Option("Most kernels in a µGraph; as many as it takes where not given.", least=1)] = None
    prefer_few_kernels: Annotated[bool, Option("Sort by the number of kernels first, then by time.")] = False
    target: Annotated[
        str | None, Option(f"What to compile for: {', '.join(TARGETS)}; default: the GPU's, else sm_90.", choices=TARGETS)
    ] = None
    gpu: Annotated[Device | str | None, Option(_GPU, metavar="GPU|FILE.json")] = None
    cost: Annotated[
        Callable[[CostedKernel], float] | UserCost | str | None,
        Option("A function of a kernel that gives its microseconds, at least the predicted ones.", metavar="FILE.py:FUNCTION"),
    ] = None
    device: Annotated[str, Option(f"Where to time: {', '.join(PLACES)}.", choices=PLACES)] = "auto"
    jobs: Annotated[
        int | None, Option("Local processes to use where the work is worth it; one a core where not given.", least=1)
    ] = None
    executor: Annotated[
        Executor | str | None, Option("Run on Dask instead: dask://HOST:PORT, or dask for a cluster of its own.", metavar="URL")
    ] = None
    rules: Annotated[tuple[str, ...], Option("More rules: a file or folder.", metavar="PATH")] = ()
    without: Annotated[tuple[str, ...], Option("A packaged theory or law to leave out.", metavar="THEORY|LAW")] = ()
    undefined: Annotated[
        str | None,
        Option(
            "Laws keep a value undefined, as √x·√x for x < 0, or are free to give it one; with choices a program keeps it, and "
            "without this option an imported one, too.",
            choices=UNDEFINED,
        ),
    ] = None
    not_finite: Annotated[
        str | None,
        Option(
            "Values that are one number for all numbers, as x − x, may lose the NaN and infinity of inputs, or keep them; "
            "without this option an imported program keeps them.",
            choices=NOT_FINITE,
        ),
    ] = None
    weights: Annotated[
        tuple[str, ...], Option("An input that stays the same from call to call, as 'W*'; may be repeated.", metavar="NAME")
    ] = ()
    egraph_nodes: Annotated[int | None, Option("Stop saturation at so many e-nodes.", least=1)] = None
    egraph_iterations: Annotated[int | None, Option("Stop saturation after so many iterations.", least=1)] = None
    egraph_seconds: Annotated[
        float | None, Option("Stop saturation after this processor time.", metavar="SECONDS", least=0, above=True)
    ] = None
    egraph_backoff: Annotated[
        int | None, Option("Pause a law of --rules that adds more e-nodes in an iteration, each time for longer.", least=1)
    ] = None
    allow_cut: Annotated[
        bool, Option("Search on, with a warning, where laws of --rules reach a limit of saturation; else that is an error.")
    ] = False
    budget: Annotated[
        float | None,
        Option("End the run after this time, with the best that was verified by then.", metavar="SECONDS", least=0, above=True),
    ] = None
    top: Annotated[int, Option("µGraphs to keep.", least=1)] = 8
    trials: Annotated[int, Option("Independent random inputs of a field check.", least=1)] = 2
    seed: Annotated[int, Option("Seed of every random choice.", least=0)] = 0
    cache: Annotated[bool, Option("Run even if the result of an earlier run is on disk, and keep none.", flag="--no-cache")] = (
        True
    )
    griddims: tuple[Map, ...] | None = None
    blockdims: tuple[Map, ...] | None = None
    imaps: tuple[Map, ...] | None = None
    omaps: tuple[Map, ...] | None = None
    fmaps: tuple[int, ...] | None = None
    franges: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        check_executor(self.executor)
        self._check_gpu()
        if self.cost is not None:
            object.__setattr__(self, "cost", user_cost(self.cost))
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
            self._restrict(name, [check_int(name, entry, least) for entry in _entries(name, getattr(self, name))])

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

    def undefined_in(self, program: Graph) -> str:
        """What laws may do with undefined values of a program; one with choices keeps them (`ir.choices`)."""
        if has_choices(program) or (self.undefined is None and program.keeps_undefined):
            return "keep"
        return self.undefined or "free"

    def not_finite_in(self, program: Graph) -> str:
        """Whether values of one number for all numbers lose what is not finite in the inputs of a program."""
        return self.not_finite or ("keep" if program.keeps_undefined else "lose")

    def until(self) -> Deadline:
        """When a run that begins now has spent the budget."""
        return after(self.budget)

    @property
    def device_record(self) -> Device:
        """The GPU that µGraphs are ranked for, by the cost of the user's if there is one; its target is compiled for."""
        device = self.gpu if isinstance(self.gpu, Device) else device_for(self.target or DEFAULT_TARGET)
        return priced(device, self.cost if isinstance(self.cost, UserCost) else None)

    def _check_gpu(self) -> None:
        if self.gpu is None:
            return
        if not isinstance(self.gpu, Device | str):
            raise OptionError(f"gpu: got {self.gpu!r}, wanted a name, a FILE.json or a Device")
        gpu = find_device(self.gpu) if isinstance(self.gpu, str) else self.gpu
        if gpu.target not in TARGETS:
            raise OptionError(f"gpu: got {gpu.name} of target {gpu.target!r}, wanted a target of {', '.join(TARGETS)}")
        if self.target not in (None, gpu.target):
            raise OptionError(
                f"gpu: got {gpu.name}, whose target is {gpu.target}, and target {self.target}; try: either of them alone"
            )
        object.__setattr__(self, "gpu", gpu)

    def _check_rules(self) -> None:
        for option, what in (("rules", "path"), ("weights", "name"), ("without", "name")):
            if isinstance(value := getattr(self, option), str | Path):
                raise OptionError(f"{option}: got the single {what} {str(value)!r}, wanted a sequence of {what}s")
            object.__setattr__(self, option, tuple(value))
        named = os.environ.get(RULES_VARIABLE, "").split(os.pathsep)
        paths = tuple(dict.fromkeys([*filter(None, named), *map(str, self.rules)]))
        if paths or self.without:
            theories = packaged_names(self.domain)
            for path in paths:
                if not os.path.exists(path) and path not in theories:
                    raise OptionError(f"rules: no such file or folder: {path}")
            for name in self.without:
                if name not in theories:
                    try:
                        check_law_name(name, self.domain)
                    except RuleError as error:
                        raise OptionError(str(error)) from None
        object.__setattr__(self, "rules", paths)

    def _restrict(self, name: str, entries: list[Any]) -> None:
        if getattr(self, name) is None:
            return
        if not entries:
            raise OptionError(f"{name}: got nothing to choose from; leave it out to allow everything")
        object.__setattr__(self, name, tuple(entries))


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
    return tuple(check_int(name, entry, least) for entry in value)
