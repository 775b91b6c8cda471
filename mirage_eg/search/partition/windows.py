"""Windows: a deep program is cut into parts of consecutive ops with few values between them, before the search for kernels.

The number of plans of a program is exponential in its layers; the number of plans of its windows is linear. No kernel reaches
from one window into the next; equal layers become equal windows, which are searched once.
"""

from mirage_eg.ir.graph import Graph
from mirage_eg.ir.ops import OPS, Kind
from mirage_eg.search.elementwise_chains import chains
from mirage_eg.search.heuristics import SEARCH
from mirage_eg.search.partition.segments import counts, is_barrier
from mirage_eg.transforms.softmax_shift import shifted_values

_NEVER = 1e6


def windows(program: Graph, most: int) -> tuple[int, ...]:
    """The number of the window of each node, in the order in which windows run.

    A window has at most `most` ops that count, unless one level has more. The values between windows, and their bytes, are as
    few as possible; among equal choices the windows have similar sizes.
    """
    levels = _levels(program)
    depth = max(levels)
    ops = [0] * (depth + 1)  # of each level
    free = {*chains(program).uncounted(range(len(levels)))}
    for position, (level, item) in enumerate(zip(levels, program.nodes, strict=True)):
        ops[level] += counts(item) and position not in free
    cost = _crossing(program, levels)
    # Of the windows up to each level: cost of values between them, number, sum of the squares of their ops, last cut but one.
    best: list[tuple[float, int, int, int]] = [(0.0, 0, 0, -1)]
    for end in range(1, depth + 1):
        options, inside = [], 0
        for start in range(end, 0, -1):
            inside += ops[start]
            if inside > most and start < end:
                break
            passed, number, squares, _ = best[start - 1]
            options.append((passed + cost[end], number + 1, squares + inside**2, start - 1))
        best.append(min(options))
    cuts, level = list[int](), depth
    while level > 0:
        cuts.append(level)
        level = best[level][3]
    cuts.reverse()
    return tuple(sum(cut < level for cut in cuts) for level in levels)


def _levels(program: Graph) -> list[int]:
    """Of each node the longest path from an input; views and outputs that others read are as late as their first reader."""
    makers = program.makers
    levels: list[int] = []
    for item in program.nodes:
        levels.append(1 + max((levels[makers[i]] for i in item.operands), default=-1))
    first: dict[int, int] = {}  # the level of the first reader
    for position in reversed(range(len(program.nodes))):
        item = program.nodes[position]
        if item.kind is Kind.REARRANGEMENT and (item.op == "slice" or not is_barrier(item)):
            levels[position] = first.get(position, levels[position])
        for operand in item.operands:
            first[makers[operand]] = min(first.get(makers[operand], levels[position]), levels[position])
    return levels


def _crossing(program: Graph, levels: list[int]) -> list[float]:
    """The cost of a boundary after each level: 1 for each value needed after it and its share of the bytes that any plan moves,
    more if its only reader is an elementwise op (which belongs to its kernel), prohibitive if no kernel may store it; 0 after
    the last level."""
    unsafe = shifted_values(program)
    values = [made for _, made in program.numbered()]
    readers: dict[int, list[int]] = {}
    for value, reading in enumerate(program.readers):
        if reading:
            readers.setdefault(program.makers[value], []).extend(reading)
    least = sum(kind.nbytes for kind in (*program.input_types, *program.output_types))
    depth = max(levels)
    cost = [0.0] * (depth + 1)
    for maker, later in readers.items():
        if program.nodes[maker].op == "input":
            continue
        price = 1 + sum(program.types[value].nbytes for value in values[maker]) / least
        price = price if unsafe.isdisjoint(values[maker]) else _NEVER
        alone = len(later) == 1 and OPS[program.nodes[later[0]].op].kind is Kind.ELEMENTWISE
        for level in range(levels[maker], max(levels[reader] for reader in later)):
            cost[level] += SEARCH.elementwise_boundary * price if alone else price
    return cost
