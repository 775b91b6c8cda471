"""What an importer returns: programs of the IR, the inputs that are weights or constants, and what stays outside."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from mirage_eg.ir.errors import ProgramError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.shapes import Shape
from mirage_eg.ir.sizes import value_of


class InputKind(StrEnum):
    """How an input of an imported program changes: with every call, with the weights, or never."""

    ACTIVATION = "activation"
    PARAMETER = "parameter"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Outside:
    """A node that stays with torch: its op, the reason, and its name in the imported graph.

    Of an ONNX model these are the operator and its first result. `module` is the path of the module of the model that has the
    node. `flops` are those of matrix products and convolutions, None for an op that torch cannot count; `nbytes` is the size of
    operands and results.
    """

    op: str
    reason: str
    node: str
    flops: int | None
    nbytes: int
    module: str = ""


@dataclass(frozen=True, slots=True)
class Constant:
    """An input computed on the host: from the named weights and buffers, or from nothing.

    `array` computes it from their current values, as a NumPy array.
    """

    name: str
    depends_on: tuple[str, ...]
    array: Callable[[], Any] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CausalMask:
    """A constant whose shape has named dims: true on and below the diagonal."""

    name: str
    shape: Shape

    def array(self, sizes: Mapping[str, int]) -> Any:
        """Its NumPy array at these sizes."""
        import numpy as np

        return np.tri(*(value_of(extent, sizes) for extent in self.shape), dtype=bool)


AddedInput = Constant | CausalMask
"""An input of a program that import adds: no node of the imported graph has its value."""


@dataclass(frozen=True, slots=True)
class ImportedSegment:
    """One program. `kinds` has an entry for each of its inputs, which are named as nodes of the imported graph.

    `nodes` are the nodes that the program computes; those in `views` become no op, or a reshape or broadcast. `outputs` are the
    nodes of its outputs. `nbytes` is the size of operands and results of the other nodes, one by one.
    """

    program: Graph
    kinds: tuple[InputKind, ...]
    nodes: tuple[str, ...]
    views: frozenset[str]
    nbytes: int
    outputs: tuple[str, ...]

    def inputs_of(self, kind: InputKind) -> tuple[str, ...]:
        """The names of the inputs of one kind."""
        return tuple(name for name, one in zip(self.program.input_names, self.kinds, strict=True) if one is kind)


@dataclass(frozen=True, slots=True)
class OnnxNames:
    """The names in an ONNX model of the inputs of an import, by their nodes, and of the results in order."""

    inputs: Mapping[str, str]
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Imported:
    """A model as programs (`segments`) and nodes that stay with torch (`outside`).

    `parameters` maps an input that is a weight to its name in the model; `results` are the nodes that the model returns.
    `onnx_names` has the names of inputs and results in an ONNX model. `parameter` returns the current tensor of a weight by
    the name of the input, `run` the results of the whole for the model's arguments.
    """

    segments: tuple[ImportedSegment, ...]
    constants: Mapping[str, Constant]
    parameters: Mapping[str, str]
    outside: tuple[Outside, ...]
    results: tuple[str, ...]
    parameter: Callable[[str], Any] = field(compare=False, repr=False)
    run: Callable[..., Any] = field(compare=False, repr=False)
    onnx_names: OnnxNames | None = None

    @property
    def programs(self) -> tuple[Graph, ...]:
        """The programs of the segments, in an order in which they can run."""
        return tuple(segment.program for segment in self.segments)

    def array(self, name: str) -> Any:
        """The current NumPy array of an input that is a weight or a constant. Raises ProgramError: no such input."""
        if name in self.constants:
            return self.constants[name].array()
        if name not in self.parameters:
            raise ProgramError(f"got the input {name!r}, wanted a parameter or a constant of the imported program")
        return self.parameter(name)
