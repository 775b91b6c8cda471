"""Mutants of a program with their boxes, wrong rectangles, corrected programs and predicted costs."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.errors import MirageError, OptionError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.windows import CONV2D
from mirage_eg.partial_equivalence.boxes import PositionBox, agreement
from mirage_eg.partial_equivalence.correct import corrected
from mirage_eg.partial_equivalence.enumeration import Mutation, mutations
from mirage_eg.partial_equivalence.padding import on_padded_images, written
from mirage_eg.partial_equivalence.parts import LinearPart, linear_parts, replaced
from mirage_eg.partial_equivalence.rectangles import Rectangle, rectangles_of, size
from mirage_eg.partial_equivalence.size_families import at_tried_sizes, with_fixed_sizes

_LOG = logging.getLogger(__name__)

OnPart = Callable[[int, int], None]  # parts done, of how many


@dataclass(frozen=True)
class Mutant:
    """A mutant of a linear part of `program`: on each of `boxes` it is equal or not, at positions in no box equal.

    `changed` is the part's mutant, `corrected` is it with patches, `graph` the whole program with that in place of the part.
    """

    program: Graph
    part: LinearPart
    mutation: Mutation
    changed: Graph
    boxes: tuple[PositionBox, ...]
    rectangles: tuple[Rectangle, ...]
    corrected: Graph
    padded: bool = False  # the images have zeros after their last rows and columns

    @cached_property
    def graph(self) -> Graph:
        """The program with the corrected mutant, everywhere where the part is."""
        return replaced(self.program, self.part, self.corrected)

    @property
    def equal_fraction(self) -> float:
        """The part of the positions at which the mutant is right."""
        return (self.positions - self.wrong) / self.positions

    @property
    def positions(self) -> int:
        """The number of positions of the part's output."""
        return prod(self.part.program.output_types[0].shape)

    @property
    def wrong(self) -> int:
        """The number of positions at which it is wrong."""
        return sum(box.count for box in self.boxes if not box.equal)

    @property
    def recomputed(self) -> int:
        """The number of positions that the correction computes."""
        return sum(map(size, self.rectangles))

    @cached_property
    def name(self) -> str:
        """The moves and changes in words: n→h (2, inner to outer), dilations …"""
        return f"{'images padded; ' if self.padded else ''}{described(self.part.program, self.mutation)}"

    def predicted_us(self, device: Device) -> float:
        """The predicted time of the program with the corrected mutant."""
        return predict_us(self.graph, device)


def mutants(program: Graph | KernelGraph, *, least: float = 0.5, on_part: OnPart | None = None) -> list[Mutant]:
    """The mutants of a program's linear parts that are right on `least` of their positions, corrected; the most equal first.

    Of mutants that differ in the end at which digits leave a dim, and in nothing else, one is given. Named dims have sizes up
    to 64 with small divisors; `all_sizes.for_named_dim` says where each mutant is wrong at all others.

    Raises:
        OptionError: `least` is not above 0 and at most 1.
        UnsupportedError: nothing to mutate, or a program too large to be tried.
    """
    if isinstance(program, KernelGraph):
        program = program.graph()
    if not 0 < least <= 1:
        raise OptionError(f"least: got {least}, wanted a part above 0 and at most 1")
    if dims_of(program):
        program = with_fixed_sizes(at_tried_sizes(program))
    parts, found, errors = linear_parts(program), list[Mutant](), list[tuple[LinearPart, UnsupportedError]]()
    for number, part in enumerate(parts):
        if on_part:
            on_part(number, len(parts))
        try:
            found += _of_part(program, part, least)
        except UnsupportedError as error:
            errors.append((part, error))
    if errors and not found:
        raise errors[0][1]
    for part, reason in errors:  # of several ops, each contraction is a part, too
        _LOG.log(logging.INFO if part.ops > 1 else logging.WARNING, "a part of the program is left as it is: %s", reason)
    return sorted(found, key=lambda it: (-it.equal_fraction, it.mutation.moves))


def _of_part(program: Graph, part: LinearPart, least: float) -> Iterator[Mutant]:
    """The mutants of a part; where no factor divides the sides of its images, those of padded images that move a side, too."""
    kinds = set()
    wide = on_padded_images(part.program)
    for padded in (None, wide) if wide is not None else (None,):
        for mutation, equal in mutations(padded or part.program, least):
            kind = equal, mutation.kind
            digits = (move for moves in mutation.before for move in moves if move.factor > 1)
            if kind in kinds or (padded and not any(move.source > 1 for move in digits)):
                continue
            mutant = mutant_of(program, part, mutation, padded is not None)
            if mutant is not None and mutant.equal_fraction >= least:
                kinds.add(kind)
                yield mutant


def mutant_of(program: Graph, part: LinearPart, mutation: Mutation, padded: bool = False) -> Mutant | None:
    """A mutation of a part, or of it on padded images, at the program's own sizes; None if its moves do not divide them."""
    try:
        changed = written(part.program, mutation, padded)
    except MirageError:
        return None
    if changed.output_types != part.program.output_types:
        return None
    boxes = agreement(part.program, changed)
    rectangles = rectangles_of([box for box in boxes if not box.equal])
    with_corrections = corrected(part.program, changed, rectangles)
    return Mutant(program, part, mutation, changed, tuple(boxes), tuple(rectangles), with_corrections, padded)


def described(program: Graph, mutation: Mutation) -> str:
    """A mutation in words; dims of images and results are n, c, h, w, those of filters o, c, y, x."""
    filters = {item.operands[1] for item in program.nodes if item.op == CONV2D}
    words = []
    for value, name, moves in zip(program.input_values, program.input_names, mutation.before, strict=True):
        words += [f"{name}: {move.show('ocyx' if value in filters else 'nchw')}" for move in moves]
    for number, change in mutation.changes:
        words.append(change.show(program.nodes[number]))
    words += [f"result: {move.show('nchw')}" for move in mutation.after]
    return "; ".join(words)
