"""The search of a program in primitive ops: as one kernel (`search_stage`), then in plans of several (`partition_stage`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from mirage_eg.ir.deadline import NEVER
from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.choose_candidates import Groups, pool
from mirage_eg.pipeline.partition_stage import NOTHING, Partitioner, PlanSearch
from mirage_eg.pipeline.search_stage import OneKernelSearch, search_one_kernel
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.search.partition.plan_records import KnownSegment
from mirage_eg.search.partition.segment_search import SegmentSearch
from mirage_eg.search.partition.segments import Segmenter


@dataclass(frozen=True, slots=True)
class ProgramSearch:
    """What the search of a program in primitive ops found: of the program as one kernel, and plans."""

    primitive: Graph
    one_kernel: OneKernelSearch
    plans: PlanSearch

    @property
    def candidates(self) -> Groups:
        """The µGraphs of each structure, then those of the plans."""
        return pool(self.one_kernel.candidates, self.plans.candidates)

    @property
    def cut(self) -> bool:
        """Whether the budget ended it."""
        return self.one_kernel.cut or self.plans.cut

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the report should know."""
        return self.one_kernel.notes + self.plans.notes


def search_program(
    run: Run,
    primitive: Graph,
    found: Mapping[Graph, SegmentSearch] = NOTHING,
    known: Sequence[KnownSegment] = (),
    most_us: float = inf,
) -> tuple[ProgramSearch, Partitioner]:
    """Search a program; the partitioner can search further segments. The segments `found` are not searched again.

    With segments `known` from a search at other sizes nothing is searched: their structures get new tiles. With a budget the
    first plan is found first. Plans are sought while one may take less than `most_us`.
    """
    partitioner = Partitioner(run, primitive, found, known, most_us)
    if known:
        one_kernel = OneKernelSearch(Segmenter(primitive).whole(), primitive, "its structures were found at other sizes")
    else:
        if run.until != NEVER:
            partitioner.find_first()
        one_kernel = search_one_kernel(run, primitive)
        partitioner.add(one_kernel)
    return ProgramSearch(primitive, one_kernel, partitioner.plans()), partitioner
