"""What the gate finds of a segment's kernels, kept with the entries of the result cache: no second process times again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GateTimes:
    """Measured microseconds of a segment, warm and cold: by our kernels, and by Inductor's code for the same nodes."""

    ours_us: float
    inductor_us: float
    ours_cold_us: float
    inductor_cold_us: float

    def are_faster(self, close: float) -> bool:
        """Whether our kernels are faster warm, by more than the factor `close`, and lose no more cold than they gain warm.

        Segments of MobileNet-v3 took 11.1 µs warm on an H200 and Inductor's code 26.6, but cold 51.1 and 50.1.
        """
        lost = self.ours_cold_us - self.inductor_cold_us
        return self.ours_us * close < self.inductor_us and lost <= self.inductor_us - self.ours_us


@dataclass(frozen=True, slots=True)
class GateErrors:
    """The largest error of our kernels and of torch against float64, over the largest element, and the largest one allowed.

    NaN is allowed where torch's own is too large to say anything of ours.
    """

    ours: float
    torch: float
    allowed: float


@dataclass(frozen=True, slots=True)
class GateFindings:
    """What the gate found of a segment's kernels: errors for a `max_error` of the settings, and times where it measured them.

    `source` is the hash of the program that it ran, `rounds` the ops that torch's settings let round to TF32, `mode` that of
    Inductor when it was timed, with the layout of images. `lost`: the error with which kernels ended the GPU context of another
    process.
    """

    source: str
    max_error: float
    errors: GateErrors
    times: GateTimes | None = None
    mode: str = ""
    rounds: str = ""
    lost: str = ""
