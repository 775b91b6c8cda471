"""A program or a µGraph at other sizes of its named dims. Tiles keep their extents; grids and loops follow from the sizes.

A size may be a number, or an expression (`ir.sizes.SizeExpression`), for a µGraph of all sizes. Dims of values are row-major
products of factors, as axes are, so that a reshape of the program takes its named dims along.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

from mirage_eg.ir.checker import Checker
from mirage_eg.ir.errors import GraphError, TiedToSizeError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import REPLICATED, Node, Phase
from mirage_eg.ir.op.moves import BROADCASTS, RESHAPES, TRANSPOSES, VIEWS_OF_A_PART
from mirage_eg.ir.ops import OPS, Kind, Level
from mirage_eg.ir.ragged import LOOP
from mirage_eg.ir.remembered import once_per_graph
from mirage_eg.ir.shapes import Shape, text
from mirage_eg.ir.sizes import LEAST_HINT, Dim, SizeExpression, as_numbers, most, parts_of, ratio, read_dims, value_of


def dims_of(graph: Graph) -> dict[str, Dim]:
    """The named dims of a program's inputs. Raises GraphError: a name with two declarations."""
    dims: dict[str, Dim] = {}
    for _, _, dim in named_dims(graph):
        if dims.setdefault(dim.name, dim).declaration != dim.declaration:
            raise GraphError(f"got dims {dims[dim.name].declaration} and {dim.declaration}; a name has one declaration")
    return dims


def named_dims(graph: Graph) -> list[tuple[int, int, Dim]]:
    """The named dims of the inputs: the place of each input, the place of the dim in it, the dim."""
    declared = (read_dims(item.get("dims"), len(item["shape"])) for item in graph.inputs)
    return [(place, at, dim) for place, dims in enumerate(declared) for at, dim in enumerate(dims) if dim is not None]


def sizes_of(graph: Graph) -> dict[str, int]:
    """The sizes at which a graph is written."""
    return {dim.name: extent for dim, extent in _declared(graph)}


def _declared(graph: Graph) -> list[tuple[Dim, int]]:
    pairs = [(dim, graph.inputs[place]["shape"][at]) for place, at, dim in named_dims(graph)]
    for dim, extent in pairs:
        if extent != (first := next(other for same, other in pairs if same.name == dim.name)):
            raise GraphError(
                f"got extents {first} and {extent} for {dim.name}; inputs with dims of one name have one extent there"
            )
    return pairs


def at_sizes(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The same kernel graph with these sizes of its named dims.

    Raises TiedToSizeError: an op whose meaning is tied to the present size, as a slice along the dim; dims whose extents agree
    at the present sizes only; a block that holds less.
    """
    try:
        return _Resizing(graph, sizes, _least_divisor(graph)).graph()
    except GraphError as error:  # of the shapes at these sizes
        raise TiedToSizeError(str(error)) from error


def check_constants(nodes: Sequence[Node]) -> None:
    """Hold extents of constants, expressions in `nodes` and numbers in a graph, against that graph at other sizes.

    Raises UnsupportedError: they differ.
    """
    made = {place: _extents(item) for place, item in enumerate(nodes) if _has_extents(item)}
    if not any(isinstance(extent, SizeExpression) for shape in made.values() for extent in shape):
        return
    graph = Graph(tuple(Node(item.op, item.operands, as_numbers(item.attributes)) for item in nodes))
    sizes = {name: dim.multiple_of * (_OTHER_SIZE + place) for place, (name, dim) in enumerate(dims_of(graph).items())}
    with suppress(TiedToSizeError):  # which is an error where the program is used
        there = at_sizes(graph, sizes).nodes
        for place, shape in made.items():
            for extent, number in zip(shape, _extents(there[place]), strict=True):
                if isinstance(extent, SizeExpression) and value_of(extent, sizes) != number:
                    raise UnsupportedError(
                        f"{nodes[place].op}: got the extent {extent}, which a constant does not keep at other sizes; "
                        f"wanted a dim of an input, or a multiple of one with a max of at least {LEAST_HINT}"
                    )


def _has_extents(item: Node) -> bool:
    """Whether an op is given extents of its result."""
    return item.get("extent") is not None or item.op in BROADCASTS or item.op == "full"


def _extents(item: Node) -> Shape:
    """The extents of its result that an op is given."""
    shape: Shape = item.get("shape", (item.get("extent"),))
    return shape


_OTHER_SIZE = 1009  # at which no extent is by accident what it should be


@once_per_graph
def _least_divisor(graph: Graph) -> int:
    """The least size of which ops make multiples: LEAST_HINT unless shapes agree at small sizes alone without them."""
    if not any(map(_has_extents, graph.nodes)):
        return LEAST_HINT
    try:
        _Resizing(graph, {name: dim.hint for name, dim in dims_of(graph).items()}, LEAST_HINT).graph()
    except GraphError:
        return 2
    return LEAST_HINT


@dataclass(frozen=True, slots=True)
class _Factor:
    """A factor of a dim: its extent now and at the wanted sizes; `fixed`: no size changes it."""

    old: int
    new: int
    fixed: bool


Factors = tuple[_Factor, ...]  # of one dim, slowest first


def _fixed(extent: int) -> Factors:
    return (_Factor(extent, extent, True),) if extent > 1 else ()


def _old(factors: Factors) -> int:
    return prod(factor.old for factor in factors)


def _new(factors: Factors) -> int:
    return prod(factor.new for factor in factors)


def _is_fixed(factors: Factors) -> bool:
    return all(factor.fixed for factor in factors)


class _Resizing:
    """The nodes of the new kernel graph, and the factors of each dim of its values.

    The extents that ops make, as of 0, 1, 2, …, are multiples of a size of at least `least` that divides them.
    """

    def __init__(self, graph: Graph, sizes: Mapping[str, int], least: int) -> None:
        self._old, self._sizes, self._least = graph, sizes, least
        self._present = sizes_of(graph)
        self._checker = Checker(Level.KERNEL)
        self._dims: list[tuple[Factors, ...]] = []

    def graph(self) -> Graph:
        for item, values in self._old.numbered():
            match item.op:
                case "input":
                    self._input(item)
                case op if op in RESHAPES:
                    self._reshape(item, values[0])
                case "block":
                    resized = _BlockResizing(item["graph"], [self._dims[i] for i in item.operands])
                    attributes = item.mapping | {"graph": resized.graph()}
                    self._append(Node(item.op, item.operands, tuple(sorted(attributes.items()))), values)
                case _:
                    self._append(self._with_extents(item, values), values)
        return Graph.of_checked(self._checker)

    def _append(self, item: Node, values: range) -> None:
        """Add a node; the dims of its values are those of an operand where extents agree, by preference at the op's places."""
        operands = [self._dims[operand] for operand in item.operands]
        known = [factors for dims in operands for factors in dims]
        for result, (value, new) in enumerate(zip(values, self._checker.append(item), strict=True)):
            old, shape = self._old.types[value].shape, self._checker.types[new].shape
            preferred = [_preferred(item, operands, result, dim, len(old)) for dim in range(len(old))]
            dims = zip(old, shape, preferred, strict=True)
            self._dims.append(tuple(_factors(before, after, [*first, *known]) for before, after, first in dims))

    def _input(self, item: Node) -> None:
        declared = read_dims(item.get("dims"), len(item["shape"]))
        pairs = zip(declared, item["shape"], strict=True)
        dims = tuple(_fixed(it) if dim is None else (_Factor(it, self._sizes[dim.name], False),) for dim, it in pairs)
        attributes = item.mapping | {"shape": tuple(map(_new, dims))}
        if item.get("strides") is not None:
            attributes["strides"] = dense_strides(item["shape"], item["strides"], attributes["shape"])
        self._checker.append(Node(item.op, (), tuple(sorted(attributes.items()))))
        self._dims.append(dims)

    def _reshape(self, item: Node, value: int) -> None:
        dims = _regrouped([factor for factors in self._dims[item.operands[0]] for factor in factors], item["shape"])
        self._checker.append(Node(item.op, item.operands, (("shape", tuple(map(_new, dims))),)))
        self._dims.append(tuple(dims))

    def _with_extents(self, item: Node, values: range) -> Node:
        """The node with its extents at the new sizes; one that no operand has is a multiple of named dims."""
        attributes = item.mapping
        if item.op in BROADCASTS:
            operand, rank = self._dims[item.operands[0]], len(item["shape"])
            own = [operand[dim - rank] if rank - dim <= len(operand) else () for dim in range(rank)]
            attributes["shape"] = self._shape(item["shape"], own)
        elif item.op == "full":
            attributes["shape"] = self._shape(item["shape"], [()] * len(item["shape"]))
        elif item.get("extent") is not None:
            attributes["extent"] = self._extent(item["extent"], [])
        elif item.op in VIEWS_OF_A_PART and not _is_fixed(cut := self._dims[item.operands[0]][item["dim"]]):
            if item.op == "slice" and (item["start"], item["stop"], item["step"]) == (0, _old(cut), 1):
                attributes["stop"] = _new(cut)
            else:
                attributes |= self._bounds(item, cut)
        return Node(item.op, item.operands, tuple(sorted(attributes.items())))

    def _bounds(self, item: Node, cut: Factors) -> dict[str, int]:
        """Start and stop of a slice along a named dim: those from its end move with it, others are the same at every size."""
        declared = [it for it in dims_of(self._old).values() if self._present[it.name] == _old(cut)]
        new = _new(cut)
        if item.get("from_end") is None or item["step"] > 1 or not declared or isinstance(new, SizeExpression):
            raise TiedToSizeError(f"{item.op} along a dim that is chosen later; wanted one along a fixed dim")
        bounds = {}
        for name, counted in zip(("start", "stop"), item["from_end"], strict=True):
            if not counted and item[name] > declared[0].min:
                raise TiedToSizeError(
                    f"slice: got {name} {item[name]} of {declared[0].declaration}, wanted at most its least size"
                )
            bounds[name] = item[name] + new - _old(cut) if counted else item[name]
        return bounds

    def _shape(self, shape: Shape, own: Sequence[Factors]) -> Shape:
        """A shape at the new sizes; of two sizes that agree at present each is taken once, in their order."""
        free, pairs = [*self._present], zip(own, shape, strict=True)
        return tuple(_new(it) if _old(it) == extent else self._extent(extent, free) for it, extent in pairs)

    def _extent(self, extent: int, free: list[str]) -> int:
        for name in (*free, *self._present):
            present = self._present[name]
            if extent == present > 1 or (present >= self._least and extent % present == 0):
                alike = [it.name for it in dims_of(self._old).values() if it.hint == self._present[it.name] == present]
                if len(alike) > 1:  # as the program is written
                    either = " or ".join(alike)
                    raise TiedToSizeError(f"got the extent {extent} of a constant, which may be {either}; rename one of them")
                free[:] = (other for other in free if other != name)
                return self._extent(extent // present, free) * self._sizes[name]
        return extent


def _preferred(item: Node, operands: Sequence[tuple[Factors, ...]], result: int, dim: int, rank: int) -> list[Factors]:
    """The dims of operands of which a dim of a result is made by the op; two dims may have one extent at the present sizes."""
    match item.op:
        case op if op in TRANSPOSES:
            return [operands[0][item["permutation"][dim]]]
        case _ if item.kind is Kind.MATMUL and dim >= rank - 2:
            return [operands[dim - rank + 2][dim - rank]]
        case "block":
            return _cut_alike(item["graph"], operands, result, dim)
        case _:
            return [dims[dim - rank] for dims in operands if len(dims) >= rank - dim]


def _cut_alike(block: Graph, operands: Sequence[tuple[Factors, ...]], result: int, dim: int) -> list[Factors]:
    """The dims of a block's operands that the same grid dims cut as a dim of a result, or none."""
    wanted = [place for place, target in enumerate(block.outputs[result]["omap"]) if target == dim]
    found = []
    for each, dims in zip(block.inputs, operands, strict=True):
        for position, factors in enumerate(dims):
            if [place for place, target in enumerate(each["imap"]) if target == position] == wanted:
                found.append(factors)
    return found


def _factors(old: int, new: int, known: Sequence[Factors]) -> Factors:
    """The factors of a dim: those of an operand's dim of the same extents, which are the same expressions of sizes, or one."""
    same = (factors for factors in known if (_old(factors), str(_new(factors))) == (old, str(new)))
    return next(same, _fixed(old) if old == new and not isinstance(new, SizeExpression) else (_Factor(old, new, False),))


def _regrouped(factors: Sequence[_Factor], shape: Shape) -> list[Factors]:
    """The factors of a reshaped value's dims; a fixed factor may be split. Raises TiedToSizeError: the shape splits a size."""
    left = [factor for factor in factors if factor.old > 1 or not factor.fixed]
    dims: list[Factors] = []
    for extent in shape:
        taken: list[_Factor] = []
        while (wanted := extent // _old(tuple(taken))) > 1:
            factor = left.pop(0)
            if wanted % factor.old == 0:
                taken.append(factor)
            elif factor.fixed and factor.old % wanted == 0:
                taken.append(_Factor(wanted, wanted, True))
                left.insert(0, _Factor(factor.old // wanted, factor.old // wanted, True))
            else:
                raise TiedToSizeError(f"reshape to {text(shape)} splits a dim of {factor.old} that is chosen later")
        dims.append(tuple(taken))
    return dims


def dense_strides(old: Shape, strides: Shape, new: Shape) -> Shape:
    """Strides of the same order of dims without gaps; 0 stays 0.

    Raises TiedToSizeError: the present strides have gaps, whose meaning at another size is unknown.
    """
    order = sorted((dim for dim, stride in enumerate(strides) if stride), key=lambda dim: (strides[dim], old[dim]))
    result, step, present = [0] * len(old), 1, 1
    for dim in order:
        if old[dim] > 1 and strides[dim] != present:
            raise TiedToSizeError(
                f"got strides {text(strides)} of {text(old)} with gaps; wanted dense ones where sizes are chosen later"
            )
        result[dim] = step
        step, present = step * new[dim], present * old[dim]
    return tuple(result)


class _BlockResizing:
    """A block graph for operands of other extents: the slowest split of a dim takes as many parts as the dim needs."""

    def __init__(self, block: Graph, operands: Sequence[tuple[Factors, ...]]) -> None:
        self._old, self._operands = block, operands
        self._counts: dict[int, int] = {}  # of the grid dims, and of the loop as LOOP
        self._uneven = False  # the last block may have empty iterations
        fixed: set[int] = set()
        for item, value, dims in zip(block.inputs, block.input_values, operands, strict=True):
            for dim, factors in enumerate(dims):
                places = [place for place, target in enumerate(item["imap"]) if target == dim]
                places += [LOOP] if item.get("fmap", REPLICATED) == dim else []
                if _is_fixed(factors):
                    fixed.update(places)
                else:
                    self._split(places, block.types[value].shape[dim], _new(factors))
        if fixed & self._counts.keys():
            raise TiedToSizeError("one grid dim splits a dim that is chosen later together with a fixed one")

    def _split(self, places: Sequence[int], part: int, extent: int) -> None:
        if not places:
            if most(extent) > part:
                raise TiedToSizeError(f"a block holds {part} elements of a dim of up to {most(extent)}; wanted tiles of it")
            return
        slowest, *others = places
        self._uneven |= LOOP in others
        counts = (self._old.loop if place == LOOP else self._old.grid[place] for place in others)
        count = parts_of(extent, part * prod(counts))
        if self._counts.setdefault(slowest, count) != count:
            raise TiedToSizeError("one grid dim splits dims of different sizes")

    def graph(self) -> Graph:
        """The new block graph. Raises TiedToSizeError: a layout with gaps."""
        block = self._old
        grid = tuple(self._counts.get(place, count) for place, count in enumerate(block.grid))
        loop = self._counts.get(LOOP, block.loop)
        nodes = self._nodes(Checker(Level.BLOCK, grid, loop))
        plain = [_without_strides(item) if item.op == "output" else item for item in nodes]
        new = replace(block, nodes=tuple(plain), grid=grid, loop=loop)
        shapes = iter(zip(block.output_types, new.output_types, strict=True))
        for place, item in enumerate(nodes):
            if item.op == "output":
                before, after = next(shapes)
                if item.get("strides") is not None:
                    strides = dense_strides(before.shape, item["strides"], after.shape)
                    nodes[place] = Node(item.op, item.operands, tuple(sorted((item.mapping | {"strides": strides}).items())))
        return replace(new, nodes=tuple(nodes)) if nodes != plain else new

    def _nodes(self, checker: Checker) -> list[Node]:
        """The nodes; a mean of parts with a rest becomes a sum, scaled, as the mean of the parts is that of the whole."""
        nodes: list[Node] = []
        position: dict[int, int] = {}
        given = iter(self._operands)

        def append(item: Node) -> range:
            nodes.append(item)
            return checker.append(_without_strides(item))

        for item, values in self._old.numbered():
            operands = tuple(position[i] for i in item.operands)
            attributes = item.mapping
            if item.op == "input":
                dims = next(given)
                attributes["shape"] = tuple(map(_new, dims))
                if not all(map(_is_fixed, dims)):
                    attributes["tile"] = self._old.types[values[0]].shape
                if item.get("strides") is not None:
                    attributes["strides"] = dense_strides(item["shape"], item["strides"], attributes["shape"])
            cut = checker.cuts[operands[0]][item["dim"]] if item.op == "mean" and operands[0] in checker.cuts else None
            op = item.op
            if OPS[op].reduction == "mean" and self._uneven and checker.phases[operands[0]] is Phase.LOOP:
                raise TiedToSizeError("accum_mean over iterations of which some are empty")
            if cut is not None:
                counts = prod(checker.loop if place == LOOP else checker.grid[place] for place, _ in cut.steps)
                operands = (append(Node("scale", operands, (("factor", ratio(counts, cut.extent)),)))[0],)
                op = "sum"
            result = append(Node(op, operands, tuple(sorted(attributes.items()))))
            position.update(zip(values, result, strict=True))
        return nodes


def _without_strides(item: Node) -> Node:
    if item.op != "output":
        return item
    return Node(item.op, item.operands, tuple(pair for pair in item.attributes if pair[0] != "strides"))
