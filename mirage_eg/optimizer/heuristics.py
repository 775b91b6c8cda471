"""The numbers of the µGraph optimizer and of the tuner that are choices, not facts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OptimizerHeuristics:
    """Choices of the passes; each bounds an exact search, which then proves less."""

    order_sets: int = 20_000  # sets of completed tasks; after them the given order stays, with the bound proved by then
    layout_dims: int = 4  # of more than one element; of more dims only the innermost one is chosen


OPTIMIZER = OptimizerHeuristics()


@dataclass(frozen=True, slots=True)
class Effort:
    """The most candidates of each round of tuning, and the seconds after which no further one is timed."""

    structures: int = 32
    prune_factor: float = 2.5  # times the shortest predicted time; no structure above it is timed (docs/explanation/tuning.md)
    best_structures: int = 8
    choices: int = 8  # µGraphs of each structure of the whole program
    best_graphs: int = 6
    detailed_graphs: int = 2  # whose schedules are refined
    finalists: int = 6  # of the final round, besides the best variant of each of the `reported` µGraphs
    reported: int = 16
    seconds: float = 60.0
    first: float = 0.25  # of these seconds, at least, is for timing in the first round, however long it took to compile
    kernel: float = 0.25  # of these seconds, at most, for the compilation of one kernel
    until_extents: float = 0.35  # of the seconds; then the round of structures ends
    until_schedules: float = 0.5  # of the seconds; then the round of extents ends
    until_details: float = 0.72  # of the seconds; then the round of schedules ends
    until_launches: float = 0.77  # of the seconds; then the round of details ends
    until_final: float = 0.9  # of the seconds; then all rounds but the final one end
    together: int = 8  # kernels of candidates that are timed while the GPU is held: those of one candidate at least
    close: float = 1.02  # times within this factor are equal: the spread of a measurement


EFFORT = Effort()
