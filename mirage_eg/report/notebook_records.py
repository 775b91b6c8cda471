"""Which plain records show their fields in a notebook, and how structures show their steps.

What `soundness` returns shows itself: it imports Hypothesis, which is slow.
"""

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.roofline_model import Cost, Part, Work
from mirage_eg.backends.evaluator.field_semantics import Draw
from mirage_eg.backends.evaluator.finite_field import FieldAlgebra
from mirage_eg.backends.measure.timing import Timing
from mirage_eg.backends.runtime.calls import CudaGraph
from mirage_eg.backends.triton.arena import Arena, Buffer
from mirage_eg.backends.triton.compile import KernelCompile, Target
from mirage_eg.backends.triton.program import Schedule
from mirage_eg.bench.gpu import Summary
from mirage_eg.bench.rule_impact import Side
from mirage_eg.egraph.expression import Split, Term
from mirage_eg.egraph.laws import Signature
from mirage_eg.egraph.soundness.growth import Size
from mirage_eg.egraph.soundness.lints import Lint
from mirage_eg.ir.graph import Node, TensorType
from mirage_eg.optimizer.layouts import Access, Choice
from mirage_eg.pipeline.partition_stage import Cuts
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.stage_records import Instances, Ranked
from mirage_eg.report.bars import Bar
from mirage_eg.report.roofline import Point
from mirage_eg.report.tables import table
from mirage_eg.search.instantiate.limits import TileLimits
from mirage_eg.search.partition.shortest_path import Partition, Piece, Way
from mirage_eg.search.search import SearchLimits, SplitRecord
from mirage_eg.search.structure import Chain, Load, Step, Structure
from mirage_eg.verify.verdict import Difference

RECORDS: tuple[type, ...] = (  # shown by `tables.record`
    *(Access, Arena, Bar, Buffer, Choice, Cost, CudaGraph, Cuts, Device, Difference, Draw),
    *(FieldAlgebra, Instances, KernelCompile, Lint, Load, Node, Options, Part, Partition, Piece, Point),
    *(
        Ranked,
        Schedule,
        SearchLimits,
        Side,
        Signature,
        Size,
        Split,
        SplitRecord,
        Step,
        Summary,
        Target,
        TensorType,
        Term,
        TileLimits,
    ),
    *(Timing, Way, Work),
)


def structure(it: Structure) -> str:
    """What a structure loads and does, one line for each value; `proved` and the split in the head."""
    outputs = {value: place for place, value in enumerate(it.outputs)}
    rows = [(place, f"load input {load.input}", "looped" if load.looped else "", "") for place, load in enumerate(it.loads)]
    for place, step in enumerate(it.steps, len(it.loads)):
        does = " ".join([step.op, *map(str, step.constants), *(f"%{operand}" for operand in step.operands)])
        reduced = f"reduces axis {', '.join(map(str, step.reduced))}" if step.reduced else ""
        rows.append((place, does, reduced, f"output {outputs[place]}" if place in outputs else ""))
    return table(("value", f"structure, {'proved' if it.proved else 'not proved'}", "", ""), rows)


def chain(it: Chain) -> str:
    """Both structures of a chain."""
    return structure(it.first) + structure(it.last)


__all__ = ["RECORDS", "chain", "structure"]
