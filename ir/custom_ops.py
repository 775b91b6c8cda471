"""Custom ops: elementwise ops from outside the package, one frozen row each in one registry that all tables of ops read."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class OpSpec:
    """A custom op of one operand: its functions on arrays and on mpmath's numbers, its expressions in `{x}`.

    `keeps_zero`: zero in gives zero out.
    """

    name: str
    numbers: Callable[..., Any]
    exactly: Callable[..., Any]
    triton: str
    torch: str
    keeps_zero: bool


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


__all__ = ["REGISTRY", "OpSpec", "OpTable"]
