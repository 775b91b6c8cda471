"""Miscompilations of products on tensor cores and of clusters: Triton's, detected in its TTGIR, and two of ptxas, in its PTX.

Triton 3.6, 3.7 and 3.9 have two miscompilations of wgmma (sm_90). Every compiled kernel is checked for both, also in the form
that they would have with tcgen05 (sm_100), and on every target for a tile that is fetched further ahead than it has buffers:

- A tile that wgmma reads asynchronously needs one buffer more than its prefetch distance. The pipeliner allocates this buffer
  only if the load has no other reader than the product; with a second reader in registers, the next tile overwrites a tile
  that wgmma still reads. The outputs depend on timing (on an H100, errors of a quarter to half of the largest element).
- A tile of more than 256 rows, with rows longer than the swizzled width (mostly 128 bytes), is written in one order and read
  in another. The outputs are always wrong.

Triton 3.6, not 3.9, makes `tl.sum(x[:, :, None] * y[None, :, :], 1)` of 16 rows and columns a product in TF32, for which no
emitted kernel asks. It has 11 digits, and with 4 terms it was wrong (on an H200 an error of 0.27).

Emitted kernels avoid all (`storage.needs_copy`, `matmul`, `mirage_eg.search.instantiate.limits`); this module checks them.

ptxas 12.8, which comes with Triton 3.6, adds an undefined register to the descriptor of a tile of wgmma where two tiles of
different layouts begin at one address at different times: PTX extends the address once, and adds each layout's high word to
it. Then wgmma reads another place, or the kernel ends with an illegal memory access. ptxas 12.9 and 13.4 compile the same PTX
correctly. ptxas 12.8, 12.9 and 13.0 add 0 instead of a constant to a pair of 16-bit numbers of which the kernel reads one half.
LLVM makes such pairs of quotients of small numbers, as the places of a window in a convolution (on an H200 an error of 0.78).
No kernel with such PTX is used, since an emitted file may be compiled by any ptxas.
"""

import json
import re
from collections import Counter, defaultdict

ROWS = 256  # of a tile, at most, if its rows are longer than the swizzled width

_LAYOUT = re.compile(
    r"^(#\w+) = #ttg\.nvmma_shared<\{swizzlingByteWidth = (\d+), transposed = (\w+), elementBitWidth = (\d+)", re.MULTILINE
)
_RING = re.compile(r"(%[\w-]+) = ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x")
_SLOT = re.compile(r"(%[\w-]+) = ttg\.memdesc_index (%[\w-]+)\[")
_VIEW = re.compile(r"(%[\w-]+) = ttg\.memdesc_\w+ (%[\w-]+)")
_COPY = re.compile(r"async_(?:copy_global_to_local %[\w-]+,|tma_copy_global_to_local %[\w-]+\[[^\]]*\]) (%[\w-]+)")
_DOT = re.compile(r"ttng\.warp_group_dot (%[\w-]+), (%[\w-]+), .*isAsync = true")
_MMA = re.compile(r"ttng\.tc_gen5_mma (%[\w-]+), (%[\w-]+), .*?(%[\w-]+)\[%\w+\] \{[^}]*is_async")
_BARRIER = re.compile(r"ttng\.wait_barrier (%[\w-]+),")
_LOAD = re.compile(r"ttg\.local_load (%[\w-]+)")
_STORE = re.compile(r"ttg\.local_store %[\w-]+, (%[\w-]+)")
_WAIT = re.compile(r"ttng\.warp_group_dot_wait .*pendings = ([1-9]\d*)")
_TILE = re.compile(r"!ttg\.memdesc<((?:\d+x)+)\w+, (#\w+), #smem(?:, mutable)?(?:, ([\dx]+))?>")
_IN_TF32 = re.compile(
    r"(?:tt\.dot|ttng\.warp_group_dot) .*inputPrecision = (?:tf32|0 : i32).*? : (?:tensor|!ttg\.memdesc)<\d+x\d+xf32\b"
)
_LOCATION = re.compile(r" loc\(.*")
_CLUSTERED = re.compile(r"^(#\w+) = .*CGALayout = (\[\[.*?\]\])")
_COMBINED = re.compile(r"tt\.elementwise_inline_asm .* : tensor<(\d+)xf32, (.*?)> -> tensor<")
_PAIR_SUM = re.compile(r"add\.[su]16x2\s+(%r\d+), (%r\d+|-?\d+), (%r\d+|-?\d+);")
_CONSTANT = re.compile(r"mov\.[bu]32\s+(%r\d+), -?\d+;")
_HALVES = re.compile(r"mov\.b32\s+\{(\S+), (\S+)\}, (%r\d+);")
_REGISTER = re.compile(r"%\w+")
_DESCRIPTOR = re.compile(r"(?:add\.s64|or\.b64)\s+%rd\d+, (%rd\d+), (-?\d+);")


def find_miscompilation(code: str, ptx: str = "") -> str | None:
    """The miscompilation in the TTGIR of a kernel, or of its PTX; None without one."""
    lines = [_LOCATION.sub("", line) for line in code.splitlines() if not line.startswith("#loc")]
    of_products = _overwritten(lines) or _misordered("\n".join(lines)) or _in_tf32(lines)
    return of_products or _other_parts(lines) or _one_address(ptx) or _half_sum(ptx)


def _one_address(ptx: str) -> str | None:
    """That of ptxas: an address that becomes descriptors of two layouts, by two high words whose first bits name a swizzle."""
    layouts: defaultdict[str, set[int]] = defaultdict(set)
    for address, constant in _DESCRIPTOR.findall(ptx):
        word = int(constant) % (1 << 64) >> 32
        if 1 << 30 <= word < 0xFFFF << 16:  # others are of offsets, also of negative ones
            layouts[address].add(word)
    if all(len(words) < 2 for words in layouts.values()):
        return None
    return "ptxas 12.8 gives a wrong descriptor to a tile of a product that begins where one of another layout did"


def _half_sum(ptx: str) -> str | None:
    """The other one of ptxas: a sum of pairs, one of them a constant, of which one half alone is read."""
    if not (sums := _PAIR_SUM.findall(ptx)):
        return None
    constants, times = {*_CONSTANT.findall(ptx)}, Counter(_REGISTER.findall(ptx))
    reads: defaultdict[str, list[int]] = defaultdict(list)  # how many halves each unpacking of a sum reads
    for *halves, pair in _HALVES.findall(ptx):
        reads[pair].append(sum(times[half] > 1 for half in halves))
    for result, *operands in sums:
        is_constant = any(it in constants or not it.startswith("%") for it in operands)
        if is_constant and max(reads[result], default=2) < 2 and len(reads[result]) == times[result] - 1:
            return "ptxas 12.8 adds 0 instead of a constant to a pair of 16-bit numbers of which one half is read"
    return None


def _overwritten(lines: list[str]) -> str | None:
    """The first miscompilation: a tile that the next one overwrites while a product may still read it."""
    rings: dict[str, int] = {}  # number of buffers
    ring_of: dict[str, str] = {}  # by buffer, or view of a buffer
    slot_of: dict[str, str] = {}  # by buffer, or view of a buffer
    fetches: Counter[tuple[str, int]] = Counter()  # by ring and loop depth
    done: defaultdict[tuple[str, int], set[str]] = defaultdict(set)  # buffers that tcgen05 or registers read, likewise
    loops: list[int] = []  # indentation of the enclosing loops
    read: set[str] = set()  # rings that wgmma reads in the innermost loop
    unfinished: dict[str, set[str]] = {}  # by barrier, the rings that tcgen05 reads in the innermost loop
    for line in lines:
        indentation = len(line) - len(line.lstrip())
        if line.lstrip().startswith("}") and loops and indentation <= loops[-1]:
            loops.pop()
        if " scf.for " in line:
            loops.append(indentation)
            read.clear()
            unfinished.clear()
        elif hit := _RING.search(line):
            rings[hit[1]] = int(hit[2])
        elif hit := _SLOT.search(line):
            ring_of[hit[1]], slot_of[hit[1]] = hit[2], hit[1]
        elif (hit := _VIEW.search(line)) and hit[2] in ring_of:
            ring_of[hit[1]], slot_of[hit[1]] = ring_of[hit[2]], slot_of[hit[2]]
        elif hit := _COPY.search(line) or _STORE.search(line):
            if (ring := ring_of.get(hit[1])) in rings:  # a tile without a ring is complete before it is read
                fetches[ring, len(loops)] += 1
                ahead = fetches[ring, len(loops) - 1] - len(done[ring, len(loops) - 1]) if loops else 0
                if ahead >= rings[ring] + (not any(ring in reading for reading in unfinished.values())):
                    return _too_few(rings[ring], ahead)
        elif hit := _LOAD.search(line):
            done[ring_of.get(hit[1], ""), len(loops)].add(slot_of.get(hit[1], ""))
        elif hit := _MMA.search(line):
            own = [operand for operand in hit.groups()[:2] if operand in ring_of]
            for operand in own:
                done[ring_of[operand], len(loops)].add(slot_of[operand])
            if loops:
                unfinished[hit[3]] = {ring_of[operand] for operand in own}
        elif hit := _BARRIER.search(line):
            unfinished.pop(hit[1], None)
        elif loops and (hit := _DOT.search(line)):
            read |= {ring_of[operand] for operand in hit.groups() if operand in ring_of}
        elif loops and _WAIT.search(line):
            for ring in read & rings.keys():
                if (fetched := fetches[ring, len(loops) - 1]) >= rings[ring]:
                    return _too_few(rings[ring], fetched)
    return None


def _too_few(buffers: int, fetched: int) -> str:
    return f"Triton gives {buffers} buffers to a tile that is fetched {fetched} ahead while a product reads it: it may be wrong"


def _misordered(code: str) -> str | None:
    """The second miscompilation: a tile of too many long rows."""
    layouts = {name: (int(width), transposed == "true", int(bits)) for name, width, transposed, bits in _LAYOUT.findall(code)}
    for line in code.splitlines():
        if "ttng.warp_group_dot " not in line and "ttng.tc_gen5_mma " not in line:
            continue
        for shape, layout, whole in _TILE.findall(line):
            if layout not in layouts:
                continue
            extents = [int(extent) for extent in (whole or shape.rstrip("x")).split("x")][-2:]
            width, transposed, bits = layouts[layout]
            rows, row = reversed(extents) if transposed else extents
            if rows > ROWS and row * bits > 8 * width:
                return f"Triton reads a tile of {rows} rows of {row * bits // 8} bytes in another order than it writes it"
    return None


def _in_tf32(lines: list[str]) -> str | None:
    """That of Triton 3.6: a product in TF32."""
    if any(_IN_TF32.search(line) for line in lines):
        return "Triton makes a sum of products one in TF32: it has 11 digits, and may be wrong"
    return None


def _other_parts(lines: list[str]) -> str | None:
    """A reduction over the thread blocks of a cluster (`cluster_helpers`) of which each has not one element."""
    clustered = {hit[1]: json.loads(hit[2]) for line in lines if (hit := _CLUSTERED.match(line))}
    for line in lines:
        if "barrier.cluster" in line and (hit := _COMBINED.search(line)):
            steps = _steps(hit[2], clustered)
            if steps != [[1 << power] for power in range(len(steps))] or 1 << len(steps) != int(hit[1]):
                return f"Triton gives thread blocks of a cluster other parts of {hit[1]} elements than one each"
    return None


def _steps(layout: str, clustered: dict[str, list[list[int]]]) -> list[list[int]]:
    """The steps from one thread block of a cluster to others in a layout, or in slices of it."""
    name = re.findall(r"#\w+(?![.\w])", layout)[-1]
    steps = [[*step] for step in clustered.get(name, [])]
    for dim in reversed(re.findall(r"dim = (\d+)", layout)):  # of slices, the innermost last
        steps = [step[: int(dim)] + step[int(dim) + 1 :] for step in steps]
    return steps
