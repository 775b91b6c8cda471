"""Layouts of tiles: what it takes to move elements between threads, against Triton's own passes, for layouts that are drawn."""

from collections.abc import Callable
from math import prod
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from mirage_eg.backends.allocate import knows_triton
from mirage_eg.ir.shapes import Shape
from mirage_eg.linear_layouts import Layout, blocked, conversion_bytes, mma, permuted, places, reduction_bytes, sliced

known = pytest.mark.skipif(not knows_triton(), reason="the model knows what Triton 3.9 allocates")
WARPS = 4
Named = tuple[Layout, str]  # a layout, and as Triton writes it

_MODULE = """module attributes {{"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = {warps} : i32,
    ttg.target = "cuda:{arch}", "ttg.threads-per-warp" = 32 : i32}} {{
  tt.func public @kernel() {{
    %x = arith.constant dense<0.000000e+00> : tensor<{tile}, {source}>
    {work}
    tt.return
  }}
}}
"""
_CONVERSION = "%y = ttg.convert_layout %x : tensor<{tile}, {source}> -> tensor<{tile}, {wanted}>"
_REDUCTION = """%y = "tt.reduce"(%x) <{{axis = {dim} : i32}}> ({{
    ^bb0(%a: f32, %b: f32):
      %c = arith.addf %a, %b : f32
      tt.reduce.return %c : f32
    }}) : (tensor<{tile}, {source}>) -> tensor<{rest}, #ttg.slice<{{dim = {dim}, parent = {source}}}>>"""


def _allocated(text: str, arch: int, folder: Path) -> int:
    from triton._C.libtriton import ir, nvidia, passes

    path = folder / "module.ttgir"
    path.write_text(text)
    context = ir.context()
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    module = ir.parse_mlir_module(str(path), context)
    module.context = context
    manager = ir.pass_manager(context)
    passes.convert.add_scf_to_cf(manager)
    nvidia.passes.ttgpuir.add_allocate_shared_memory_nv(manager, arch, 83)
    manager.run(module, "allocate")
    return int(module.get_int_attr("ttg.shared"))


def _tile(shape: Shape, itemsize: int) -> str:
    return "x".join(map(str, shape)) + f"xf{8 * itemsize}"


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    return tuple(2 ** draw(st.integers(4, 7)) for _ in range(2))


def _blocked(shape: Shape, own: int, order: Shape) -> Named:
    held, lanes, beside = map(list, places(shape, own, WARPS, order))
    text = f"sizePerThread = {held}, threadsPerWarp = {lanes}, warpsPerCTA = {beside}, order = {list(order)}"
    return blocked(shape, own, WARPS, order), f"#ttg.blocked<{{{text}}}>"


@st.composite
def in_memory(draw: st.DrawFn, shape: Shape) -> Named:
    """As a load or a store lies."""
    order = draw(st.permutations(range(len(shape))))
    own = min(2 ** draw(st.integers(0, 3)), shape[order[0]], max(1, prod(shape) // (32 * WARPS)))
    return _blocked(shape, own, tuple(order))


@st.composite
def products(draw: st.DrawFn, shape: Shape) -> Named:
    """As the result of mma or of wgmma lies."""
    if draw(st.booleans()) and shape[0] >= 64:
        width = min(shape[1], 2 ** draw(st.integers(3, 7)))
        text = f"versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, {width}, 16]"
        return mma(shape, (4, 1), width, hopper=True), f"#ttg.nvidia_mma<{{{text}}}>"
    warps = draw(st.sampled_from([(4, 1), (2, 2), (1, 4)]))
    text = f"versionMajor = 2, versionMinor = 0, warpsPerCTA = {list(warps)}, instrShape = [16, 8]"
    return mma(shape, warps), f"#ttg.nvidia_mma<{{{text}}}>"


@st.composite
def slices(draw: st.DrawFn, shape: Shape) -> Named:
    """As what was reduced lies."""
    extent, dim = 2 ** draw(st.integers(1, 3)), draw(st.integers(0, len(shape)))
    whole, text = draw(in_memory((*shape[:dim], extent, *shape[dim:])))
    return sliced(whole, dim), f"#ttg.slice<{{dim = {dim}, parent = {text}}}>"


@st.composite
def conversions(draw: st.DrawFn) -> tuple[Named, Named, int, int]:
    """Two layouts of a tile, bytes of an element, an architecture."""
    shape = draw(shapes())
    source, wanted = (draw(st.one_of(in_memory(shape), products(shape), slices(shape))) for _ in range(2))
    return source, wanted, draw(st.sampled_from([2, 4])), draw(st.sampled_from([80, 90]))


@st.composite
def reductions(draw: st.DrawFn) -> tuple[Named, int]:
    """A layout, and the dim that is reduced."""
    shape = draw(shapes())
    return draw(st.one_of(in_memory(shape), products(shape))), draw(st.integers(0, 1))


def _share_right(bytes_of: Callable[[Layout, Layout, int, bool], int], folder: Path) -> float:
    """Of two hundred conversions the share whose bytes are what Triton allocates."""
    right = []

    @seed(0)
    @settings(max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(conversions())
    def compare(drawn: tuple[Named, Named, int, int]) -> None:
        (source, written), (wanted, asked), itemsize, arch = drawn
        tile = _tile(source.shape, itemsize)
        work = _CONVERSION.format(tile=tile, source=written, wanted=asked)
        text = _MODULE.format(warps=WARPS, arch=arch, tile=tile, source=written, work=work)
        right.append(bytes_of(source, wanted, itemsize, arch >= 90) == _allocated(text, arch, folder))

    compare()
    return sum(right) / len(right)


@known
def test_a_conversion_takes_what_the_compiler_allocates_but_for_one_in_fifty(tmp_path: Path) -> None:
    assert _share_right(conversion_bytes, tmp_path) >= 0.98


@known
def test_a_conversion_does_not_take_the_whole_tile_at_once(tmp_path: Path) -> None:
    def whole(source: Layout, wanted: Layout, itemsize: int, stmatrix: bool) -> int:
        return prod(source.shape) * itemsize if conversion_bytes(source, wanted, itemsize, stmatrix) else 0

    assert _share_right(whole, tmp_path) < 0.9


@known
@settings(deadline=None)
@given(reductions())
def test_a_reduction_takes_what_the_compiler_allocates(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[Named, int]
) -> None:
    (layout, written), dim = drawn
    tile, rest = _tile(layout.shape, 4), _tile(layout.shape[:dim] + layout.shape[dim + 1 :], 4)
    work = _REDUCTION.format(tile=tile, source=written, dim=dim, rest=rest)
    text = _MODULE.format(warps=WARPS, arch=90, tile=tile, source=written, work=work)
    assert reduction_bytes(layout, dim) == _allocated(text, 90, tmp_path_factory.getbasetemp())


@given(shapes().flatmap(lambda shape: st.one_of(in_memory(shape), products(shape), slices(shape))))
def test_every_element_lies_in_some_thread(named: Named) -> None:
    layout, _ = named
    reached = {0}
    for step in layout.flat((*layout.registers, *layout.lanes, *layout.warps)):
        reached |= {place ^ step for place in reached}
    assert reached == set(range(prod(layout.shape)))


def test_nothing_is_moved_to_where_it_lies() -> None:
    layout = blocked((64, 64), 4, WARPS, (1, 0))
    assert conversion_bytes(layout, layout, 4, True) == 0
    assert conversion_bytes(layout, permuted(layout, (1, 0)), 4, True) > 0
