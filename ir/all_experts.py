"""Products of rows with chosen weights as products of all tokens with all weights, of which rows are chosen.

A row r is of an expert e(r) and of a token t(r), and reads the weight of its expert: of experts without rows nothing is read.
Where there are more rows than experts, weights would be read more than once. With D[e, t] = x[t] W[e], row r is D[e(r), t(r)].
So each weight is read once, by a product whose blocks are an expert and a tile of tokens; no row is sorted, and no number is
read by the host. Up to a few hundred tokens such a product takes the time of reading its weights. Ops on rows behind it are
computed on D. As many rows as experts take as long in both forms: 16 tokens of Qwen3-MoE 314 and 324 µs on an H200.

No row reads the D of another expert, so a number that is none stays where it is. Import applies this law: it is trusted, and
tested in the field.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from mirage_eg.ir import write
from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.op.library import ROW_READS
from mirage_eg.ir.op.moves import RESHAPES, TRANSPOSES
from mirage_eg.ir.ops import Kind
from mirage_eg.ir.passes import with_direct_reshapes, without_dead_code
from mirage_eg.ir.remembered import once_per_graph
from mirage_eg.ir.shapes import Shape

MOST_TOKENS = 256  # of which products with the weights of all experts take the time of reading those
MOST_CHOSEN = 1 << 29  # elements of the weights that all rows choose, where each row reads its own
_Lead = tuple[int, int]  # the first extents of D: of experts, or 1 for all; of tokens, or 1 for all


def with_all_experts(program: Graph) -> Graph:
    """The program without products of chosen weights that at least as many rows choose; `program` itself if it has none."""
    copy = GraphCopy(program)
    found = _found(program, copy)
    if not found:
        return program
    for item, values in copy:
        delays = [it for it in found if any(map(it.is_delayed, values))]
        if delays:
            delays[0].on_all(values[0])
        else:
            for operand in item.operands:
                if operand not in copy.position:
                    copy.position[operand] = next(it for it in found if it.is_delayed(operand)).rows(operand)
            copy.copy(item, values)
    return without_dead_code(with_direct_reshapes(copy.graph()))


@once_per_graph
def rows_of_all(program: Graph) -> frozenset[int]:
    """The counts of rows whose products `with_all_experts` replaces."""
    return frozenset(program.types[it.own].shape[0] for it in _found(program, GraphCopy(program)))


def choose_all(rows: int, experts: int, elements: int) -> bool:
    """Whether rows that choose so many elements of the weights of experts are rather multiplied by all of them."""
    return rows > experts > 1 or (1 < experts <= rows and elements > MOST_CHOSEN)


def works_on_rows(program: Graph, item: Node, value: int) -> bool:
    """Whether each row of an op's result is computed from the same row of its operands."""
    shape = program.types[value].shape
    match item.kind, item.op:
        case Kind.ELEMENTWISE, _:
            return True
        case Kind.MATMUL, _:
            return len(shape) > 2
        case _, op if op in RESHAPES:
            return program.types[item.operands[0]].shape[:1] == shape[:1]
        case _, op if op in TRANSPOSES:
            return bool(item["permutation"][0] == 0)
        case kind, op:
            return (kind is Kind.REDUCTION or op == "slice") and bool(item["dim"] != 0)


def _found(program: Graph, copy: GraphCopy) -> "list[_OnAll]":
    products = {} if dims_of(program) else _products(program)  # places in D count its tokens
    chosen = {item.operands[1]: item.operands[0] for item in program.nodes if item.op in ROW_READS and item["dim"] == 0}
    tokens = {index: rows for index, rows in chosen.items() if index not in products}
    found = (_on_all(program, copy, own, values, tokens) for own, values in products.items())
    return [it for it in found if it is not None]


def _products(program: Graph) -> dict[int, list[int]]:
    """Products of rows with weights that they choose, by the vector of their choices, if one of them chooses all."""
    found: dict[int, list[int]] = {}
    choose_all_of: set[int] = set()
    for item, values in program.numbered():
        chosen = program.types[item.operands[1]].shape if item.kind is Kind.MATMUL else ()
        for weights, own in _choices(program, item.operands[1]) if len(chosen) == 3 else ():
            experts, rows = program.types[weights].shape[0], program.types[own].shape[0]
            if all(type(extent) is int for extent in (experts, *chosen)) and 1 < experts <= rows:
                found.setdefault(own, []).append(values[0])
                if choose_all(rows, experts, prod(chosen)):
                    choose_all_of.add(own)
    return {own: values for own, values in found.items() if own in choose_all_of}


def _choices(program: Graph, value: int) -> Iterator[tuple[int, int]]:
    """The tensors and the vectors of places of which a value has slices, behind elementwise ops and views."""
    seen, pending = {value}, [value]
    while pending:
        item = program.node_of[pending.pop()]
        if item.op in ROW_READS and item["dim"] == 0 and len(program.types[item.operands[1]].shape) == 1:
            yield item.operands[0], item.operands[1]
        elif item.kind is Kind.ELEMENTWISE or item.op in RESHAPES | TRANSPOSES:
            pending += [it for it in item.operands if it not in seen]
            seen.update(item.operands)


def _on_all(program: Graph, copy: GraphCopy, own: int, products: Sequence[int], chosen: Mapping[int, int]) -> "_OnAll | None":
    """D of the rows of some products: of tokens, if one vector has the token of each row, else of the rows themselves.

    `chosen` has a tensor for each vector of places that chooses rows of one.
    """
    weights = program.node_of[products[0]].operands[1]
    experts = next(program.types[of_all].shape[0] for of_all, it in _choices(program, weights) if it == own)
    rows = program.types[own].shape
    tokens = [index for index in chosen if index < products[0] and program.types[index].shape == rows]
    for index in (*reversed(tokens), None):  # of several layers the last before the product
        extent = rows[0] if index is None else program.types[chosen[index]].shape[0]
        if type(extent) is int and extent <= MOST_TOKENS:
            it = _OnAll(program, copy, own, index, (experts, extent), [None] * min(own, own if index is None else index))
            if all(it.lead(value) is not None for value in products):
                return it
    return None


@dataclass
class _OnAll:
    """Values of rows as slices of D, `written` at positions of the copy; `leads`: the first extents of D, or none."""

    program: Graph
    copy: GraphCopy
    own: int
    tokens: int | None
    extents: _Lead
    leads: list[_Lead | None] = field(default_factory=list)
    written: dict[int, int] = field(default_factory=dict)
    places: int | None = None

    def is_delayed(self, value: int) -> bool:
        """Whether a value is computed on D, and its rows only where another node reads them."""
        return self.lead(value) == self.extents

    def lead(self, value: int) -> _Lead | None:
        """The first extents of the D of a value; None where the value is no slices of one."""
        while len(self.leads) <= value:  # in order: of a deep program a call for each operand would be one too many
            self.leads.append(self._lead(len(self.leads)))
        return self.leads[value]

    def _lead(self, value: int) -> _Lead | None:
        item, shape = self.program.node_of[value], self.program.types[value].shape
        experts, tokens = self.extents
        if item.op == "output" or not self._has_rows(value):
            return None
        if item.op in ROW_READS and item["dim"] == 0 and item.operands[1] in (self.own, self.tokens):
            extent = self.program.types[item.operands[0]].shape[0]
            lead = (experts, 1) if item.operands[1] == self.own else (1, tokens)
            return lead if extent == max(lead) else None
        if item.kind is Kind.MATMUL:
            left, right = item.operands
            own = self.lead(left) or ((1, tokens) if self.tokens is None and self._has_rows(left) else None)
            return self.extents if len(shape) == 3 and shape[1] == 1 and own and self.lead(right) == (experts, 1) else None
        if not works_on_rows(self.program, item, value):
            return None
        leads = [self.lead(operand) for operand in self._row_operands(item, len(shape))]
        known = [lead for lead in leads if lead is not None]
        if not known or len(known) < len(leads):
            return None
        return max(lead[0] for lead in known), max(lead[1] for lead in known)

    def _has_rows(self, value: int) -> bool:
        return self.program.types[value].shape[:1] == self.program.types[self.own].shape

    def _row_operands(self, item: Node, rank: int) -> list[int]:
        """The operands that are no constants for all rows."""
        aligned = [it for it in item.operands if item.kind is not Kind.ELEMENTWISE or len(self.program.types[it].shape) == rank]
        return [it for it in aligned if self._has_rows(it)]

    def on_all(self, value: int) -> int:
        """The position of D."""
        if value not in self.written:
            self.written[value] = self._write(value)
        return self.written[value]

    def _write(self, value: int) -> int:
        item, shape, lead = self.program.node_of[value], self.program.types[value].shape, self.lead(value)
        if lead is None:  # rows that are tokens of their own
            return self._shaped(self.copy.position[value], (1, *shape))
        changes: dict[str, object] = {}
        if item.op in ROW_READS:
            return self._shaped(self.copy.position[item.operands[0]], (*lead, *shape[1:]))
        if item.kind is Kind.MATMUL:
            return self._product(item, shape)
        if item.op in RESHAPES:
            changes = {"shape": (*lead, *shape[1:])}
        elif item.op in TRANSPOSES:
            changes = {"permutation": (0, *(dim + 1 for dim in item["permutation"]))}
        elif "dim" in item.mapping:
            changes = {"dim": item["dim"] + 1}
        rows = self._row_operands(item, len(shape))
        operands = (self.on_all(it) if it in rows else self.copy.position[it] for it in item.operands)
        return self.copy.append(node(item.op, *operands, **item.mapping | changes))

    def _product(self, item: Node, shape: Shape) -> int:
        """The product of all tokens, which are rows of matrices in D, with the weights of all experts."""
        left, right = item.operands
        experts, tokens = self.extents
        of_all, _ = self.lead(left) or (1, tokens)
        x = self._shaped(self.on_all(left), (of_all, tokens, *self.program.types[left].shape[2:]))
        weights = self._shaped(self.on_all(right), (experts, *self.program.types[right].shape[1:]))
        return self._shaped(self.copy.append(write.matmul(x, weights)), (experts, tokens, *shape[1:]))

    def _shaped(self, position: int, shape: Shape) -> int:
        return self.copy.append(write.reshape(position, shape))

    def _in_64_bits(self, places: int) -> int:
        position, wide = self.copy.position[places], DType.int64
        return position if self.program.types[places].dtype is wide else self.copy.append(write.cast(position, wide))

    def rows(self, value: int) -> int:
        """The position of the rows of D."""
        experts, tokens = self.extents
        if self.places is None:
            [count] = self.program.types[self.own].shape
            token = self.copy.append(write.places(count)) if self.tokens is None else self._in_64_bits(self.tokens)
            first = self.copy.append(write.scale(self._in_64_bits(self.own), tokens))
            self.places = self.copy.append(write.add(first, token))
        flat = self._shaped(self.on_all(value), (experts * tokens, *self.program.types[value].shape[1:]))
        return self.copy.append(write.rows(flat, self.places))
