"""A bucket of sizes of named dims, with the µGraph that serves all of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from mirage_eg.ir.sizes import SizeRange
from mirage_eg.pipeline.kernel_summary import kernel_summary
from mirage_eg.pipeline.run.result import Candidate
from mirage_eg.verify.all_sizes import SizesVerdict

Ranges = Mapping[str, SizeRange]
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Bucket:
    """The µGraph for all sizes in `ranges`: at the sizes in `tuned`, for which its tiles were chosen, with the source for all.

    `seconds`: of its instantiation.
    """

    ranges: dict[str, SizeRange]
    tuned: dict[str, int]
    candidate: Candidate
    verdict: SizesVerdict
    seconds: float

    @property
    def name(self) -> str:
        """The name of its files."""
        return "_".join(
            f"{name}_{values.least}" + (f"-{values.largest}" if values.largest > values.least else "")
            for name, values in self.ranges.items()
        )

    @property
    def line(self) -> str:
        """The bucket in one line."""
        span = ", ".join(f"{name} {values.least}–{values.largest}" for name, values in self.ranges.items())
        verified = "proved" if self.verdict.proof.proved else "tested"
        known = f"{'predicted' if self.candidate.measured_us is None else 'measured'} {self.candidate.us:.1f} µs"
        return f"{span}: {kernel_summary(self.candidate.graph)}; {known} at the largest; {verified}"

    def holds(self, sizes: Sizes) -> bool:
        """Whether the sizes are in the bucket."""
        return all(values.least <= sizes[name] <= values.largest for name, values in self.ranges.items())
