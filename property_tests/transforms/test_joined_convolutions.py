"""Large convolutions of one image whose results are added become one convolution."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg import Tensor, new_kernel_graph
from mirage_eg.backends.cost.devices import DEVICES
from mirage_eg.backends.launches.launch_graph import LaunchKind, launches_of
from mirage_eg.ir.graph import Graph
from mirage_eg.search.partition.segment_search import library_kernels
from mirage_eg.transforms import folded_norms, joined_convolutions
from mirage_eg.transforms.joined_convolutions import with_joined_convolutions
from mirage_eg.transforms.simplify import simplify
from mirage_eg.verify.reference import Reference


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_convolutions, "LARGE", 0)
    monkeypatch.setattr(folded_norms, "LARGE", 0)


def branches(
    windows: Sequence[int], norms: str, stride: int = 1, groups: int = 1, dtype: str = "float16", dilation: int = 1
) -> Graph:
    """relu of a sum of convolutions of an image, and of the image for a window of 0, each with sums (s) and products (m)."""
    p, channels = new_kernel_graph(), 16
    x = p.new_input((8, channels, 8, 8), dtype, "x")

    def normalized(place: int, window: int) -> Tensor:
        y = x
        if window:
            w = p.new_input((channels, channels // groups, window, window), dtype, f"w{place}")
            pads = (window // 2 * dilation,) * 4
            y = p.conv2d(x, w, strides=(stride,) * 2, pads=pads, dilations=(dilation,) * 2, groups=groups)
        for number, op in enumerate(norms):
            by = p.reshape(p.new_input((channels,), dtype, f"c{place}_{number}"), (channels, 1, 1))
            y = p.add(y, by) if op == "s" else p.sub(y, by) if op == "d" else p.mul(y, by)
        return y

    first, *others = (normalized(place, window) for place, window in enumerate(windows))
    for other in others:
        first = p.add(first, other)
    p.mark_output(p.relu(first))
    return p.graph()


def convolutions(program: Graph) -> int:
    return sum(item.op == "conv2d" for item in program.nodes)


@given(
    windows=st.lists(st.sampled_from([0, 1, 3, 5]), min_size=2, max_size=4).filter(any),
    norms=st.text("sdm", max_size=3).map(lambda text: f"{text}m"),
    groups=st.sampled_from([1, 16]),
)
def test_branches_of_one_image_are_one_convolution(windows: list[int], norms: str, groups: int) -> None:
    program = branches(windows, norms, groups=groups)
    after = with_joined_convolutions(program)
    assert convolutions(after) == 1
    assert not any(item.op == "mul" and after.types[values[0]].shape[0] == 8 for item, values in after.numbered())
    assert Reference(program).check(after).equal


@pytest.mark.parametrize(
    "program", [branches([3, 1], "ms", stride=2), branches([3, 3], "ms", groups=4), branches([3, 3], "ms", dilation=2)]
)
def test_convolutions_of_equal_strides_groups_and_dilations_are_joined(program: Graph) -> None:
    after = with_joined_convolutions(program)
    assert convolutions(after) == 1
    assert Reference(program).check(after).equal


@pytest.mark.parametrize(
    "program",
    [
        branches([3, 0], ""),  # a residual, which the library's kernel adds
        branches([3, 0], "ms", dtype="float32"),  # the image would be rounded to TF32
        branches([3, 1], "ms", dilation=2),
        branches([3, 0], "ms", groups=4),
    ],
)
def test_other_sums_stay(program: Graph) -> None:
    assert with_joined_convolutions(program) is program


def test_small_convolutions_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_convolutions, "LARGE", 1 << 32)
    program = branches([3, 1], "ms")
    assert with_joined_convolutions(program) is program


def test_a_block_trained_in_branches_is_one_kernel_besides_its_filters() -> None:
    program = branches([3, 1, 0], "dms")
    found = library_kernels(DEVICES["H200"], simplify(program).after).graph
    of_images = [it.kind for it in launches_of(found).kernels if found.types[it.results[0]].shape[0] == 8]
    assert of_images == [LaunchKind.CONVOLUTION]
    assert Reference(program).check(found).equal
