"""Images between convolutions are channels last in emitted programs, and filters are converted once."""

import re

import pytest

from mirage_eg import new_kernel_graph
from mirage_eg.backends.launches.image_layouts import image_layouts, ordered_ends
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.windows import channels_last
from property_tests.backends.triton.test_views import doubled
from property_tests.support.hand_written import ROUNDING, error_of

pytest.importorskip("torch")
LAST = "memory_format=torch.channels_last"


def convolution(p: KernelGraph, x: Tensor, name: str, channels: int, groups: int = 1, weight: bool = True) -> Tensor:
    shape = (channels, x.shape[1] // groups, 3, 3)
    return p.conv2d(x, p.new_input(shape, x.dtype, name, weight=weight), pads=(1, 1, 1, 1), groups=groups)


def two_convolutions(images: int = 1, dtype: str = "float16", groups: int = 1, weight: bool = True) -> Graph:
    """Two convolutions with a kernel between, on a plane that is one dim, and a pooling before another kernel."""
    p = new_kernel_graph()
    x = p.new_input((images, 8, 6, 5), dtype, "x")
    first = convolution(p, x, "a", 8, groups, weight)
    flat = doubled(p, p.reshape(first, (images, 8, 30)), 1)
    second = convolution(p, p.reshape(flat, (images, 8, 6, 5)), "b", 8, groups, weight)
    pooled = p.max_pool2d(second, window=(2, 2), strides=(2, 2))
    p.mark_output(doubled(p, p.reshape(pooled, (images, 8, 6)), 1))
    return p.graph()


def is_right(run: RunProgram, graph: Graph, source: str, dtype: str) -> bool:
    return error_of(run, graph, source, scale=0.3) < 2 * ROUNDING[dtype]


@pytest.mark.parametrize(("images", "dtype"), [(1, "float16"), (8, "bfloat16"), (1, "float32")])
def test_images_stay_channels_last_between_kernels(run_program: RunProgram, images: int, dtype: str) -> None:
    graph = two_convolutions(images, dtype)
    source = emit(graph)
    with loaded(source) as module:
        first, between, *_, output = (strides for _, _, strides in module.BUFFERS.values())
    assert between[1:] == (1, 8) and output[1:] == (6, 1) and first[1] == 1
    calls = re.findall(r"^    \w+ = .*", source.partition("def launch")[2], re.MULTILINE)
    assert not any("copy_" in call or ("conv2d(" in call and ".contiguous()" in call) for call in calls)
    assert "max_pool2d(" not in source.partition("def launch")[2]  # a generated kernel pools in both orders
    assert is_right(run_program, graph, source, dtype)


@pytest.mark.parametrize(("pads", "is_last"), [((1, 1, 1, 1), True), ((0, 1, 1, 1), False)])
def test_transposed_convolutions_are_channels_last(run_program: RunProgram, pads: tuple[int, ...], is_last: bool) -> None:
    """Where the result is all that the library gives."""
    p = new_kernel_graph()
    x, w = p.new_input((2, 8, 5, 6), "float16", "x"), p.new_input((8, 16, 3, 3), "float16", "w", weight=True)
    p.mark_output(doubled(p, p.conv_transpose2d(x, w, 2, pads, 1), 1))
    source = emit(p.graph())
    assert ("conv_transpose2d(x_channels_last, w_channels_last, " in source) is is_last
    assert is_right(run_program, p.graph(), source, "float16")


@pytest.mark.parametrize(("transposed", "end"), [(False, "kernel"), (True, "kernel"), (True, "result"), (False, "pooling")])
def test_volumes_are_channels_last(run_program: RunProgram, transposed: bool, end: str) -> None:
    """Volumes that a pooling reads, and results of the program, are copied row-major by a kernel."""
    p = new_kernel_graph()
    x, w = p.new_input((2, 8, 4, 5, 6), "float32", "x"), p.new_input((8, 8, 3, 3, 3), "float32", "w", weight=True)
    name = "conv_transpose3d" if transposed else "conv3d"
    y = getattr(p, name)(x, w, pads=(1,) * 6)
    ends = {
        "kernel": lambda: doubled(p, y, 1),
        "result": lambda: y,
        "pooling": lambda: p.max_pool3d(y, window=(2, 2, 2), strides=(2, 2, 2)),
    }
    p.mark_output(ends[end]())
    source = emit(p.graph())
    assert f"{name}(x_channels_last, w_channels_last, " in source and f"w.contiguous({LAST}_3d)" in source
    assert ("row_major_kernel[" in source) is (end != "kernel") and "max_pool3d(" not in source.partition("def launch")[2]
    assert is_right(run_program, p.graph(), source, "float32")


@pytest.mark.parametrize("groups", [1, 8])
def test_volumes_that_a_convolution_of_groups_reads_are_row_major(groups: int) -> None:
    """A generated kernel reads them so."""
    p = new_kernel_graph()
    x, w = p.new_input((2, 8, 4, 5, 6), "float32", "x"), p.new_input((8, 8, 3, 3, 3), "float32", "w", weight=True)
    y = p.conv3d(x, w, pads=(1,) * 6)
    p.mark_output(p.conv3d(y, p.new_input((8, 8 // groups, 3, 3, 3), "float32", "each", weight=True), groups=groups))
    assert ([*image_layouts(p.graph(), frozenset())] == [y.position]) is (groups == 1)


def test_filters_are_converted_once() -> None:
    source = emit(two_convolutions())
    launch = source.partition("def launch")[2]
    assert (
        source.count(f"a.contiguous({LAST})") == 1
        and "a_channels_last, stride" in launch
        and f"a.contiguous({LAST})" not in launch
    )


@pytest.mark.parametrize("images", [1, 2])
def test_images_and_filters_of_the_caller_are_converted_by_one_kernel(run_program: RunProgram, images: int) -> None:
    graph = two_convolutions(images, weight=False)
    source = emit(graph)
    launch = source.partition("def launch")[2]
    assert launch.count("channels_last_kernel[") == 1 and "conv2d(x_channels_last, a_channels_last, " in launch
    assert "conv2d(t" in launch and ", b_channels_last, " in launch and "def prepare" not in source
    assert is_right(run_program, graph, source, "float16")


def test_a_result_of_a_convolution_of_inputs_is_row_major(run_program: RunProgram) -> None:
    p = new_kernel_graph()
    x = p.new_input((2, 70, 9, 5), "float16", "x", strides=(9 * 5 * 70, 1, 5 * 70, 70))
    p.mark_output(convolution(p, x, "a", 4, weight=False))
    graph = p.graph()
    source = emit(graph)
    assert "x_channels_last" not in source and "conv2d(x, a_channels_last" in source  # it is so already
    assert re.search(rf"out0_channels_last = \(.*conv2d.*\)\.contiguous\({LAST}\)", source)
    assert "out0_row_major_kernel[" in source
    assert is_right(run_program, graph, source, "float16")


@pytest.mark.parametrize(("dtype", "groups"), [("float64", 1), ("float16", 4)])
def test_other_convolutions_keep_their_order(run_program: RunProgram, dtype: str, groups: int) -> None:
    graph = two_convolutions(2, dtype, groups)
    source = emit(graph)
    assert LAST not in source
    assert is_right(run_program, graph, source, dtype)


@pytest.mark.parametrize(("extent", "ends"), [(7, {0}), (14, {0}), (8, set()), (28, set())])
def test_1x1_convolutions_on_unaligned_planes_have_ends_channels_last(extent: int, ends: set[int]) -> None:
    p = new_kernel_graph()
    x, w = p.new_input((8, 16, extent, extent), "bfloat16", "x"), p.new_input((32, 16, 1, 1), "bfloat16", "w", weight=True)
    p.mark_output(p.relu(p.conv2d(x, w)))
    assert ordered_ends(p.graph()) == (ends, ends)


@pytest.mark.parametrize(
    ("images", "dtype", "window", "holds"), [(8, "float16", 3, True), (1, "float32", 3, True), (8, "float16", 9, False)]
)
def test_images_of_convolutions_of_each_channel_alone_are_channels_last(
    run_program: RunProgram, images: int, dtype: str, window: int, holds: bool
) -> None:
    p = new_kernel_graph()
    x, w = (
        doubled(p, p.new_input((images, 4, 6, 5), dtype, "x"), 1),
        p.new_input((4, 1, window, window), dtype, "w", weight=True),
    )
    p.mark_output(doubled(p, p.conv2d(x, w, pads=(window // 2,) * 4, groups=4), 1))
    graph = p.graph()
    source = emit(graph)
    with loaded(source) as module:
        before, *_ = (strides for _, _, strides in module.BUFFERS.values())
    assert (before == channels_last((images, 4, 6, 5))) is holds
    assert is_right(run_program, graph, source, dtype)


def test_images_that_the_caller_receives_are_row_major(run_program: RunProgram) -> None:
    p = new_kernel_graph()
    first = convolution(p, p.new_input((1, 4, 6, 5), "float16", "x"), "a", 4)
    kernel = doubled(p, first, 1)
    p.mark_output(kernel)
    p.mark_output(convolution(p, kernel, "b", 4))
    graph = p.graph()
    source = emit(graph)
    with loaded(source) as module:
        assert [strides for _, _, strides in module.BUFFERS.values()][:2] == [(120, 1, 20, 4), (120, 30, 5, 1)]
    assert "out1_row_major_kernel[" in source
    assert is_right(run_program, graph, source, "float16")


@pytest.mark.parametrize("turned", [False, True])
def test_a_kernel_and_a_convolution_read_one_image(run_program: RunProgram, turned: bool) -> None:
    p = new_kernel_graph()
    flat = doubled(p, p.new_input((2, 8, 30), "float16", "x"), 1)
    image = p.reshape(flat, (2, 8, 6, 5))
    second, shape = convolution(p, image, "a", 8), (2, 30, 8) if turned else (2, 8, 30)
    block_reads = doubled(p, p.reshape(p.transpose(image, (0, 2, 3, 1)) if turned else image, shape), 1)
    p.mark_output(p.add(p.reshape(second, (2, 8, 30)), p.transpose(block_reads, (0, 2, 1)) if turned else block_reads))
    graph = p.graph()
    source = emit(graph)
    assert "copy_" not in source and len(re.findall(r"^    \w*_kernel\w*\[", source, re.MULTILINE)) == 2
    assert source.partition("def launch")[2].count(".mT") == turned  # of the result alone
    assert is_right(run_program, graph, source, "float16")


def test_what_a_kernel_writes_for_a_pooling_of_few_images_is_row_major(run_program: RunProgram) -> None:
    p = new_kernel_graph()
    first = convolution(p, p.new_input((1, 4, 6, 5), "float16", "x"), "a", 8)
    pooled = p.max_pool2d(doubled(p, first, 1), window=(2, 2), strides=(2, 2))
    p.mark_output(convolution(p, pooled, "b", 8))
    graph = p.graph()
    source = emit(graph)
    with loaded(source) as module:
        assert [strides for _, _, strides in module.BUFFERS.values()][:2] == [(120, 1, 20, 4), (240, 30, 5, 1)]
    assert "max_pool2d" not in source.partition("def launch")[2]  # a generated kernel gives it channels last
    assert is_right(run_program, graph, source, "float16")


def shuffling(strides: tuple[int, ...] | None) -> Graph:
    """A block of a ShuffleNet: channels of two halves side by side, of which a convolution reads one."""
    p = new_kernel_graph()
    x = p.new_input((8, 8, 6, 5), "float16", "x", strides)
    shuffled = p.reshape(p.transpose(p.reshape(x, (8, 2, 4, 6, 5)), (0, 2, 1, 3, 4)), (8, 8, 6, 5))
    p.mark_output(convolution(p, p.slice(shuffled, 1, 4, 8), "w", 4))
    p.mark_output(p.relu(convolution(p, shuffled, "v", 8)))
    return p.graph()


@pytest.mark.parametrize("is_last", [True, False])
def test_shuffled_channels_are_laid_out_by_one_copy(run_program: RunProgram, is_last: bool) -> None:
    graph = shuffling(channels_last((8, 8, 6, 5)) if is_last else None)
    source = emit(graph)
    launch = source.partition("def launch")[2].partition("def ")[0]
    assert not re.search(r"permute|reshape|as_strided", launch)
    assert launch.count("(t3, x, **") == 1
    assert is_right(run_program, graph, source, "float16")


def test_images_that_are_read_through_a_shuffle_are_channels_last() -> None:
    assert ordered_ends(shuffling(None)) == (frozenset({0}), frozenset({0, 1}))


@pytest.mark.parametrize(("dim", "is_last"), [(3, True), (1, False)])
def test_images_that_are_pooled_without_overlaps_are_channels_last(dim: int, is_last: bool) -> None:
    p = new_kernel_graph()
    x = p.new_input((8, 8, 6, 5), "float16", "x")
    pairs = p.mean(p.reshape(x, (8, 8, 3, 2, 5) if is_last else (8, 2, 4, 6, 5)), dim)
    p.mark_output(convolution(p, p.reshape(pairs, (8, 8, 3, 5) if is_last else (8, 4, 6, 5)), "w", 8))
    assert ordered_ends(p.graph()) == (frozenset({0} if is_last else ()), frozenset({0}))


def upsampled(p: KernelGraph, x: Tensor) -> Tensor:
    """Twice as many rows and columns, by indices into planes."""
    images, channels, height, width = x.shape
    places = p.new_input((2 * height, 2 * width), "int64", "places")
    return p.gather(p.reshape(x, (images, channels, height * width)), places, 2)


def test_images_that_indices_enlarge_are_channels_last_behind_a_convolution() -> None:
    p = new_kernel_graph()
    x, skipped = p.new_input((8, 8, 6, 5), "float16", "x"), p.new_input((8, 4, 12, 10), "float16", "z")
    p.mark_output(p.concat([skipped, upsampled(p, p.relu(convolution(p, x, "w", 8)))], 1))
    places = [item["name"] for item in p.graph().inputs]
    assert ordered_ends(p.graph()) == (frozenset({places.index("x"), places.index("z")}), frozenset({0}))


@pytest.mark.parametrize("turns", [False, True])
def test_what_keeps_the_order_of_images_may_be_channels_last(turns: bool) -> None:
    p = new_kernel_graph()
    x, skipped = p.new_input((8, 8, 6, 5), "float16", "x"), p.new_input((8, 4, 12, 10), "float16", "z")
    y = p.concat([skipped, upsampled(p, p.relu(x))], 1)
    p.mark_output(p.transpose(y, (0, 2, 1, 3)) if turns else y)
    assert ordered_ends(p.graph()) == (frozenset(), frozenset())
    assert ordered_ends(p.graph(), may=True) == ((frozenset(), frozenset()) if turns else (frozenset({0, 1}), frozenset({0})))


def test_images_channels_last_are_joined_by_a_generated_kernel(run_program: RunProgram) -> None:
    p = new_kernel_graph()
    images = [p.new_input((8, channels, 6, 5), "float16", name) for name, channels in (("x", 8), ("y", 4))]
    joined = p.concat([convolution(p, images[0], "a", 8), p.relu(convolution(p, images[1], "b", 4))], 1)
    p.mark_output(convolution(p, joined, "c", 4))
    source = emit(p.graph())
    assert "torch.cat" not in source and "* 12 + i % 8, block" in source
    assert is_right(run_program, p.graph(), source, "float16")
