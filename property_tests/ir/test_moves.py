"""The index maps of ops that move elements are the moves themselves, and the properties of the ops are those of their maps."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import find, given
from hypothesis import strategies as st

from mirage_eg.ir.op.index_map import Group, IndexMap
from mirage_eg.ir.op.moves import MOVES, MoveOp
from mirage_eg.ir.shapes import Shape
from property_tests.support.moves import APPLICATIONS, MEANINGS, Application

Element = tuple[int, tuple[int, ...]]
Case = tuple[MoveOp, Application]
CASES = st.sampled_from([*MOVES.values()]).flatmap(lambda op: st.tuples(st.just(op), APPLICATIONS[op.name]))


def element(pieces: IndexMap, index: Sequence[int], shape: Shape) -> Element | None:
    """The operand, and the index in it, by the definition of an index map; None is the fill."""
    for piece in pieces:
        places = []
        for at, span, extent in zip(index, piece.box, shape, strict=True):
            taken = range(extent) if span is None else range(span.start, span.start + span.step * span.extent, span.step)
            if at not in taken:
                break
            places.append(taken.index(at))
        else:
            found = {}
            for group in piece.groups:
                flat = group.start + sum(stride * places[dim] for dim, stride in group.terms)
                for dim, extent in reversed(group.digits):
                    flat, found[dim] = divmod(flat, extent)
                assert flat == 0, "an index beyond the operand"
            return piece.operand, tuple(found[dim] for dim in sorted(dim for dim in found if dim is not None))
    return None


def elements(op: MoveOp, application: Application) -> dict[tuple[int, ...], Element | None]:
    """The element at each index of the result."""
    operands, attributes = application
    shape, pieces = op.shape(operands, attributes), op.index(operands, attributes)
    return {index: element(pieces, index, shape) for index in np.ndindex(shape)}


def arrays_of(operands: Sequence[Shape]) -> list[np.ndarray]:
    """Arrays of different numbers."""
    starts = np.cumsum([0, *map(prod, operands)])
    return [np.arange(start, start + prod(shape)).reshape(shape) for start, shape in zip(starts, operands, strict=False)]


def stated(op: MoveOp) -> set[str]:
    """What a move states that it may do."""
    may = {"copies": not op.is_view, "reorders": not op.in_order, "repeats": op.repeats, "omits": op.omits}
    return {what for what, does in may.items() if does}


def shown(op: MoveOp, application: Application) -> set[str]:
    """What a move does at these attributes."""
    operands, attributes = application
    pieces, found = op.index(operands, attributes), [it for it in elements(op, application).values() if it is not None]
    places = [
        [np.ravel_multi_index(at, shape) for operand, at in found if operand == own] for own, shape in enumerate(operands)
    ]
    digits = {dim for piece in pieces for group in piece.groups for dim, _ in group.digits}
    strides = {stride for piece in pieces for group in piece.groups for _, stride in group.terms}
    does = {
        "copies": len(pieces) > 1 or any(pieces[0].box) or None in digits or min(strides, default=0) < 0,
        "reorders": any([*dict.fromkeys(own)] != sorted({*own}) for own in places),
        "repeats": any(len({*own}) < len(own) for own in places),
        "omits": any(len({*own}) < prod(shape) for own, shape in zip(places, operands, strict=True)),
    }
    return {what for what, it in does.items() if it}


def is_right(op: MoveOp, application: Application) -> bool:
    """Whether the map gives the elements that NumPy's function does."""
    operands, attributes = application
    arrays = arrays_of(operands)
    wanted = MEANINGS[op.name](*arrays, **attributes)
    try:
        found = elements(op, application)
    except AssertionError:
        return False
    value = attributes.get("value")
    return wanted.shape == op.shape(operands, attributes) and all(
        wanted[index] == (value if it is None else arrays[it[0]][it[1]]) for index, it in found.items()
    )


@given(CASES)
def test_an_index_map_says_where_each_element_is_from(case: Case) -> None:
    op, application = case
    assert is_right(op, application)


def _first(change: Callable[[Group], Group]) -> Callable[[IndexMap], IndexMap]:
    def changed(pieces: IndexMap) -> IndexMap:
        piece, *rest = pieces
        group, *groups = piece.groups
        return (piece._replace(groups=(change(group), *groups)), *rest)

    return changed


WRONG: dict[str, tuple[Callable[[IndexMap], IndexMap], Collection[str]]] = {  # and the ops of which it is another map
    "one further": (_first(lambda group: group._replace(start=group.start + 1)), MOVES),
    "the first alone": (_first(lambda group: group._replace(terms=())), MOVES),
    "twice as far": (_first(lambda group: group._replace(terms=tuple((dim, 2 * step) for dim, step in group.terms))), MOVES),
    "last operand first": (lambda pieces: pieces[::-1], ("patch",)),
    "no box": (
        lambda pieces: tuple(piece._replace(box=(None,) * len(piece.box)) for piece in pieces),
        ("concat", "patch", "pad"),
    ),
}


@pytest.mark.parametrize(("change", "name"), [(change, name) for change, (_, names) in WRONG.items() for name in names])
def test_a_wrong_index_map_is_found(change: str, name: str) -> None:
    op, (function, _) = MOVES[name], WRONG[change]
    wrong = replace(op, index=lambda operands, attributes: function(op.index(operands, attributes)))
    find(APPLICATIONS[name], lambda application: not is_right(wrong, application))


@given(CASES)
def test_moves_on_arrays_are_those_of_the_map(case: Case) -> None:
    """By the fast function and by the map's own, with and without leading dims."""
    op, (operands, attributes) = case
    arrays = arrays_of(operands)
    wanted = MEANINGS[op.name](*arrays, **attributes)
    for each in (op, replace(op, numpy=None)):
        np.testing.assert_array_equal(each.on_arrays(np, arrays, 0, attributes), wanted)
        stacked = [np.stack([x, x + 100]) for x in arrays]
        twice = np.stack([MEANINGS[op.name](*(x + 100 * i for x in arrays), **attributes) for i in range(2)])
        np.testing.assert_array_equal(each.on_arrays(np, stacked, 1, attributes), twice)


@given(CASES)
def test_moves_have_the_properties_that_they_state(case: Case) -> None:
    op, application = case
    assert not shown(op, application) - stated(op)


@pytest.mark.parametrize(("name", "what"), [(name, what) for name, op in MOVES.items() for what in sorted(stated(op))])
def test_moves_state_no_property_too_many(name: str, what: str) -> None:
    find(APPLICATIONS[name], lambda application: what in shown(MOVES[name], application))
