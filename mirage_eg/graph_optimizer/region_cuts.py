"""The values at which a deep program may be cut into regions, so that the substitutions of its regions save as much as its own.

Each region is rewritten as a program of its own. A cut between products of one tensor, or between a convolution and its batch
norm, takes a substitution away. Cuts are free at the values that the cheapest program equal to the whole stores.
"""

from collections.abc import Sequence
from dataclasses import replace

from mirage_eg.backends.cost.devices import Device
from mirage_eg.graph_optimizer.costs import KernelCosts
from mirage_eg.graph_optimizer.eclasses import EClasses
from mirage_eg.graph_optimizer.extraction import Extraction, ExtractionError, Mode, extract
from mirage_eg.graph_optimizer.optimize_graph import WRITTEN_OUT, saturated_classes
from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.expand import expand_ops
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import node
from mirage_eg.ir.weights import weights_to_join

LOSS = 1.01  # regions that cost less than this times the whole program lose nothing: the cost model is no finer


def values_to_cut_at(program: Graph, regions: Sequence[Graph], device: Device, seconds: float) -> frozenset[int] | None:
    """The values that the cheapest program stores, by the roofline; None if these regions lose no substitution.

    None, too, without weights, with named dims, or if there is no program within `seconds` of the solver.
    """
    if not weights_to_join(program) or dims_of(program):
        return None
    values = [value for item, own in program.numbered() if item.op not in ("input", "output") for value in own]
    every = Graph((*program.nodes, *(node("output", value) for value in values)))
    try:
        classes, whole = _cheapest(every, len(program.outputs), device, seconds)
        costs = {each: _cheapest(each, len(each.outputs), device, seconds)[1].us for each in dict.fromkeys(regions)}
    except ExtractionError:
        return None
    if sum(costs[each] for each in regions) <= LOSS * whole.us:
        return None
    stored = {  # a slice of a joined product belongs with the other slices
        choice.class_ for choice in whole.choices if choice.mode is Mode.STORED and choice.enode.constructor != "Slice"
    }
    roots = classes.roots[len(program.outputs) :]
    return frozenset(value for value, root in zip(values, roots, strict=True) if root in stored)


def _cheapest(program: Graph, outputs: int, device: Device, seconds: float) -> tuple[EClasses, Extraction]:
    """The e-classes, and the extraction of the first outputs."""
    written = expand_ops(program, WRITTEN_OUT)
    _, classes = saturated_classes(written, weights_to_join(written))
    needed = replace(classes, roots=classes.roots[:outputs])
    return classes, extract(needed, KernelCosts(device), seconds=seconds)
