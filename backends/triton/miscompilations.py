"""Triton's miscompilations of asynchronous products on tensor cores (wgmma), detected in its intermediate code.

Two things were seen, in the code of Triton 3.6, 3.7 and 3.9, and are looked for in every kernel compiled for such a GPU:

- A tile that wgmma reads while it is fetched ahead needs one buffer more than it is fetched ahead by. The pipeliner gives that
  one to loads that the product alone reads; if registers are filled from the load too, the next tile overwrites what is
  still being read. Whether outputs are wrong hangs on timing (on an H100, by a quarter to half of the largest element).
- A tile of more than 256 rows that are longer than what is swizzled together (128 bytes, mostly) is written in one order, and
  read in another. Outputs are wrong every time.

Emitted kernels avoid both (`emit_readers.needs_copy`, `mirage_eg.search.instantiate.limits`); here it is seen that they do.
"""

import re
from collections import Counter

ROWS = 256  # of a tile, at most, where its rows are longer than what is swizzled together

_LAYOUT = re.compile(
    r"^(#\w+) = #ttg\.nvmma_shared<\{swizzlingByteWidth = (\d+), transposed = (\w+), elementBitWidth = (\d+)", re.MULTILINE
)
_RING = re.compile(r"(%[\w-]+) = ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x")
_SLOT = re.compile(r"(%[\w-]+) = ttg\.memdesc_index (%[\w-]+)\[")
_VIEW = re.compile(r"(%[\w-]+) = ttg\.memdesc_\w+ (%[\w-]+)")
_COPY = re.compile(r"async_(?:copy_global_to_local %[\w-]+,|tma_copy_global_to_local %[\w-]+\[[^\]]*\]) (%[\w-]+)")
_DOT = re.compile(r"ttng\.warp_group_dot (%[\w-]+), (%[\w-]+), .*isAsync = true")
_WAIT = re.compile(r"ttng\.warp_group_dot_wait .*pendings = ([1-9]\d*)")
_TILE = re.compile(r"!ttg\.memdesc<((?:\d+x)+)\w+, (#\w+), #smem(?:, mutable)?(?:, ([\dx]+))?>")
_LOCATION = re.compile(r" loc\(.*")


def find_miscompilation(code: str) -> str | None:
    """The miscompilation of a kernel in TTGIR; None without one."""
    lines = [_LOCATION.sub("", line) for line in code.splitlines() if not line.startswith("#loc")]
    return _overwritten(lines) or _tall("\n".join(lines))


def _overwritten(lines: list[str]) -> str | None:
    """A tile that is fetched again while wgmma may still read it."""
    rings: dict[str, int] = {}  # buffers of each
    of: dict[str, str] = {}  # the ring that a buffer, or a view of one, belongs to
    ahead: Counter[tuple[str, int]] = Counter()  # fetches of a ring in so many loops
    loops: list[int] = []  # their indentation
    read: set[str] = set()  # in the innermost of them
    for line in lines:
        indentation = len(line) - len(line.lstrip())
        if line.lstrip().startswith("}") and loops and indentation <= loops[-1]:
            loops.pop()
        if " scf.for " in line:
            loops.append(indentation)
            read.clear()
        elif hit := _RING.search(line):
            rings[hit[1]] = int(hit[2])
        elif hit := _SLOT.search(line):
            of[hit[1]] = hit[2]
        elif (hit := _VIEW.search(line)) and hit[2] in of:
            of[hit[1]] = of[hit[2]]
        elif hit := _COPY.search(line):
            if hit[1] in of:  # a tile without a ring is waited for before it is read
                ahead[of[hit[1]], len(loops)] += 1
        elif loops and (hit := _DOT.search(line)):
            read |= {of[operand] for operand in hit.groups() if operand in of}
        elif loops and _WAIT.search(line):
            for ring in read & rings.keys():
                if (fetched := ahead[ring, len(loops) - 1]) >= rings[ring]:
                    return (
                        f"Triton gives {rings[ring]} buffers to a tile that is fetched {fetched} ahead while wgmma reads it: "
                        "results may be wrong"
                    )
    return None


def _tall(code: str) -> str | None:
    """A tile of too many rows."""
    layouts = {name: (int(width), turned == "true", int(bits)) for name, width, turned, bits in _LAYOUT.findall(code)}
    for line in code.splitlines():
        if "ttng.warp_group_dot " not in line:
            continue
        for shape, layout, whole in _TILE.findall(line):
            if layout not in layouts:
                continue
            extents = [int(extent) for extent in (whole or shape.rstrip("x")).split("x")][-2:]
            width, turned, bits = layouts[layout]
            rows, row = reversed(extents) if turned else extents
            if rows > ROWS and row * bits > 8 * width:
                return f"Triton reads a tile of {rows} rows of {row * bits // 8} bytes in another order than it writes it"
    return None


__all__ = ["ROWS", "find_miscompilation"]
