"""The options of `bench kernelbench` on GPUs; the command line reads them without loading the benchmark."""

from dataclasses import dataclass
from typing import Annotated

from mirage_eg.pipeline.run.option_fields import Option, check_fields

DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBenchOptions:
    """Options of a run on GPUs; they travel as JSON to the process of each problem."""

    dtype: Annotated[str, Option("Type of weights and inputs on a GPU; products are as torch has them.", choices=DTYPES)] = (
        "float32"
    )
    budget: Annotated[float, Option("Seconds of our first call on a GPU.", least=0, above=True)] = 40.0
    tune: Annotated[float, Option("Seconds of tuning for each distinct segment on a GPU.", least=0)] = 0.0
    min_ops: Annotated[int, Option("Fewest ops of a segment on a GPU.", least=1)] = 1
    baselines: Annotated[
        str, Option("Which baselines to time on a GPU: all, or quick (no max-autotune).", choices=("all", "quick"))
    ] = "all"
    parallel: Annotated[int, Option("Problems side by side on a GPU; they take turns on it.", least=1)] = 1
    device: str = "cuda"  # in tests the CPU

    def __post_init__(self) -> None:
        check_fields(self)
