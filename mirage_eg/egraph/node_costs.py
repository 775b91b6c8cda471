"""What a cost of an e-node may depend on: its op and attributes, and the axes of its operands and result with their extents.

A class has the axes of the e-node with the fewest: a law may remove an operand with all its axes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mirage_eg.egraph.expression import INDEX_TERMS, REDUCTIONS, Constant, parts_in
from mirage_eg.egraph.forms import constants_of
from mirage_eg.egraph.oracle import Key, Oracle, children_of

Extents = Mapping[str, int]  # of parts of axes, by name


@dataclass(frozen=True, slots=True)
class CostedNode:
    """An e-node without what is below its operands: `op` is the constructor, as Mul, with its constants.

    `operands` and `result` are the parts of axes of each operand and of the result, with their extents.
    """

    op: str
    constants: tuple[Constant, ...]
    operands: tuple[Extents, ...]
    result: Extents

    @property
    def elements(self) -> int:
        """Combinations of indices of the operands: how often the op is computed."""
        together: dict[str, int] = {}
        for operand in self.operands:
            together |= operand
        return prod(together.values())


NodeCost = Callable[[CostedNode], float]


def fewest_ops(node: CostedNode) -> float:
    """1 for each op; of equally many ops the least work, as a division after a sum and not before it."""
    return 1.0 + node.elements * 2.0**-40


class NodeCosts:
    """The e-nodes of an oracle as a cost sees them. `free`: the parts of axes of each input; `extents`: of all parts."""

    def __init__(self, oracle: Oracle, free: Sequence[frozenset[str]], extents: Extents) -> None:
        self._oracle, self._extents = oracle, extents
        inputs = {f"x{position}": parts for position, parts in enumerate(free)}
        self._axes: dict[int, frozenset[str]] = {}
        changed = True
        while changed:
            changed = False
            for key, class_ in oracle.table.items():
                children = children_of(oracle, key)
                if not all(child in self._axes for child in children):
                    continue
                axes = _axes(key, constants_of(oracle, key), [self._axes[child] for child in children], inputs)
                if class_ not in self._axes or len(axes) < len(self._axes[class_]):
                    self._axes[class_] = axes
                    changed = True

    def node(self, key: Key) -> CostedNode:
        """An e-node of the oracle."""
        operands = tuple(self._of(child) for child in children_of(self._oracle, key))
        return CostedNode(str(key[0]), constants_of(self._oracle, key), operands, self._of(self._oracle.table[key]))

    def _of(self, class_: int) -> Extents:
        return {part: self._extents.get(part, 1) for part in sorted(self._axes.get(class_, ()))}


def _axes(
    key: Key, constants: Sequence[Constant], operands: Sequence[frozenset[str]], inputs: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    name, together = str(key[0]), frozenset[str]().union(*operands)
    if name == "Var":
        return inputs.get(str(constants[0]), together)
    if name in REDUCTIONS:
        return together - {str(constants[0])}
    if name in INDEX_TERMS:  # the index of the result is the first of a concatenation, and the second of a slice
        indices = [frozenset(parts_in(it)) for it in constants if isinstance(it, str)]
        made = indices[0] if name == "Concat" else indices[1] if len(indices) > 1 else frozenset[str]()
        return together.difference(*indices) | made
    return together
