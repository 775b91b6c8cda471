"""The numbers of a run that are choices, not facts: one frozen record, which the report prints.

What a user may choose is in `Options`. A comment names the measurement or the reason; where it names none, no measurement is
recorded.
"""

from dataclasses import dataclass, field

from mirage_eg.optimizer.heuristics import EFFORT, OPTIMIZER, Effort, OptimizerHeuristics
from mirage_eg.search.heuristics import SEARCH, SearchHeuristics
from mirage_eg.search.partition.plan_records import PartitionLimits


@dataclass(frozen=True, slots=True)
class Heuristics:
    """Choices of the stages of a run, and those of the search, the µGraph optimizer and the tuner."""

    states: int = 100_000  # of the whole program, for all splits together, in equal shares (docs/reference/search_space.md)
    fewest_states: int = 1_000  # of each split at least
    nodes: int = 10_000  # e-nodes of each of up to 20 splits of the whole program in the indexed domain; fewer for more splits
    abstract_nodes: int = 50_000  # likewise in the abstract domain
    fewest_nodes: int = 2_000  # of each split at least
    alike: int = 8  # structures of a split with the same loads, smallest first; others differ in the order of cheap ops
    split_reductions: int = 6  # of each split, smallest first; larger ones differ in the order of cheap ops
    sampled_graphs: int = 256  # µGraphs of each structure, of which the tuner tries some

    segment_states: int = 30_000  # of a segment, in equal shares for its splits
    segment_nodes: int = 10_000  # e-nodes of each of its splits: sums in products grow ten times larger, for seconds each
    segment_alike: int = 4  # structures of a segment and split with the same loads, smallest first
    region_ops: int = 32  # of regions that are merged: decoder_layer has 27; 44 and more exceed the partition's states
    ops_of_a_search: int = 16  # whose search takes as long as what each region needs, however small: e-graphs, compilation
    whole_check_ops: int = 400  # of a program of regions that is also verified as a whole
    whole_check_flops: int = 100_000_000  # likewise, of its products; seconds
    rewrite_seconds: float = 10.0  # of the extraction of a rewritten program; those of the page on graphs take about one
    rewritten_kernels: int = 64  # of extracted programs that are searched for their prices
    rewritten_programs: int = 3  # that are searched at most
    partition: PartitionLimits = field(default_factory=PartitionLimits)
    explored: int = 64  # segments of a program that are all searched where a GPU measures the plans
    measured_plans: int = 24  # plans that are measured
    measured_each: int = 8  # µGraphs of a structure
    measured_kernels: int = 24  # µGraphs of a segment
    retries: int = 8  # other tilings for kernels that do not compile; then their segments are partitioned differently

    until_cuts: float = 0.1  # of the budget; then the choice of cuts between regions ends
    until_structures: float = 0.25  # of the budget of a region; then the search for structures of its program ends
    until_tiles: float = 0.35  # of that budget; then structures get no more tiles
    until_split: float = (
        0.3  # of that budget; then the search for plans as written ends where statistics of long rows are split
    )
    until_explored: float = 0.3  # of that budget; then segments are searched no more that only measurements may prefer
    until_plans: float = 0.5  # of that budget; then the search for plans of several kernels ends
    until_rewritten: float = 0.7  # of that budget; then rewritten programs are searched no more
    until_tuned: float = 0.85  # of that budget; then tuning that has no seconds of its own ends
    until_proofs: float = 0.85  # of that budget; then µGraphs are only tested
    until_joined: float = 0.85  # of the budget; then the last region ends
    checked_elements: int = 1 << 23  # a second of a check: two cores took 11 s for 59 million of a part of beit
    spares: int = 3  # candidates that are verified one by one where those predicted to be faster do not pass the float check
    proof_nodes: int = 200_000  # of the e-graphs of all proofs; µGraphs after it are only tested
    close: float = 1.05  # predicted times within this factor are equal (docs/explanation/optimizer.md)
    kernel_us: float = 4.0  # that a kernel less may take longer among these: products of 100 µs are predicted within 15 %
    hopeless: float = 16.0  # times the predicted time of the best µGraph: none that takes longer is verified
    behind: float = 1.5  # times the predicted time as Inductor compiles it: on an H200 it took up to so many times that
    close_measured: float = 1.02  # measured times likewise: the spread of a measurement
    diagnosis_parts: int = 16  # of the program that are searched for the closest candidate
    diagnosis_states: int = 20_000  # of each of these searches, for each split
    diagnosis_block_ops: int = 32  # of the largest block that is searched
    diagnosis_graphs: int = 200  # µGraphs compared for the smallest overflow, equally many of each structure
    diagnosis_scales: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # times the capacity of a block

    search: SearchHeuristics = SEARCH
    optimizer: OptimizerHeuristics = OPTIMIZER
    tuning: Effort = EFFORT  # its defaults; a caller of `optimize` may choose others


HEURISTICS = Heuristics()
