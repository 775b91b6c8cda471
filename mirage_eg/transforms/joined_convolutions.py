"""Convolutions of one image whose results are added become one convolution, with the norms of each.

(conv(x, w) · s + b) + (conv(x, v) · t + c) + (x · u + d) = conv(x, w · s + pad(v · t) + diag(u)) + (b + c + d)

Networks that are trained in branches have such sums: a window of 3×3, one of 1×1 and the image itself, each with a batch norm.
The filters are computed in each call, so this is for large convolutions and images. An image with factors stays one in
float32, which convolutions round to TF32. Nothing here is trusted: candidates are verified against the program as it was
written.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import prod
from operator import sub

from mirage_eg.backends.cost.lower_bound import flops_of_product
from mirage_eg.ir import write
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import GraphCopy, with_rewritten
from mirage_eg.ir.node import Node, node
from mirage_eg.ir.op.elementwise import PRODUCTS, SUMS
from mirage_eg.ir.op.moves import PAD
from mirage_eg.ir.passes import without_dead_code
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.windows import CONV2D
from mirage_eg.transforms.folded_norms import (
    AFFINE,
    LARGE,
    channels_before,
    channels_behind,
    factor_and_shift,
    is_of_channels,
)

_MANY = 1 << 23  # elements of an image, which a kernel of its own would read and write in 8 µs on an H200
(_SUM,), (_PRODUCT,) = SUMS, PRODUCTS


@dataclass(frozen=True, slots=True)
class _Term:
    """A term of a sum of images: its `value`, which `steps` with a number of each channel compute from `source`."""

    value: int
    source: int
    steps: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class _Joined:
    """Terms that are one convolution with the attributes of its largest window, and the others of the sum."""

    largest: Node
    terms: tuple[_Term, ...]
    others: tuple[_Term, ...]


def with_joined_convolutions(program: Graph) -> Graph:
    """The program whose sums have one large convolution of an image each; itself where none has two."""
    sums = {values[0] for item, values in program.numbered() if _is_sum(program, item)}
    inner = {it for it in sums if len(program.readers[it]) == 1 and _is_sum(program, program.nodes[program.readers[it][0]])}
    found = {root: joined for root in sums - inner if (joined := _joined(program, [*_terms(program, root, inner)]))}

    def written(copy: GraphCopy, item: Node, root: int) -> int:
        joined = found[root]
        affine = [factor_and_shift(copy, term.steps) for term in joined.terms]
        image = copy.position[joined.largest.operands[0]]
        weight = _filter(program, copy, joined, [factor for factor, _ in affine])
        result = copy.append(node(CONV2D, image, weight, **joined.largest.mapping))
        shifts = [shift for _, shift in affine if shift is not None]
        shifted = [_chain(copy, _SUM, shifts)] if shifts else []
        return _chain(copy, _SUM, [result, *shifted, *(copy.position[it.value] for it in joined.others)])

    return without_dead_code(with_rewritten(program, found.keys(), written)) if found else program


def _is_sum(program: Graph, item: Node) -> bool:
    if item.op != _SUM or len(item.operands) != 2:
        return False
    left, right = (program.types[operand] for operand in item.operands)
    return left == right and len(left.shape) == 4


def _terms(program: Graph, value: int, inner: set[int]) -> Iterator[_Term]:
    """The terms of a sum of images, in order."""
    for operand in program.node_of[value].operands:
        if operand in inner:
            yield from _terms(program, operand, inner)
            continue
        source, steps = operand, list[Node]()
        while len(program.readers[source]) == 1 and (item := program.node_of[source]).op in AFFINE:
            if not is_of_channels(program, item.operands[0], item):
                break
            steps.append(item)
            [source, _] = item.operands
        yield _Term(operand, source, tuple(reversed(steps)))


def _joined(program: Graph, terms: Sequence[_Term]) -> _Joined | None:
    """The terms that are one convolution, of the largest window; None if they are fewer than two."""
    large = [it for it in terms if _is_convolution(program, it) and _pays(program, it)]
    if not large:
        return None
    largest = program.node_of[max(large, key=lambda it: prod(_window(program, it))).source]
    joined = tuple(it for it in terms if _fits(program, largest, it))
    return _Joined(largest, joined, tuple(it for it in terms if it not in joined)) if len(joined) > 1 else None


def _is_convolution(program: Graph, term: _Term) -> bool:
    return program.node_of[term.source].op == CONV2D and len(program.readers[term.source]) == 1


def _pays(program: Graph, term: _Term) -> bool:
    is_long = flops_of_product(program, program.node_of[term.source], term.source) >= LARGE
    return is_long or prod(program.types[term.source].shape) >= _MANY


def _window(program: Graph, term: _Term) -> Shape:
    return program.types[program.node_of[term.source].operands[1]].shape[2:]


def _fits(program: Graph, largest: Node, term: _Term) -> bool:
    """Whether a term is a convolution of the same image by a window within the largest, or the image with a factor of each
    channel."""
    image, weight = largest.operands
    if term.source == image:
        filters, channels, *_ = program.types[weight].shape
        is_scaled = any(step.op == _PRODUCT for step in term.steps) and program.types[image].dtype.itemsize == 2
        is_whole = largest["groups"] * channels == filters and 1 in (largest["groups"], channels)
        return is_scaled and is_whole and {*largest["strides"], *largest["dilations"]} == {1}
    if not _is_convolution(program, term) or (item := program.node_of[term.source]).operands[0] != image:
        return False
    if any(item[name] != largest[name] for name in ("strides", "dilations", "groups")):
        return False
    before, after = _around(program, largest, item["pads"], _window(program, term))
    return not any((*before, *after)) or (min(*before, *after) >= 0 and {*largest["dilations"]} == {1})


def _around(program: Graph, largest: Node, pads: Shape, window: Shape) -> tuple[Shape, Shape]:
    """How many places the largest window has before and behind a window with its pads."""
    before = tuple(map(sub, largest["pads"][:2], pads[:2]))
    every = map(sub, program.types[largest.operands[1]].shape[2:], window)
    return before, tuple(map(sub, every, before))


def _filter(program: Graph, copy: GraphCopy, joined: _Joined, factors: Sequence[int | None]) -> int:
    """The position of the sum of all filters, each with its factors, in the largest window."""
    image, weight = joined.largest.operands
    shape, dtype = program.types[weight].shape, program.types[weight].dtype
    filters, channels, *_ = shape
    by_place: dict[tuple[Shape, Shape], list[int]] = {}
    for term, factor in zip(joined.terms, factors, strict=True):
        by = [] if factor is None else [copy.append(write.reshape(factor, (filters, 1, 1, 1)))]
        if term.source != image:
            item = program.node_of[term.source]
            place = _around(program, joined.largest, item["pads"], _window(program, term))
            own = program.types[item.operands[1]].shape
            by = [channels_behind(copy, copy.position[item.operands[1]], own), *by]
        else:
            place = _around(program, joined.largest, (0,) * 4, (1, 1))
            if channels > 1:
                eye = copy.append(write.identity(filters, dtype))
                by = [copy.append(write.reshape(eye, (filters, 1, 1, channels))), *by]
        by_place.setdefault(place, []).append(_chain(copy, _PRODUCT, by))
    padded = []
    for (before, after), terms in by_place.items():
        whole = _chain(copy, _SUM, terms)
        if any((*before, *after)):
            around = {"before": (0, *before, 0), "after": (0, *after, 0)}
            whole = copy.append(node(PAD.name, whole, **around, value=Fraction(0)))
        padded.append(whole)
    return channels_before(copy, _chain(copy, _SUM, padded), shape)


def _chain(copy: GraphCopy, op: str, terms: Sequence[int]) -> int:
    return reduce(lambda left, right: copy.append(node(op, left, right)), terms)
