"""An e-graph of concrete terms that records a reason for every equality: congruence closure with explanations.

Every term keeps its number after its class is merged. Every equality found is an edge between two terms, in order of time: an
instance of a law, or congruence. The explanation of a congruence uses earlier edges alone, so that explanations end
(Nieuwenhuis and Oliveras, RTA 2005); among these it is a shortest (a shortest of all is hard: Flatt et al., FMCAD 2022).
Not trusted: `chain_checker` replays the result.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from mirage_eg.egraph.expression import Constant, Tree

Label = tuple[str, tuple[Constant | None, ...]]  # constructor, and its arguments with None for subterms
ENode = tuple[Label, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The instance of a law that makes two terms equal: its left side and its right side."""

    law: str
    substitution: tuple[tuple[str, Tree | Constant], ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """Two equal terms; without a rewrite they are equal by congruence."""

    number: int
    left: int
    right: int
    rewrite: Rewrite | None


@dataclass(frozen=True, slots=True)
class Move:
    """A rewrite in a direction: the subterms at `paths` become the term `result`."""

    rewrite: Rewrite
    forward: bool
    result: int
    paths: tuple[tuple[int, ...], ...]


class CongruenceClosure:
    """Terms by number, their classes, and the edges between them."""

    def __init__(self) -> None:
        self.enodes: list[ENode] = []  # with the numbers of the subterms
        self.trees: list[Tree] = []
        self.table: dict[ENode, int] = {}  # by the classes of the subterms, the first such term
        self._numbers: dict[ENode, int] = {}
        self._parents: list[list[int]] = []
        self._leader: list[int] = []
        self._members: dict[int, list[int]] = {}
        self._edges: list[list[Edge]] = []  # of each term
        self._known: set[tuple[int, int, str]] = set()
        self._count = 0
        self._congruent: list[tuple[int, int]] = []  # terms found congruent and not merged yet
        self._costs: dict[int, int] = {}  # of edges, in steps

    def __len__(self) -> int:
        return len(self.enodes)

    def find(self, term: int) -> int:
        """The class of a term, as the number of one of its terms."""
        while self._leader[term] != term:
            self._leader[term] = self._leader[self._leader[term]]
            term = self._leader[term]
        return term

    def members(self, class_: int) -> list[int]:
        """The terms of a class."""
        return self._members[self.find(class_)]

    def add(self, tree: Tree) -> int:
        """The number of a term."""
        children = tuple(self.add(part) for part in tree[1:] if isinstance(part, tuple))
        return self.add_enode((tree[0], tuple(None if isinstance(part, tuple) else part for part in tree[1:])), children)

    def add_enode(self, label: Label, children: tuple[int, ...]) -> int:
        """The number of the term with these subterms."""
        enode = label, children
        if (known := self._numbers.get(enode)) is not None:
            return known
        number = len(self.enodes)
        operands = iter(children)
        self.enodes.append(enode)
        self.trees.append((label[0], *(self.trees[next(operands)] if part is None else part for part in label[1])))
        self._numbers[enode] = number
        self._leader.append(number)
        self._members[number] = [number]
        self._parents.append([])
        self._edges.append([])
        for child in set(map(self.find, children)):
            self._parents[child].append(number)
        self._index(number)
        self._merge_congruent()
        return number

    def union(self, left: int, right: int, rewrite: Rewrite) -> bool:
        """Record that a law makes two terms equal; whether they were in two classes."""
        merged = self._connect(left, right, rewrite)
        self._merge_congruent()
        return merged

    def canonical(self, number: int) -> ENode:
        """The e-node of a term: its label and the classes of its subterms."""
        label, children = self.enodes[number]
        return label, tuple(map(self.find, children))

    def _index(self, number: int) -> None:
        first = self.table.setdefault(self.canonical(number), number)
        if first != number:
            self._congruent.append((first, number))

    def _merge_congruent(self) -> None:
        while self._congruent:
            self._connect(*self._congruent.pop(), None)

    def _connect(self, left: int, right: int, rewrite: Rewrite | None) -> bool:
        known = (min(left, right), max(left, right), "" if rewrite is None else rewrite.law)
        if left == right or known in self._known:
            return False
        self._known.add(known)
        edge = Edge(self._count, left, right, rewrite)
        self._count += 1
        self._edges[left].append(edge)
        self._edges[right].append(edge)
        kept, lost = self.find(left), self.find(right)
        if kept == lost:
            return False
        if len(self._members[kept]) < len(self._members[lost]):
            kept, lost = lost, kept
        parents = self._parents[lost]
        for parent in parents:
            canonical = self.canonical(parent)
            if self.table.get(canonical) == parent:
                del self.table[canonical]
        self._leader[lost] = kept
        self._members[kept] += self._members.pop(lost)
        self._parents[kept] += parents
        self._parents[lost] = []
        for parent in parents:
            self._index(parent)
        return True

    def distance(self, left: int, right: int) -> int:
        """The number of steps of the explanation that `moves` gives."""
        return sum(map(self._cost, self._path(left, right, self._count)))

    def moves(self, left: int, right: int) -> Iterator[Move]:
        """The rewrites that lead from a term to another of its class."""
        return self._moves(left, right, self._count)

    def _moves(self, left: int, right: int, before: int) -> Iterator[Move]:
        at = left
        for edge in self._path(left, right, before):
            forward = edge.left == at
            at = edge.right if forward else edge.left
            if edge.rewrite is not None:
                yield Move(edge.rewrite, forward, at, ((),))
                continue
            for (old, new), places in self._differing(edge, forward).items():
                for move in self._moves(old, new, edge.number):
                    paths = tuple((place, *path) for place in places for path in move.paths)
                    yield Move(move.rewrite, move.forward, move.result, paths)

    def _differing(self, edge: Edge, forward: bool = True) -> dict[tuple[int, int], list[int]]:
        """The pairs of subterms that a congruence exchanges, with their places."""
        before, after = (edge.left, edge.right) if forward else (edge.right, edge.left)
        pairs: dict[tuple[int, int], list[int]] = {}
        for place, pair in enumerate(zip(self.enodes[before][1], self.enodes[after][1], strict=True)):
            if pair[0] != pair[1]:
                pairs.setdefault(pair, []).append(place)
        return pairs

    def _cost(self, edge: Edge) -> int:
        if edge.rewrite is not None:
            return 1
        if edge.number not in self._costs:
            paths = (self._path(old, new, edge.number) for old, new in self._differing(edge))
            self._costs[edge.number] = sum(self._cost(step) for path in paths for step in path)
        return self._costs[edge.number]

    def _path(self, left: int, right: int, before: int) -> list[Edge]:
        """The cheapest path of edges older than `before` between two terms of a class (Dijkstra)."""
        queue: list[tuple[int, int, int, Edge | None]] = [(0, 0, left, None)]
        arrived: dict[int, Edge | None] = {}
        order = 0
        while queue:
            cost, _, term, by = heappop(queue)
            if term in arrived:
                continue
            arrived[term] = by
            if term == right:
                break
            for edge in self._edges[term]:
                other = edge.right if edge.left == term else edge.left
                if edge.number < before and other not in arrived:
                    order += 1
                    heappush(queue, (cost + self._cost(edge), order, other, edge))
        path: list[Edge] = []
        while (last := arrived[right]) is not None:
            path.append(last)
            right = last.left if last.right == right else last.right
        return path[::-1]
