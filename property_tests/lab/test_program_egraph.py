"""The drawing of a whole program's e-graph: its classes without weights, the extraction in bold."""

import re

from mirage_eg.backends.cost.devices import find_device
from mirage_eg.graph_optimizer.costs import KernelCosts
from mirage_eg.graph_optimizer.extraction import extract
from mirage_eg.graph_optimizer.optimize_graph import saturated_classes
from mirage_eg.graph_optimizer.weights import weights_of
from mirage_eg.lab.program_egraph import program_egraph_svg
from mirage_eg.lab.published_models import nasrnn


def test_classes_are_drawn_once_and_the_extraction_is_bold() -> None:
    cell = nasrnn(steps=1, width=16)
    _, classes = saturated_classes(cell.program, weights_of(cell.program, cell.weights))
    best = extract(classes, KernelCosts(find_device("h200")))
    plain, drawn = program_egraph_svg(classes, boxes=1000), program_egraph_svg(classes, best, boxes=1000)
    heads = sum(not weight for weight in classes.weight_only)
    assert drawn.count('font-weight="bold"') - plain.count('font-weight="bold"') == len(
        {it.class_ for it in best.choices} - {class_ for class_, weight in enumerate(classes.weight_only) if weight}
    )
    assert f"in {heads} classes" in drawn and "Matmul weight [32, 128]" in drawn
    assert re.search(r"and \d+ more classes", program_egraph_svg(classes, best, boxes=5))
