"""Mutants of a program with their boxes, wrong rectangles, corrected programs and predicted costs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.errors import MirageError, OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.partial_equivalence.boxes import PositionBox, agreement
from mirage_eg.partial_equivalence.correct import corrected
from mirage_eg.partial_equivalence.enumeration import Mutation, mutations
from mirage_eg.partial_equivalence.parts import LinearPart, linear_parts, replaced
from mirage_eg.partial_equivalence.rectangles import Rectangle, rectangles_of, size

OnPart = Callable[[int, int], None]  # parts done, of how many


@dataclass(frozen=True)
class Mutant:
    """A mutant of a linear part of `program`: on `boxes` it is equal or not, and `graph` is the program with it corrected."""

    program: Graph
    part: LinearPart
    mutation: Mutation
    changed: Graph  # the part's mutant, before the correction
    boxes: tuple[PositionBox, ...]
    rectangles: tuple[Rectangle, ...]
    graph: Graph

    @property
    def equal_fraction(self) -> float:
        """The part of the positions at which the mutant is right."""
        return sum(box.count for box in self.boxes if box.equal) / self.positions

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
        return described(self.part.program, self.mutation)

    def predicted_us(self, device: Device) -> float:
        """The predicted time of the corrected program."""
        return predict_us(self.graph, device)


def mutants(program: Graph | KernelGraph, *, least: float = 0.5, on_part: OnPart | None = None) -> list[Mutant]:
    """The mutants of a program's linear parts that are right on `least` of their positions, corrected; the most equal first.

    Of mutants that differ in the end at which digits leave a dim, and in nothing else, one is given.

    Raises:
        OptionError: `least` is not above 0 and at most 1.
        UnsupportedError: nothing to mutate, or a program too large to be tried.
    """
    if isinstance(program, KernelGraph):
        program = program.graph()
    if not 0 < least <= 1:
        raise OptionError(f"least: got {least}, wanted a part above 0 and at most 1")
    parts = linear_parts(program)
    found = []
    for number, part in enumerate(parts):
        if on_part:
            on_part(number, len(parts))
        kinds = set()
        for mutation, equal in mutations(part.program, least):
            if (kind := (equal, mutation.kind)) in kinds:
                continue
            mutant = mutant_of(program, part, mutation)
            if mutant is not None and mutant.equal_fraction >= least:
                kinds.add(kind)
                found.append(mutant)
    return sorted(found, key=lambda it: (-it.equal_fraction, it.mutation.moves))


def mutant_of(program: Graph, part: LinearPart, mutation: Mutation) -> Mutant | None:
    """A mutation at the program's own sizes; None if its moves do not divide them, or its result has another shape."""
    try:
        changed = mutation.write(part.program)
    except MirageError:
        return None
    if changed.output_types != part.program.output_types:
        return None
    boxes = agreement(part.program, changed)
    rectangles = rectangles_of([box for box in boxes if not box.equal])
    graph = replaced(program, part, corrected(part.program, changed, rectangles))
    return Mutant(program, part, mutation, changed, tuple(boxes), tuple(rectangles), graph)


def described(program: Graph, mutation: Mutation) -> str:
    """A mutation in words; dims of images and results are n, c, h, w, those of filters o, c, y, x."""
    filters = {item.operands[1] for item in program.nodes if item.op == "conv2d"}
    words = []
    for value, name, moves in zip(program.input_values, program.input_names, mutation.before, strict=True):
        words += [f"{name}: {move.show('ocyx' if value in filters else 'nchw')}" for move in moves]
    for number, change in mutation.changes:
        words.append(change.show(program.nodes[number]))
    words += [f"result: {move.show('nchw')}" for move in mutation.after]
    return "; ".join(words)


__all__ = ["Mutant", "described", "mutant_of", "mutants"]
