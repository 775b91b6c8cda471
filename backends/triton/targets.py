"""GPU architectures that kernels are compiled for; `backends.cost.devices` has the GPUs of each and their rates."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU architecture: its name in Triton, threads of a warp, and bytes of shared memory that one block can have."""

    backend: str
    arch: int | str
    warp_size: int
    shared_memory: int

    @property
    def name(self) -> str:
        """Its key in TARGETS and in reports: sm_90, gfx942."""
        return f"sm_{self.arch}" if self.backend == "cuda" else str(self.arch)


TARGETS = {
    "sm_90": Target("cuda", 90, 32, 232_448),
    "sm_80": Target("cuda", 80, 32, 166_912),
    "sm_100": Target("cuda", 100, 32, 232_448),
    "gfx942": Target("hip", "gfx942", 64, 65_536),
}

DEPENDENT_LAUNCHES = ("sm_90", "sm_100")
"""The targets on which a kernel may start while the one before it ends."""
