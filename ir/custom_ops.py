"""The elementwise ops of the package and of the user: the tables of all rooms are functions of these records."""

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from mirage_eg.ir.op.elementwise import PACKAGED
from mirage_eg.ir.op.record import ElementwiseOp

Row = TypeVar("Row")

REGISTRY: dict[str, ElementwiseOp] = {}
"""The ops of the user in this process, by name; `register_op` adds to it, and worker processes receive a copy."""


def record_of(op: str) -> ElementwiseOp | None:
    """The record of an elementwise op; None for other ops."""
    return PACKAGED.get(op) or REGISTRY.get(op)


class OpTable(Mapping[str, Row], Generic[Row]):
    """The package's rows, followed by a row of each op of the user, which `derive` computes from its record."""

    def __init__(self, packaged: Mapping[str, Row], derive: Callable[[ElementwiseOp], Row]) -> None:
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


def elementwise_table(derive: Callable[[ElementwiseOp], Row]) -> OpTable[Row]:
    """A row of each elementwise op."""
    return OpTable({op.name: derive(op) for op in PACKAGED.values()}, derive)


__all__ = ["REGISTRY", "OpTable", "elementwise_table", "record_of"]
