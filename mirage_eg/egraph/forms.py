"""The terms of an oracle's classes: the cheapest term of each class, and the smallest terms of one class."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf

from mirage_eg.egraph.expression import Constant, Tree
from mirage_eg.egraph.extraction import cheapest_nodes
from mirage_eg.egraph.oracle import Key, Oracle, children_of
from mirage_eg.egraph.term_text import CLASS

_LARGER = 24  # constructors beyond those of the smallest term of a class: the largest terms that are listed
_MOST = 5_000  # terms of one class and size that are combined


class Forms:
    """The terms below the outputs of an oracle, with `names` for its inputs x0, x1 …"""

    def __init__(self, oracle: Oracle, names: Sequence[str] = ()) -> None:
        self.oracle = oracle
        self._names = {f"x{position}": name for position, name in enumerate(names)}
        self._variables = {name: variable for variable, name in self._names.items()}
        self.nodes: dict[int, list[Key]] = {}
        for key, class_ in oracle.table.items():
            self.nodes.setdefault(class_, []).append(key)
        self._sized: dict[tuple[int, int], tuple[Tree, ...]] = {}
        self._smallest: dict[int, int] | None = None

    def class_of(self, tree: Tree) -> int | None:
        """The class of a tree, or None if no term equal to the program contains it."""
        if tree[0] == CLASS:
            return int(tree[1]) if tree[1] in self.nodes else None
        key = self.key(tree)
        return None if key is None else self.oracle.table.get(key)

    def key(self, tree: Tree) -> Key | None:
        """The e-node of a tree, or None if one of its operands has no class."""
        if tree[0] == "Var":
            return ("Var", self._variables.get(str(tree[1]), str(tree[1])))
        key: list[Constant] = []
        for part in tree:
            argument = self.class_of(part) if isinstance(part, tuple) else part
            if argument is None:
                return None
            key.append(argument)
        return tuple(key)

    def tree(self, key: Key, children: Iterable[Tree]) -> Tree:
        """An e-node with these operands."""
        operands = iter(children)
        sorts = self.oracle.sorts[str(key[0])]
        parts = (next(operands) if sort == "E" else part for part, sort in zip(key[1:], sorts, strict=True))
        name, *rest = (str(key[0]), *parts)
        return ("Var", self._names.get(str(rest[0]), str(rest[0]))) if name == "Var" else (name, *rest)

    def cheapest(
        self, cost: Callable[[Key], float] = lambda key: 1.0, preferred: Mapping[int, Tree] | None = None
    ) -> dict[int, Tree]:
        """The cheapest term of each class by the cost of e-nodes without their operands; `preferred` ones cost nothing.

        A class whose terms cost infinity is left out.
        """
        return {class_: tree for class_, (_, tree) in self._cheapest(cost, preferred or {}).items()}

    def _cheapest(self, cost: Callable[[Key], float], preferred: Mapping[int, Tree]) -> dict[int, tuple[float, Tree]]:
        table = sorted(self.oracle.table.items(), key=lambda entry: str(entry[0]))
        entries = [(class_, key, own, children_of(self.oracle, key)) for key, class_ in table if (own := cost(key)) < inf]
        trees = {class_: (0.0, tree) for class_, tree in preferred.items()}
        best = cheapest_nodes(entries, dict.fromkeys(preferred, 0.0))
        for class_, (total, node) in sorted(best.items(), key=lambda entry: entry[1][0]):  # children cost less
            if node is not None:
                trees[class_] = total, self.tree(node, (trees[child][1] for child in children_of(self.oracle, node)))
        return trees

    def smallest(self, class_: int, count: int) -> list[Tree]:
        """Up to `count` different terms of a class, the smallest first."""
        return list(islice(self._by_size(class_), count))

    def _by_size(self, class_: int) -> Iterator[Tree]:
        if self._smallest is None:
            self._smallest = {class_: int(size) for class_, (size, _) in self._cheapest(lambda key: 1.0, {}).items()}
        least = self._smallest[class_]
        for size in range(least, least + _LARGER):
            yield from self._of_size(class_, size)

    def _of_size(self, class_: int, size: int) -> tuple[Tree, ...]:
        assert self._smallest is not None
        if size < self._smallest[class_]:
            return ()
        if (class_, size) not in self._sized:
            terms = (
                self.tree(key, operands)
                for key in sorted(self.nodes[class_], key=str)
                for operands in self._operands(children_of(self.oracle, key), size - 1)
            )
            self._sized[class_, size] = tuple(islice(terms, _MOST))
        return self._sized[class_, size]

    def _operands(self, children: Sequence[int], size: int) -> Iterator[tuple[Tree, ...]]:
        """Terms of the classes `children` with `size` constructors together."""
        if not children:
            if size == 0:
                yield ()
            return
        assert self._smallest is not None
        first, *rest = children
        most = size - sum(self._smallest[child] for child in rest)
        for own in range(self._smallest[first], most + 1):
            for others in self._operands(rest, size - own):
                for term in self._of_size(first, own):
                    yield (term, *others)


def constants_of(oracle: Oracle, key: Key) -> tuple[Constant, ...]:
    """The constants of an e-node."""
    return tuple(part for part, sort in zip(key[1:], oracle.sorts[str(key[0])], strict=True) if sort != "E")
