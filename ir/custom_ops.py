"""Custom ops: elementwise ops from outside the package, one frozen row each in one registry that all tables of ops read."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Row = TypeVar("Row")

OPERANDS = ("x", "y", "z")
"""The names of the operands in expressions and rules, as many as an op may have."""


@dataclass(frozen=True, slots=True)
class OpSpec:
    """A custom op: its meaning, and its expressions in `{x}`, `{y}`, `{z}` and `{ATTRIBUTE}`.

    The meaning is `definition(builder, *operands, **attributes)` in other ops (`ir.definitions`), or `numbers(xp, *operands,
    **attributes)` on arrays with `exactly(*operands, **attributes)` on mpmath's numbers. An op with a definition may lack the
    expressions. `helpers` are the functions that the Triton expression calls: name and source. `keeps_zero`: zero in gives zero
    out; of an op with a definition it is computed.
    """

    name: str
    arity: int = 1
    attributes: tuple[str, ...] = ()
    definition: Callable[..., Any] | None = None
    numbers: Callable[..., Any] | None = None
    exactly: Callable[..., Any] | None = None
    triton: str | None = None
    torch: str | None = None
    helpers: tuple[tuple[str, str], ...] = ()
    keeps_zero: bool = False

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the operands."""
        return OPERANDS[: self.arity]


REGISTRY: dict[str, OpSpec] = {}
"""The custom ops of this process, by name; `register_op` adds to it, and worker processes receive a copy."""


class OpTable(Mapping[str, Row], Generic[Row]):
    """The package's rows, followed by a row of each custom op, which `derive` computes from its spec."""

    def __init__(self, packaged: Mapping[str, Row], derive: Callable[[OpSpec], Row]) -> None:
        self._packaged, self._derive = packaged, derive

    def __getitem__(self, name: str) -> Row:
        try:
            return self._packaged[name]
        except KeyError:
            return self._derive(REGISTRY[name])

    def __iter__(self) -> Iterator[str]:
        yield from self._packaged
        yield from REGISTRY

    def __len__(self) -> int:
        return len(self._packaged) + len(REGISTRY)


__all__ = ["OPERANDS", "REGISTRY", "OpSpec", "OpTable"]
