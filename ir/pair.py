"""A law as two programs: a program and a candidate, for tensors of any rank and of any sizes.

A pair names the numbers that it speaks about: `sizes="N M>=2 p>=0"`. A name with a capital stands for one number for each axis
of a rank, another one for one number. Its functions write a program at such numbers:

    LawPair("flip twice", sizes="N", inputs=lambda s: {"x": s.N},
         program=lambda g, s, x: g.flip(g.flip(x, s.axes), s.axes), candidate=lambda g, s, x: g.scale(x, 1))
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.errors import ProgramError
from mirage_eg.ir.graph import Graph

EQUAL, NOT_EQUAL = "equal", "not equal"
RANKS = (1, 2, 3, 4)
_NUMBER = re.compile(r"([A-Za-z]\w*)(?:(?:>=|≥)(\d+))?")


class AxisNumbers(tuple[int, ...]):
    """A number for each axis of a rank; sums, differences and multiples are taken axis by axis. `(*a, *b)` joins two."""

    def __add__(self, other: Any) -> "AxisNumbers":
        return AxisNumbers(x + y for x, y in self._with(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> "AxisNumbers":
        return AxisNumbers(x - y for x, y in self._with(other))

    def __mul__(self, number: Any) -> "AxisNumbers":
        return AxisNumbers(x * y for x, y in self._with(number))

    __rmul__ = __mul__

    def _with(self, other: Any) -> Iterator[tuple[int, int]]:
        return zip(self, other if isinstance(other, tuple) else [other] * len(self), strict=True)


@dataclass(frozen=True, slots=True)
class PairNumbers:
    """The numbers of a pair at one rank, by name as attributes; `axes` are 0, 1, … below the rank."""

    rank: int
    values: Mapping[str, "int | AxisNumbers"]

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of a tensor of this rank."""
        return tuple(range(self.rank))

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(f"got the number {name}, wanted one of {', '.join(self.values)}") from None


Write = Callable[..., Any]  # of a graph that is being written, the numbers, and the inputs by name


@dataclass(frozen=True, slots=True)
class LawPair:
    """A program and a candidate, which are `expected` to be equal or not; `twin` is a candidate that is wrong.

    `sizes` has the names of the numbers, with a least one where it is not 1; `inputs` the shapes of the inputs, of float32.
    Without a name with a capital the pair has one rank. A `note` says what differs from the law that is meant.

    Raises ProgramError: names that are none, or another word than `equal` or `not equal`.
    """

    name: str
    _: KW_ONLY
    sizes: str
    inputs: Callable[[PairNumbers], Mapping[str, Sequence[int]]]
    program: Write
    candidate: Write
    twin: Write | None = None
    ranks: tuple[int, ...] = RANKS
    expected: str = EQUAL
    note: str = ""

    def __post_init__(self) -> None:
        if self.expected not in (EQUAL, NOT_EQUAL):
            raise ProgramError(f"pair {self.name!r}: got expected={self.expected!r}, wanted {EQUAL!r} or {NOT_EQUAL!r}")
        for word in self.sizes.split():
            if not _NUMBER.fullmatch(word):
                raise ProgramError(f"pair {self.name!r}: got {word!r} in sizes, wanted names such as N, P>=0 or m>=2")

    @property
    def leasts(self) -> dict[str, int]:
        """The least value of each named number."""
        found = (_NUMBER.fullmatch(word) for word in self.sizes.split())
        return {it[1]: 1 if it[2] is None else int(it[2]) for it in found if it is not None}

    @property
    def of_any_rank(self) -> bool:
        """Whether it has a number for each axis."""
        return any(name[0].isupper() for name in self.leasts)

    def at_rank(self, rank: int) -> dict[str, int]:
        """The least value of each single number at a rank: P0, P1 for P at rank 2."""
        single: dict[str, int] = {}
        for name, least in self.leasts.items():
            single |= {f"{name}{axis}": least for axis in range(rank)} if name[0].isupper() else {name: least}
        return single

    def graph(self, write: Write, rank: int, single: Mapping[str, int]) -> Graph:
        """The program that one of its functions writes, at single numbers. Raises GraphError: an illegal program."""
        numbers = PairNumbers(
            rank,
            {
                name: AxisNumbers(single[f"{name}{axis}"] for axis in range(rank)) if name[0].isupper() else single[name]
                for name in self.leasts
            },
        )
        graph = KernelGraph()
        inputs = {name: graph.new_input(tuple(shape), "float32", name=name) for name, shape in self.inputs(numbers).items()}
        written = write(graph, numbers, **inputs)
        for result in written if isinstance(written, tuple | list) else (written,):
            graph.mark_output(result)
        return graph.graph()
