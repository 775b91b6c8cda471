"""A user's cost of kernels: it takes the place of the predicted time, and never is below it.

The bounds that end a search early are of predicted times. So a cost that only adds to these keeps them bounds: the search
finds the cheapest µGraph by the user's cost, as it does by its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from runpy import run_path
from typing import TYPE_CHECKING, Any

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.triton.tiles import flatten
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import is_op
from mirage_eg.ir.shapes import Shape

if TYPE_CHECKING:
    from mirage_eg.backends.launches.launch_graph import Launch


@dataclass(frozen=True, slots=True)
class CostedOp:
    """An op of a kernel: its attributes, and the shapes of its operands and its result; in a block graph those of tiles."""

    op: str
    attributes: Mapping[str, Any]
    operands: tuple[Shape, ...]
    result: Shape


@dataclass(frozen=True, slots=True)
class CostedKernel:
    """A kernel as a user's cost sees it: its ops in order, the predicted time, and the work.

    `grid` and `loop` are those of a block graph; a library kernel has no grid.
    """

    ops: tuple[CostedOp, ...]
    grid: tuple[int, ...]
    loop: int
    us: float
    limited_by: str
    dram_bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class UserCost:
    """A function of a kernel that gives its microseconds, at least the predicted ones; `name` says where it is from."""

    name: str
    function: Callable[[CostedKernel], float]

    def us(self, graph: Graph, launch: "Launch", us: float, limited_by: str, dram_bytes: int, flops: int) -> float:
        """The cost of one kernel of a kernel graph. Raises OptionError: it is no number, or below the predicted time."""
        blocks = [graph.nodes[position]["graph"] for position in launch.nodes if graph.nodes[position].op == "block"]
        inside = [flatten(block) for block in blocks]
        ops = [it for block in inside for it in _ops(block, range(len(block.nodes)))] or [*_ops(graph, launch.nodes)]
        grid, loop = (inside[0].grid, inside[0].loop) if inside else ((), 1)
        kernel = CostedKernel(tuple(ops), grid, loop, us, limited_by, dram_bytes, flops)
        found = self.function(kernel)
        if isinstance(found, bool) or not isinstance(found, int | float) or not found >= us:
            words = " ".join(it.op for it in ops)
            raise OptionError(
                f"cost: {self.name}: got {found!r} for the kernel {words}, wanted at least its predicted {us:.4g} µs; try: a "
                "factor of at least 1, or something added"
            )
        return float(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedDevice(Device):
    """A GPU whose kernels have a user's cost."""

    cost: UserCost


def priced(device: Device, cost: UserCost | None) -> Device:
    """The device with a user's cost, if there is one."""
    return device if cost is None else PricedDevice(**asdict(device), cost=cost)


def user_cost(given: Callable[[CostedKernel], float] | str | UserCost) -> UserCost:
    """The cost that a function, or `FILE.py:FUNCTION`, gives. Raises OptionError: no such file or function."""
    if isinstance(given, UserCost):
        return given
    if not isinstance(given, str):
        if not callable(given):
            raise OptionError(f"cost: got {given!r}, wanted a function of a kernel, or FILE.py:FUNCTION")
        return UserCost(getattr(given, "__qualname__", repr(given)), given)
    path, _, name = given.rpartition(":")
    if not path or not Path(path).is_file():
        raise OptionError(f"cost: got {given!r}, wanted FILE.py:FUNCTION with a file that exists")
    function = run_path(path).get(name)
    if not callable(function):
        raise OptionError(f"cost: {path}: got no function {name!r}; wanted one of a kernel that gives its microseconds")
    return UserCost(f"{given} {sha256(Path(path).read_bytes()).hexdigest()[:16]}", function)


def _ops(graph: Graph, positions: Sequence[int]) -> Iterator[CostedOp]:
    numbered = graph.numbered()
    for position in positions:
        item, values = numbered[position]
        if is_op(item) and values:
            operands = tuple(graph.types[operand].shape for operand in item.operands)
            yield CostedOp(item.op, item.mapping, operands, graph.types[values[0]].shape)
