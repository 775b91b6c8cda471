"""A µGraph in a phrase, for tables: what is computed by which kernel, and on which side of a product it divides."""

from collections import Counter
from collections.abc import Iterable

from mirage_eg.ir.graph import NEW_DIM, Graph, Node, Phase
from mirage_eg.ir.ops import OPS, Kind

_COUNTS = {1: "one", 2: "two", 3: "three", 4: "four"}
# Whether a value depends on a product, and whether a product depends on it.
_WHERE = {"before the product": (False, True), "between the products": (True, True), "after the product": (True, False)}


def phrase(graph: Graph) -> str:
    """What distinguishes this kernel graph, e.g. "divides after the product"; kernels are separated by semicolons."""
    parts: list[str] = []
    library: Counter[str] = Counter()
    for item in graph.nodes:
        match OPS[item.op].kind:
            case Kind.GRAPH:
                parts.append(_block_phrase(item["graph"]))
            case Kind.BOUNDARY:
                pass
            case _:
                library[item.op] += 1
    if library:
        names = ", ".join(f"{count} {name}" if count > 1 else name for name, count in library.items())
        parts.append(f"library {names}")
    return "; ".join(parts)


def _block_phrase(block: Graph) -> str:
    products = [values[0] for item, values in block.numbered() if item.op == "matmul"]
    behind = _downstream(block, products)
    before = _upstream(block, products)
    words: list[str] = []
    for verb, ops in (("divides", {"div", "rsqrt"}), ("exponentiates", {"exp"})):
        places = [values[0] for item, values in block.numbered() if item.op in ops]
        for where, (is_behind, is_before) in _WHERE.items():
            if any((value in behind, value in before) == (is_behind, is_before) for value in places):
                words.append(f"{verb} {where}")
    if len(products) > 1:
        words.insert(0, f"{_COUNTS.get(len(products), len(products))} products")
    if any(NEW_DIM in item["omap"] for item in block.outputs):
        words.append("partial results")
    if not words:
        words = ["one product"] if products else ["no product"]
    return ", ".join([*words, _pace(block)])


def _pace(block: Graph) -> str:
    if block.loop == 1:
        return "no loop"
    loads = [item for item in block.inputs if item.get("fmap", -1) != -1]
    return "one loop" if loads and any(phase is Phase.LOOP for phase in block.phases) else "an idle loop"


def _downstream(graph: Graph, roots: Iterable[int]) -> set[int]:
    """The values that depend on one of the roots."""
    found = set(roots)
    for item, values in graph.numbered():
        if not found.isdisjoint(item.operands):
            found.update(values)
    return found


def _upstream(graph: Graph, roots: Iterable[int]) -> set[int]:
    """The values on which one of the roots depends, without the roots that no other root needs."""
    makers: dict[int, Node] = {value: item for item, values in graph.numbered() for value in values}
    found: set[int] = set()
    waiting = [operand for root in roots for operand in makers[root].operands]
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += makers[value].operands
    return found
