"""Filters of the user on block graphs, and the limits of a block of the device on tiles."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from mirage_eg.backends.cost.liveness import LiveTiles, is_of_rows, is_of_vector, live_bytes
from mirage_eg.backends.cost.registers import register_bytes
from mirage_eg.backends.triton.miscompilations import ROWS
from mirage_eg.backends.triton.shared_memory import fits_lower_bound, lower_bound
from mirage_eg.backends.triton.tiles import padded_elements
from mirage_eg.backends.triton.warps import WARP
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import Kind

_WGMMA_TARGETS = ("sm_90", "sm_100")
_SWIZZLED = 128  # bytes of a row that wgmma's tiles are swizzled in
_ROW_OF_WARP = 16  # rows, or columns, of a product's tile that warps do not share


@dataclass(frozen=True, slots=True)
class Filters:
    """Restrictions on block graphs; None admits everything. Maps are compared in the order of loads and outputs."""

    griddims: tuple[tuple[int, ...], ...] | None = None
    imaps: tuple[tuple[int, ...], ...] | None = None
    omaps: tuple[tuple[int, ...], ...] | None = None
    fmaps: tuple[int, ...] | None = None
    franges: tuple[int, ...] | None = None

    def admit(self, block: Graph) -> bool:
        grid = _trimmed(block.grid)
        return (
            (self.griddims is None or grid in {_trimmed(wanted) for wanted in self.griddims})
            and (self.franges is None or block.loop in self.franges)
            and (self.imaps is None or all(_prefix(item["imap"], self.imaps) for item in block.inputs))
            and (self.omaps is None or all(_prefix(item["omap"], self.omaps) for item in block.outputs))
            and (self.fmaps is None or all(item["fmap"] in self.fmaps for item in block.inputs))
        )


def _trimmed(grid: Sequence[int]) -> tuple[int, ...]:
    """A grid without trailing extents of 1."""
    extents = list(grid)
    while len(extents) > 1 and extents[-1] == 1:
        extents.pop()
    return tuple(extents)


def _prefix(got: tuple[int, ...], wanted: Sequence[tuple[int, ...]]) -> bool:
    return any(got == entry[: len(got)] for entry in wanted)


@dataclass(frozen=True, slots=True)
class TileLimits:
    """What a block may hold: bytes of shared memory for staged matmul operands, bytes of registers for tiles in float32.

    `cluster`: the most thread blocks that may hold a row together, a power of two.
    """

    shared_memory: int = 220 * 1024
    registers: int = 160 * 1024
    max_tile: int = 256  # of a parallel axis
    stages: int = 2
    multiprocessors: int = 132
    target: str = "sm_90"
    cluster: int = 1

    def capacity(self, rows: bool) -> int:
        """Bytes of registers for the tiles of a block; a block of `rows` stages no operand.

        Softmax and norms of 49,152 elements compile for sm_90 without spills.
        """
        return self.registers * 5 // 4 if rows else self.registers


def fits(block: Graph, limits: TileLimits) -> bool:
    """Whether the tiles fit: live tiles in registers, staged operands in shared memory, and no operand is miscompiled."""
    return (
        block.cluster <= limits.cluster
        and live_bytes(block) <= limits.capacity(is_of_rows(block))
        and not has_unfit_shape(block, limits)
        and fits_lower_bound(block, limits.shared_memory, limits.stages)
    )


def has_unfit_shape(block: Graph, limits: TileLimits) -> bool:
    """Whether a product's tiles do not fit by their shape: larger ones may."""
    return _overflows_registers(block, limits) or (limits.target in _WGMMA_TARGETS and _is_misread(block))


def holds(live: LiveTiles, shapes: Sequence[Sequence[int]], limits: TileLimits) -> bool:
    """Whether registers may hold the tiles of a block graph, with these shapes of its values."""
    clusters = (1, limits.cluster) if live.rows else (1,)
    return any(live.nbytes(shapes, cluster) <= limits.capacity(live.rows) for cluster in clusters)


def _is_misread(block: Graph) -> bool:
    """Whether Triton may read the right operand of a product in another order than it writes it (`miscompilations`)."""
    rights = (block.types[item.operands[1]] for item in block.nodes if item.kind is Kind.MATMUL)
    return any(
        prod(batch) == 1 and rows > ROWS and kind.dtype.itemsize == 2 and row * kind.dtype.itemsize > _SWIZZLED
        for kind in rights
        for *batch, rows, row in [kind.shape]
    )


def _overflows_registers(block: Graph, limits: TileLimits) -> bool:
    """Whether registers cannot hold the operands of a product: of 16 rows and columns each warp holds all of both.

    Other operands go through registers only outside a loop. Attention of one token in steps of 512 keys took 205 to 659 µs on
    an H100, in steps of 256 about 20. Products of 8 and 16 rows with 2,048 to 4,096 terms at once took 883 to 1,622 µs on an
    H200, and 61 to 78 in a loop.
    """
    for item in block.nodes:
        if item.kind is not Kind.MATMUL or is_of_vector(block, item):
            continue
        left, right = (block.types[operand] for operand in item.operands)
        size = max(left.dtype.itemsize, right.dtype.itemsize)
        if max(left.shape[-2], right.shape[-1]) <= _ROW_OF_WARP:
            overflows = 2 * _ROW_OF_WARP * left.shape[-1] * size > register_bytes(WARP)
        else:
            held = padded_elements(left.shape) + padded_elements(right.shape)
            overflows = block.loop == 1 and held * size > limits.registers
        if overflows:
            return True
    return False


def footprint(block: Graph, limits: TileLimits) -> tuple[int, int]:
    """Bytes of shared memory and of registers that a block needs at least."""
    return lower_bound(block, limits.stages), live_bytes(block)
