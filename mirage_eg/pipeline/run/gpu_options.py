"""The options of `bench gpu`; the command line reads them without loading the benchmark."""

from dataclasses import dataclass
from typing import Annotated

from mirage_eg.pipeline.run.option_fields import Option, check_fields

BASELINES = ("all", "quick", "external", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOptions:
    """Options of the GPU benchmark; they travel as JSON to the process of each row.

    `reuse` is a file of rows whose choices are timed again instead of tuning. `top` is the number of µGraphs to report.
    """

    baselines: Annotated[
        str,
        Option(
            "Which baselines to time: all, quick (no max-autotune, no external ones), external (kernels of other projects, if "
            "installed), none. Others of an earlier run in the folder count, too.",
            choices=BASELINES,
        ),
    ] = "all"
    parallel: Annotated[int, Option("Rows side by side on a GPU; they take turns on it.", least=1)] = 1
    seconds: Annotated[float, Option("Seconds of tuning a row, without waiting for the GPU.", least=0)] = 60.0
    row_seconds: Annotated[float, Option("Seconds after which a row is given up.", least=0)] = 600.0
    structures: Annotated[int, Option("µGraphs in the first round of tuning.", least=1)] = 32
    jobs: Annotated[int | None, Option("Processes that compile, a row; by default the cores are shared.", least=1)] = None
    reuse: Annotated[str | None, Option("Time the choices of these rows instead of tuning.", metavar="ROWS.jsonl")] = None
    seed: Annotated[int, Option("Seed of every random choice.", least=0)] = 0
    top: int = 3

    def __post_init__(self) -> None:
        check_fields(self)


DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBenchOptions:
    """Options of a run on GPUs; they travel as JSON to the process of each problem."""

    dtype: Annotated[str, Option("Type of weights and inputs on a GPU; products are as torch has them.", choices=DTYPES)] = (
        "float32"
    )
    budget: Annotated[float, Option("Seconds of our first call on a GPU.", least=0, above=True)] = 40.0
    tune: Annotated[float, Option("Most seconds of tuning for a distinct segment on a GPU.", least=0)] = 0.0
    min_ops: Annotated[int, Option("Fewest ops of a segment on a GPU.", least=1)] = 1
    baselines: Annotated[
        str, Option("Which baselines to time on a GPU: all, or quick (no max-autotune).", choices=("all", "quick"))
    ] = "all"
    parallel: Annotated[int, Option("Problems side by side on a GPU; they take turns on it.", least=1)] = 1
    device: str = "cuda"  # in tests the CPU

    def __post_init__(self) -> None:
        check_fields(self)
