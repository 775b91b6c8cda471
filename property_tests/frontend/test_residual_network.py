"""A residual network of 18 layers, written with torch's modules as torchvision has it, is imported whole and is right."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn, f = torch.nn, torch.nn.functional

from mirage_eg.frontend.torch_export import import_program  # noqa: E402
from mirage_eg.transforms.simplify import simplify  # noqa: E402
from property_tests.support.torch_import import relative_error  # noqa: E402


def _convolution(inputs: int, outputs: int, window: int, stride: int = 1) -> Any:
    convolution = nn.Conv2d(inputs, outputs, window, stride, window // 2, bias=False)
    norm = nn.BatchNorm2d(outputs)
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        norm.weight.normal_()
        norm.bias.normal_()
    return nn.Sequential(convolution, norm)


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = _convolution(inputs, outputs, 3, stride), _convolution(outputs, outputs, 3)
        self.shortcut = nn.Identity() if inputs == outputs else _convolution(inputs, outputs, 1, stride)

    def forward(self, x: Any) -> Any:
        return f.relu(self.second(f.relu(self.first(x))) + self.shortcut(x))


class ResNet18(nn.Module):
    """Eight blocks between a 7×7 convolution and a linear layer."""

    def __init__(self, width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(_convolution(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        widths = [width << stage for stage in (0, 0, 1, 2, 3)]
        blocks = [
            Block(widths[stage] if first else widths[stage + 1], widths[stage + 1], 2 if first and stage else 1)
            for stage in range(4)
            for first in (True, False)
        ]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes))

    def forward(self, x: Any) -> Any:
        return self.head(self.blocks(self.stem(x)))


def test_a_residual_network_is_one_program_and_right() -> None:
    torch.manual_seed(0)
    model, x = ResNet18(16).eval(), torch.randn(1, 3, 64, 64)
    it = import_program(torch.export.export(model, (x,), strict=False))
    assert it.outside == ()
    [program] = it.programs
    ops = [item.op for item in program.nodes]
    assert (ops.count("conv2d"), ops.count("batch_norm"), ops.count("max_pool2d")) == (20, 20, 1)
    with torch.no_grad():
        assert relative_error([it.run(x)], [model.double()(x.double())]) <= 1e-5


def test_the_1x1_convolutions_of_an_imported_network_are_products() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1), nn.BatchNorm2d(4)).eval()
    it = import_program(torch.export.export(model, (torch.randn(2, 3, 4, 4),), strict=False))
    [program] = it.programs
    from mirage_eg.ir.expand import expand

    ops = [item.op for item in simplify(expand(program)).after.nodes]
    assert (ops.count("conv2d"), ops.count("matmul")) == (1, 1)
