"""The numbers of the search that are choices, not facts; the limits that callers set are `SearchLimits`, `PartitionLimits`.

The report of a run has all of them (`pipeline.run.heuristics`). A comment names the measurement or the reason; where it names
none, no measurement is recorded.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SearchHeuristics:
    """Choices of the structure search, of the tilings and of the partition; lengths are in elements."""

    derivations_per_state: int = 20  # tried at most, for each state that may be visited
    graphs_of_thin_search: int = 4  # partial block graphs of each value, searched again where the states ended before an output
    longest_row: int = 16_384  # that a block holds: two longer rows of float32 exceed its registers
    chain_ops: int = 4  # of an elementwise chain that count towards the limits; the others have one derivation each

    small_instance: int = 1 << 17  # that an op of a small instance may read together, tiles of all its operands
    combining_tilings: int = 2  # of the second kernel of a split reduction, for each tiling of the first
    combining_tiles: int = 4  # the largest tile of such a kernel takes at most one in so many of the registers, if it may
    short_axis: int = 32  # an axis no longer than this is divided into equal parts only
    even_axis: int = 128  # and so is one of a multiple of this: tiles of powers of two divide it
    ragged_tiles: tuple[int, ...] = (16, 32, 64, 128, 256)  # of a parallel axis that they do not divide
    looped_tiles: tuple[int, ...] = (16, 32, 64, 128, 256, 512)  # to which a tile of a looped axis is padded
    long_looped_tiles: tuple[int, ...] = (1024, 2048, 4096)  # likewise, of loops without products
    looped_elements: int = 4096  # that an iteration without products loads: 32 a thread, and a multiprocessor holds many blocks
    live_bytes_of_thread: int = 400  # 200 KiB on 512 threads, which have 128 registers each
    live_bytes_of_few_threads: int = 1100  # likewise, where warps would share a reduction: 255 registers (H200)
    longest_cluster: int = 16  # thread blocks: an H100 takes no more, and more than 8 only where a kernel asks
    live_bytes_in_cluster: int = 80 * 1024  # of each: with 16,384 elements on 8 warps softmax was the fastest (H200)
    live_bytes_of_row: int = 256  # likewise, where rows multiply a vector: a thread has 128 elements in float16
    longer_tiles: int = 8  # tiles of a parallel axis of no product may be so many times as long as the others
    least_rows: int = 2  # of a matrix that multiplies a vector: two of 14,336 elements keep eight warps busy
    tile_step: int = 16  # between extents that are tried for one padded tile
    loop_counts: int = 4  # tried for one padded tile, besides those without a rest
    least_split: int = 32  # of a part of a split reduction
    least_long_part: int = 65_536  # likewise, where there are more parts than multiprocessors

    fewest_segment_states: int = 500  # of each split of a segment at least
    long_contraction: int = 512  # a longer one needs a loop over it, or a split
    shortest_loop: int = 128  # a loop over a shorter axis only where it is the longest contraction
    shortest_outer: int = 16  # of several axes that a product contracts: a loop over the first one, which reads whole rows
    shortest_split: int = 256  # a split of a shorter axis likewise
    few_kernels: int = 3  # few at any rate: plans of so many have a search of their own
    fewest_penalty_us: float = 1e5  # of each kernel, where a plan of the fewest kernels is searched
    core_share: float = 0.95  # of the lower bound of a segment: a smaller one with it is searched first
    faster_product_us: float = 20.0  # less than the library's time: products with such lower bounds are in the first plan
    tie_penalty_us: float = 1e-3  # of each kernel elsewhere: of equally fast plans the one of fewer kernels
    boundaries_s: float = 0.5  # for which plans of the library are sought where a search is over
    elementwise_boundary: float = 1.5  # times the cost of another value: a window boundary before a single elementwise reader


SEARCH = SearchHeuristics()
