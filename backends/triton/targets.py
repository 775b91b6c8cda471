"""GPU architectures that kernels are compiled for; `backends.cost.devices` has the GPUs of each and their rates."""

from dataclasses import dataclass
from functools import cache
from importlib import metadata


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
ALIGNMENT = 16  # bytes of a vector load; compiled kernels count on it at the address of every array

_CLUSTERS = ("sm_90", "sm_100")
_CLUSTER_TRITON = (3, 6)  # the first version whose clusters were tried

DEPENDENT_LAUNCHES = ("sm_90", "sm_100")
"""The targets on which a kernel may start while the one before it ends."""


def why_no_clusters(target: str) -> str | None:
    """Why blocks cannot be clusters, whose thread blocks reduce through distributed shared memory; None if they can."""
    if target not in _CLUSTERS:
        return f"{target} has no thread block clusters; {' and '.join(_CLUSTERS)} have them"
    return why_triton_has_none()


@cache
def why_triton_has_none() -> str | None:
    """Why Triton compiles no clusters; None if it does."""
    wanted = ".".join(map(str, _CLUSTER_TRITON))
    try:
        version = metadata.version("triton")
    except metadata.PackageNotFoundError:
        return f"clusters need Triton {wanted}; there is none"
    if tuple(map(int, version.split(".")[:2])) < _CLUSTER_TRITON:
        return f"clusters need Triton {wanted} or later, got {version}"
    return None
