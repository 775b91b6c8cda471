"""Extraction: the cheapest term of each e-class."""

from collections.abc import Hashable, Mapping, Sequence
from math import inf
from typing import TypeVar

Class = TypeVar("Class", bound=Hashable)
Node = TypeVar("Node")


def cheapest_nodes(
    entries: Sequence[tuple[Class, Node, float, Sequence[Class]]], given: Mapping[Class, float]
) -> dict[Class, tuple[float, Node | None]]:
    """For each class the cost of its cheapest term, and the e-node at its root; no e-node for one that is `given` at a cost.

    `entries` are classes with an e-node, its own cost, which is positive, and its children: one counts as often as it is read.
    """
    best: dict[Class, tuple[float, Node | None]] = {class_: (cost, None) for class_, cost in given.items()}
    changed = True
    while changed:
        changed = False
        for class_, node, own, children in entries:
            if best.keys() >= {*children}:
                total = own + sum(best[child][0] for child in children)
                if total < best.get(class_, (inf, None))[0]:
                    best[class_], changed = (total, node), True
    return best
