"""A one-line summary of a µGraph for tables: its kernels, and on which side of a product each divides or exponentiates."""

from collections import Counter
from collections.abc import Iterable

from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import nodes_between
from mirage_eg.ir.node import NEW_DIM, Phase
from mirage_eg.ir.op.elementwise import DIVISIONS, EXPONENTIALS
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.plurals import counted

_COUNTS = {1: "one", 2: "two", 3: "three", 4: "four"}


def kernel_summary(graph: Graph) -> str:
    """The kernels of a µGraph, separated by semicolons, e.g. "divides after the product, one loop; library matmul"."""
    parts: list[str] = []
    library: Counter[str] = Counter()
    launches = launches_of(graph)
    for launch in launches.kernels:
        ops = [graph.nodes[position].op for position in launch.nodes]
        match launch.kind:
            case LaunchKind.BLOCK:
                parts.append(_block_summary(graph.nodes[launch.nodes[0]]["graph"]))
            case LaunchKind.POOLING | LaunchKind.IMPLICIT_PRODUCT | LaunchKind.SCAN | LaunchKind.TOP_K:
                parts.append(" + ".join(ops))
            case LaunchKind.ATTENTION:
                library["attention"] += 1
            case LaunchKind.CONVOLUTION | LaunchKind.PRODUCT | LaunchKind.LIBRARY:
                library[" + ".join(ops)] += 1
    parts += [f"{counted(len(it.nodes), 'concat')} in one launch" for it in launches.of_kind(LaunchKind.CONCATENATION)]
    if library:
        names = ", ".join(f"{count} {name}" if count > 1 else name for name, count in library.items())
        parts.append(f"library {names}")
    return "; ".join(parts)


def _block_summary(block: Graph) -> str:
    products = [values[0] for item, values in block.numbered() if item.kind is Kind.MATMUL]
    after = _downstream(block, products)
    before = _upstream(block, products)
    words: list[str] = []
    for verb, ops in (("divides", DIVISIONS), ("exponentiates", EXPONENTIALS)):
        for item, values in block.numbered():
            if item.op in ops and (where := _where(values[0] in after, values[0] in before, block.phases[values[0]])):
                words.append(f"{verb} {where}")
    words = list(dict.fromkeys(words))
    reductions = (values[0] for item, values in block.numbered() if item.kind is Kind.REDUCTION)
    if block.loop > 1 and any(block.phases[value] is Phase.PROLOGUE for value in reductions):
        words.append("statistics first")
    if len(products) > 1:
        words.insert(0, f"{_COUNTS.get(len(products), len(products))} products")
    if any(NEW_DIM in item["omap"] for item in block.outputs):
        words.append("partial results")
    if not words:
        words = ["one product"] if products else ["no product"]
    return ", ".join([*words, _pace(block)])


def _where(is_after: bool, is_before: bool, phase: Phase) -> str:
    """The side of a product on which a value is; empty if on none."""
    match is_after, is_before:
        case True, True:
            return "between the products"
        case True, False:
            return "after each product" if phase is Phase.LOOP else "after the product"
        case False, True:
            return "before the product"
        case _:
            return ""


def _pace(block: Graph) -> str:
    if block.cluster > 1:
        return f"cluster of {block.cluster}"
    if block.loop == 1:
        return "no loop"
    loads = [item for item in block.inputs if item.get("fmap", -1) != -1]
    return "one loop" if loads and any(phase is Phase.LOOP for phase in block.phases) else "a loop without loads"


def _downstream(graph: Graph, roots: Iterable[int]) -> set[int]:
    """The values that depend on one of the roots."""
    reached = set(roots)
    for item, values in graph.numbered():
        if not reached.isdisjoint(item.operands):
            reached.update(values)
    return reached


def _upstream(graph: Graph, roots: Iterable[int]) -> set[int]:
    """The values on which one of the roots depends, without the roots that no other root needs."""
    operands = [operand for root in roots for operand in graph.node_of[root].operands]
    return {value for _, values in nodes_between(graph, (), operands) for value in values}
