"""Models of PET (OSDI'21) at any size: the six dilated convolutions of CSRNet (Li et al., 2018), and ResNet-18."""

from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph


def _convolution(graph: KernelGraph, x: Tensor, filters: int, taps: int, strides: int = 1, dilations: int = 1) -> Tensor:
    weight = graph.new_input((filters, x.shape[1], taps, taps), x.dtype)
    bias = graph.new_input((filters, 1, 1), x.dtype)
    return graph.conv2d(x, weight, strides=strides, pads=dilations * (taps // 2), dilations=dilations) + bias


def csrnet_back_end(batch: int = 1, channels: int = 512, side: int = 14, dtype: str = "float16") -> Graph:
    """Six 3×3 convolutions with dilation 2 and relu: three as wide as the input, then a half, a quarter and an eighth of it."""
    graph = KernelGraph()
    x = graph.new_input((batch, channels, side, side), dtype)
    for width in (channels, channels, channels, channels // 2, channels // 4, channels // 8):
        x = graph.relu(_convolution(graph, x, width, 3, dilations=2))
    graph.mark_output(x)
    return graph.graph()


def resnet18(batch: int = 1, width: int = 64, side: int = 224, dtype: str = "float16") -> Graph:
    """Batch norms folded into weights and biases."""
    graph = KernelGraph()
    x = graph.relu(_convolution(graph, graph.new_input((batch, 3, side, side), dtype), width, 7, strides=2))
    x = graph.max_pool2d(x, 3, strides=2, pads=1)
    for stage, filters in enumerate((width, 2 * width, 4 * width, 8 * width)):
        for block in range(2):
            strides = 2 if stage and not block else 1
            y = graph.relu(_convolution(graph, x, filters, 3, strides))
            y = _convolution(graph, y, filters, 3)
            x = graph.relu(y + (_convolution(graph, x, filters, 1, strides) if strides > 1 else x))
    means = graph.reshape(graph.avg_pool2d(x, x.shape[2]), (batch, 8 * width))
    graph.mark_output(means @ graph.new_input((8 * width, 1000), dtype))
    return graph.graph()
