"""Factors and shifts of channels behind large convolutions become those of their filters, where the library's kernel ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg import Tensor, new_kernel_graph
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.search.partition.segment_search import library_kernels
from mirage_eg.transforms import folded_norms
from mirage_eg.transforms.folded_norms import with_folded_norms
from mirage_eg.transforms.simplify import simplify
from mirage_eg.verify.reference import Reference


@pytest.fixture
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folded_norms, "LARGE", 0)


def behind_a_convolution(
    ops: str, ends: str = "relu", window: int = 1, images: int = 8, dtype: str = "float16", groups: int = 1
) -> Graph:
    """A convolution with sums, differences and products with a number of each channel behind it: s, d and m of `ops`."""
    p = new_kernel_graph()
    x = p.new_input((images, 16, 4, 4), dtype, "x")
    w = p.new_input((16, 16 // groups, window, window), dtype, "w")
    y = p.conv2d(x, w, pads=(window // 2,) * 4, groups=groups)
    for number, op in enumerate(ops):
        by = p.reshape(p.new_input((16,), dtype, f"c{number}"), (16, 1, 1))
        y = p.add(y, by) if op == "s" else p.sub(y, by) if op == "d" else p.mul(y, by)
    if "residual" in ends:
        y = p.add(y, p.new_input(y.shape, dtype, "r"))
    p.mark_output(p.relu(y) if "relu" in ends else p.exp(y))
    return p.graph()


@pytest.mark.usefixtures("of_any_size")
@given(
    ops=st.text("sdm", min_size=1, max_size=5), ends=st.sampled_from(["relu", "residual relu"]), window=st.sampled_from([1, 3])
)
def test_any_chain_is_a_factor_of_the_filter_and_a_bias(ops: str, ends: str, window: int) -> None:
    program = behind_a_convolution(ops, ends, window)
    after = with_folded_norms(program)
    assert (after is not program) is ("m" in ops)
    assert Reference(program).check(after).equal
    simplified = simplify(program).after
    assert Reference(program).check(simplified).equal
    products = [
        item for item, values in simplified.numbered() if item.op == "mul" and len(simplified.types[values[0]].shape) == 4
    ]
    assert "m" not in ops or all(
        simplified.types[it.operands[0]].shape[0] == 16 for it in products
    )  # of filters, not of images


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize(
    "program",
    [
        behind_a_convolution("m", "exp"),
        behind_a_convolution("m", "residual exp"),
        behind_a_convolution("m", dtype="float32"),
        behind_a_convolution("m", groups=2),
    ],
)
def test_others_stay(program: Graph) -> None:
    assert with_folded_norms(program) is program


def test_a_small_convolution_keeps_its_norm() -> None:
    program = behind_a_convolution("dm")
    assert with_folded_norms(program) is program


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize(("window", "channels", "extent"), [(1, 16, 4), (3, 64, 32)])
@pytest.mark.parametrize("residual", [False, True])
def test_what_is_behind_is_a_part_of_the_librarys_kernel(window: int, channels: int, extent: int, residual: bool) -> None:
    p, shape = new_kernel_graph(), (8, channels, extent, extent)
    x, w = p.new_input(shape, "float16", "x"), p.new_input((channels, channels, window, window), "float16", "w")
    y = p.add(p.conv2d(x, w, pads=(window // 2,) * 4), p.new_input((channels, 1, 1), "float16", "b"))
    y = p.add(y, p.new_input(y.shape, "float16", "r")) if residual else y
    p.mark_output(p.relu(p.reshape(y, (8, channels, extent**2))))
    found = library_kernels(DEVICES["H200"], simplify(expand(p.graph())).after)
    assert [launch.kind for launch in launches_of(found.graph).kernels] == [LaunchKind.CONVOLUTION]
    assert Reference(p.graph()).check(found.graph).equal


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize(("window", "stride", "channels"), [(3, 1, 64), (1, 2, 128)])
def test_a_shortcut_with_a_norm_is_no_kernel_besides_its_convolution(window: int, stride: int, channels: int) -> None:
    p = new_kernel_graph()
    x = p.new_input((8, channels, 32, 32), "float16", "x")

    def normalized(name: str, window: int) -> Tensor:
        filters = p.new_input((channels, channels, window, window), "float16", name)
        by, shift = (p.reshape(p.new_input((channels,), "float16", name + of), (channels, 1, 1)) for of in "ms")
        convolved = p.conv2d(x, filters, strides=(stride, stride), pads=(window // 2,) * 4)
        return p.add(p.mul(convolved, by), shift)

    p.mark_output(p.relu(p.add(normalized("w", 3), normalized("v", window))))
    found = library_kernels(DEVICES["H200"], simplify(expand(p.graph())).after).graph
    of_images = [it.kind for it in launches_of(found).kernels if found.types[it.results[0]].shape[0] == 8]
    assert len(of_images) == 2
    assert of_images[-1] == LaunchKind.CONVOLUTION
    assert Reference(p.graph()).check(found).equal
