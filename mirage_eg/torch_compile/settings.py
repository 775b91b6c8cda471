"""Settings of the backend: one frozen record, checked where it is built; torch.compile passes the same names as `options`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from mirage_eg.ir.errors import OptionError
from mirage_eg.pipeline.run.option_fields import Option, check_fields, check_names
from mirage_eg.pipeline.run.options import NOT_FINITE

SEARCHES = ("offline", "once", "always")
EAGER = "eager"  # torch's own ops: for nodes outside segments, or for a whole graph where they are faster than Inductor's code
RESTS = ("inductor", EAGER)
GATES = ("auto", "time", "cost", "off")
EVIDENCE = ("tested", "proved")
AUTO, AUTOTUNED = "auto", "max-autotune-no-cudagraphs"
PASS = "joint_custom_pre_pass"
MODES = ("reduce-overhead", "max-autotune", AUTOTUNED, AUTO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the backend.

    `search`: *offline* never searches and takes what the cache has; *once* searches what the cache lacks; *always* searches
    again. `budget`: seconds of a first call, from import to the gate, which distinct segments share by their ops, and so do the
    graphs between the breaks of one function; what does not fit stays with torch. `tune`: most seconds of tuning on the GPU for
    each segment, of all at most `budget` besides; 0 for none. A segment of fewer than `min_ops` ops stays with torch, and so do
    the ATen ops named in `executed_by_torch` (`aten.mm.default`, `mm`). `rest` compiles everything else; `mode` is Inductor's,
    which torch.compile takes by itself or, with other options, among them; with *auto* it is default or
    max-autotune-no-cudagraphs, by the clock.
    `gate`: *time* uses a segment where it is faster than Inductor's code for the same nodes, *cost* where the cost model
    predicts so, *off* wherever there is a fused kernel; *auto* is *time* on a GPU and *cost* on a CPU, where kernels run in
    Triton's interpreter. On a CPU *time* leaves all to torch. The error of a segment against float64 may be `max_error` times
    torch's own. `verify`: *proved* asks for a proof of each kernel. `buckets`: largest sizes of the buckets of a symbolic size,
    by the name that `explain` shows. With `constant_weights` graph substitutions may join parameters and buffers, once; weights
    that change in place are joined again, except by CUDA graphs.
    `not_finite`: values that are one number for all numbers, as x − x, *keep* NaN and infinity of inputs, or may *lose* them.
    `cache` names the folder of found kernels, or is `off`; without it MIRAGE_EG_CACHE decides. `report` is a folder for the
    reports of the searches and of the backend.

    Raises OptionError: a value that is not allowed; the message names the setting.
    """

    search: Annotated[str, Option("When to search for kernels.", choices=SEARCHES)] = "once"
    budget: Annotated[float, Option("Seconds of a first call, shared by its segments.", least=0, above=True)] = 60.0
    tune: Annotated[float, Option("Most seconds of tuning for a distinct segment.", least=0)] = 0.0
    min_ops: Annotated[int, Option("Fewest ops of a segment.", least=1)] = 3
    executed_by_torch: Collection[str] = ()
    rest: Annotated[str, Option("What compiles everything outside segments.", choices=RESTS)] = "inductor"
    gate: Annotated[str, Option("How a segment is held against Inductor.", choices=GATES)] = "auto"
    buckets: Mapping[str, Sequence[int]] | None = None
    verify: Annotated[str, Option("The evidence that a kernel needs.", choices=EVIDENCE)] = "tested"
    max_error: Annotated[float, Option("Largest error, in errors of torch itself.", least=0, above=True)] = 2.0
    constant_weights: Annotated[bool, Option("Compute functions of weights once; CUDA graphs do not see later weights.")] = (
        False
    )
    not_finite: Annotated[
        str, Option("Values of one number for all numbers lose NaN and infinity, or keep them.", choices=NOT_FINITE)
    ] = "keep"
    mode: Annotated[str | None, Option("The mode of Inductor.", choices=("default", *MODES))] = None
    cache: str | None = None
    report: Path | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "mode", None if self.mode == "default" else self.mode)
        names = self.executed_by_torch
        if isinstance(names, str) or not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
            raise OptionError(f"executed_by_torch: got {names!r}, wanted a list of names of ATen ops, such as ['mm']")
        object.__setattr__(self, "executed_by_torch", tuple(names))
        if self.cache is not None and (not isinstance(self.cache, str | Path) or not str(self.cache)):
            raise OptionError(f"cache: got {self.cache!r}, wanted a folder or off")
        if self.report is not None:
            if not isinstance(self.report, str | Path):
                raise OptionError(f"report: got {self.report!r}, wanted a folder")
            object.__setattr__(self, "report", Path(self.report))
        self._check_buckets()

    @property
    def inductor(self) -> dict[str, Any]:
        """The configuration of Inductor in the mode; of *auto* that of the default, unless the whole graph decides."""
        return self.inductor_as("")

    def inductor_as(self, entry: str) -> dict[str, Any]:
        """The configuration whose code torch's caches keep apart as an entry.

        Where the user has no pass there, it sets the flags of causal attention, and has the name of the entry.
        """
        import torch
        from torch._inductor import config as inductor

        from mirage_eg.torch_compile.causal_pass import CausalFlags

        config: dict[str, Any] = torch._inductor.list_mode_options(self.mode) if self.mode not in (None, AUTO) else {}
        is_own = isinstance(found := getattr(inductor, PASS), CausalFlags)  # of a graph around this one
        return config | {PASS: CausalFlags(entry)} if is_own or not found else config

    @property
    def inductor_kernels(self) -> dict[str, Any]:
        """The part of it that changes kernels: CUDA graphs are recorded of the whole, and for timing. Flags are set before."""
        return {name: value for name, value in self.inductor.items() if "cudagraph" not in name and name != PASS}

    def _check_buckets(self) -> None:
        if self.buckets is None:
            return
        if not isinstance(self.buckets, Mapping):
            raise OptionError(f"buckets: got {self.buckets!r}, wanted sizes by name, such as {{'n0': [16, 64]}}")
        for name, ends in self.buckets.items():
            sizes = ends if isinstance(ends, Sequence) else ()
            if not sizes or not all(type(end) is int and end > 0 for end in sizes) or [*sizes] != sorted({*sizes}):
                raise OptionError(f"buckets: {name}: got {ends!r}, wanted rising sizes, such as [1, 16, 64]")
        frozen = {name: tuple(ends) for name, ends in self.buckets.items()}
        object.__setattr__(self, "buckets", MappingProxyType(frozen))


def budget_spent(settings: Settings, stages: str = "") -> str:
    """The reason why a segment stays with torch when its share of the seconds is over, with the `stages` that took them."""
    return f"its share of the {settings.budget:g} s of budget was spent{stages}; try: a larger budget"


def settings_of(options: Mapping[str, Any] | None, mode: str | None = None) -> Settings:
    """The settings that torch.compile was given as `options` or `mode`, which it does not take together.

    Raises OptionError: a name or value that is not allowed.
    """
    check_names("options", options or (), Settings)
    return Settings(**{"mode": mode} | dict(options or {}))
