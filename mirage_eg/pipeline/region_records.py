"""A region of a program before and after its search. A program that is not divided is one region."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from mirage_eg.ir.graph import Graph
from mirage_eg.pipeline.equal_programs import EqualPrograms
from mirage_eg.pipeline.finalists import Finalists
from mirage_eg.pipeline.program_search import ProgramSearch
from mirage_eg.pipeline.run.report_sections import RewriteSummary
from mirage_eg.pipeline.run.result import Candidate
from mirage_eg.pipeline.stage_records import Run
from mirage_eg.search.partition.plan_records import Segment
from mirage_eg.transforms.simplify import Simplification


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a program that is searched as a program of its own; equal parts are one region, and one part may be all of it.

    `run` has the region's program and its share of the budget. `parts`: the segments of the whole program that it stands for,
    by their numbers. `name` is empty where the region is the whole program.
    """

    run: Run
    parts: Mapping[int, Segment] = field(default_factory=dict)
    name: str = ""

    @property
    def program(self) -> Graph:
        return self.run.program


@dataclass(frozen=True, slots=True)
class RegionSearch:
    """What was found for a region, and for programs that are equal to it, before anything is chosen, tuned or verified.

    `parts`: those of the region, where it is to be searched elsewhere.
    """

    simplified: Simplification
    search: ProgramSearch
    equal: EqualPrograms
    parts: Mapping[int, Segment] = field(default_factory=dict)

    @property
    def least_us(self) -> float:
        """The least predicted time of a µGraph in all parts; infinite where there is none."""
        found = (it.predicted_us for entries in (*self.search.candidates, *self.equal.candidates) for it in entries)
        return max(1, len(self.parts)) * min(found, default=inf)


@dataclass(frozen=True, slots=True)
class SearchedRegion:
    """A region through all stages before the ranking; `rewriting`: what graph substitutions did.

    `inside`: for each µGraph of a program of several regions these regions, each with its candidate in it.
    """

    region: Region
    simplified: Simplification
    finalists: Finalists
    rewriting: tuple[RewriteSummary, ...]
    notes: tuple[str, ...]
    seconds: float
    inside: Mapping[Graph, Sequence[tuple["SearchedRegion", Candidate]]] = field(default_factory=dict)

    @property
    def primitive(self) -> Graph:
        """The program in primitive ops that was searched."""
        return self.finalists.search.primitive

    @property
    def library(self) -> Candidate:
        """The library form, which is always verified."""
        form = next(entry.graph for entry in self.finalists.candidates if entry.found.graph == self.region.program)
        return next(entry for entry in self.finalists.verified.equal if entry.graph == form)
