"""A model being written with the builder: its weights are inputs with names, and the record that comes of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.dtypes import DType
from mirage_eg.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class WrittenModel:
    """A program, and the names of its inputs that are weights: the same in each run."""

    program: Graph
    weights: tuple[str, ...]


@dataclass(slots=True)
class ModelWriter:
    """A kernel graph whose weights are named in order, in one element type."""

    dtype: object = DType.float16
    graph: KernelGraph = field(default_factory=KernelGraph)
    weights: list[str] = field(default_factory=list)

    def input(self, name: str, shape: Sequence[int]) -> Tensor:
        """An input that differs from run to run."""
        return self.graph.new_input(shape, self.dtype, name=name)

    def weight(self, name: str, shape: Sequence[int]) -> Tensor:
        """A weight."""
        self.weights.append(name)
        return self.graph.new_input(shape, self.dtype, name=name, weight=True)

    def linear(self, x: Tensor, name: str, width: int, bias: bool = True) -> Tensor:
        """x W + b for W [K, width]."""
        z = x @ self.weight(f"{name}.weight", (x.shape[-1], width))
        return z + self.weight(f"{name}.bias", (width,)) if bias else z

    def layer_norm(self, x: Tensor, name: str) -> Tensor:
        """Layer norm over the last dim."""
        width = x.shape[-1]
        affine = self.weight(f"{name}.weight", (width,)), self.weight(f"{name}.bias", (width,))
        return self.graph.layer_norm(x, width, *affine, eps=1e-12)

    def convolution(
        self, x: Tensor, name: str, channels: int, window: int, strides: int = 1, pads: int = 0, bias: bool = False
    ) -> Tensor:
        """A convolution with square windows."""
        weight = self.weight(f"{name}.weight", (channels, x.shape[1], window, window))
        z = self.graph.conv2d(x, weight, strides, pads)
        return z + self.graph.reshape(self.weight(f"{name}.bias", (channels,)), (channels, 1, 1)) if bias else z

    def batch_norm(self, x: Tensor, name: str) -> Tensor:
        """Batch norm at inference."""
        parts = ("running_mean", "running_var", "weight", "bias")
        mean, variance, weight, bias = (self.weight(f"{name}.{part}", (x.shape[1],)) for part in parts)
        return self.graph.batch_norm(x, mean, variance, weight, bias, eps=1e-5)

    def model(self, *outputs: Tensor) -> WrittenModel:
        """The model with these outputs."""
        for output in outputs:
            self.graph.mark_output(output)
        return WrittenModel(self.graph.graph(), tuple(self.weights))
