"""What Triton's compiler does wrong with wgmma is found in its code, and emitted kernels do not have it."""

import re
from dataclasses import replace

import pytest

from mirage_eg import new_kernel_graph, new_threadblock_graph
from mirage_eg.backends.triton.compile import compile_module, compile_source, loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.miscompilations import find_miscompilation
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.ir.node import REPLICATED
from mirage_eg.search.instantiate.limits import TileLimits, fits
from property_tests.support.hand_written import Pair, attention, gated_mlp, layer_norm_linear, split_product
from property_tests.support.parameters import few

COPIED = "tl.where(i >= 0"  # in the line that gives tl.dot a copy of its own
ROOM = TileLimits(registers=1 << 30, max_tile=1024, stages=1)


def _problem(source: str) -> str:
    """Of the first kernel."""
    record = compile_source(source, "sm_90")[0]
    assert record.ok is (record.error is None)
    return record.error or ""


def _both(m: int, dtype: str = "float16") -> Pair:
    return split_product(dtype, m, 1024, 128, 4, 8)  # its loop reads X by a product and by a sum


@pytest.mark.parametrize("stages", few([3, 2, 4], 1))
def test_a_tile_that_registers_and_wgmma_read_is_not_overwritten_meanwhile(stages: int) -> None:
    source = emit(_both(64).mugraph, schedule=Schedule(num_stages=stages))
    assert COPIED in source
    assert _problem(source) == ""
    careless = "".join(line for line in source.splitlines(keepends=True) if COPIED not in line)
    assert "fetched" in _problem(careless)


def test_without_stages_nothing_is_overwritten() -> None:
    source = emit(_both(64).mugraph, schedule=Schedule(num_stages=1))
    careless = "".join(line for line in source.splitlines(keepends=True) if COPIED not in line)
    assert _problem(careless) == ""


@pytest.mark.parametrize("graphs", few([_both(32), _both(64, "float32"), gated_mlp("float16", 64, 1024, 512, 4, 8)], 1))
def test_a_tile_with_one_kind_of_reader_is_read_in_place(graphs: Pair) -> None:
    source = emit(graphs.mugraph, schedule=Schedule(num_stages=2))
    assert COPIED not in source
    assert _problem(source) == ""


def test_operands_swapped_a_product_of_few_rows_is_one_on_wgmma_too() -> None:
    assert COPIED in emit(_both(32).mugraph, schedule=Schedule(num_stages=2, swapped=True))


@pytest.mark.parametrize(("rows", "columns", "right"), few([(512, 128, False), (256, 128, True), (512, 64, True)], 1))
def test_a_tile_of_many_long_rows_is_no_candidate_and_does_not_compile(rows: int, columns: int, right: bool) -> None:
    graphs = layer_norm_linear("float16", 64, 2 * rows, 2 * columns, 2, 2)
    [block] = graphs.mugraph.blocks
    assert fits(block, ROOM) is right
    problem = _problem(emit(graphs.mugraph, schedule=Schedule(num_stages=1)))
    assert ("another order" not in problem) is right


@pytest.mark.parametrize(("dtype", "right"), [("float32", True), ("float16", False), ("bfloat16", False)])
def test_products_in_float32_are_not_on_wgmma_and_their_tiles_may_be_tall(dtype: str, right: bool) -> None:
    [block] = layer_norm_linear(dtype, 64, 1024, 256, 2, 2).mugraph.blocks
    assert fits(block, replace(ROOM, shared_memory=1 << 30)) is right


@pytest.mark.parametrize(("target", "buffers"), [("sm_100", 2), ("sm_80", 1), ("gfx942", 1)])
def test_a_tile_with_too_few_buffers_is_found_on_other_targets_too(target: str, buffers: int) -> None:
    """Triton gives enough there; so its code is changed."""
    graph = gated_mlp("float16", 64, 256, 128, 1, 8).mugraph
    with loaded(emit(graph, schedule=Schedule(num_stages=3))) as module:
        [(record, kernel)] = compile_module(module, target, resources=False)
    assert record.ok
    code = kernel.asm["ttgir"]
    assert find_miscompilation(code) is None
    fewer = re.sub(rf"memdesc<{buffers + 1}x(\d+x\d+xf16)", rf"memdesc<{buffers}x\1", code)
    assert fewer != code and "fetched" in (find_miscompilation(fewer) or "")


@pytest.mark.slow
def test_a_tall_tile_is_found_in_products_of_sm_100_too() -> None:
    graphs = layer_norm_linear("float16", 64, 1024, 256, 2, 2)
    with loaded(emit(graphs.mugraph, schedule=Schedule(num_stages=1))) as module:
        record, kernel = compile_module(module, "sm_100", resources=False)[0]
    assert kernel is not None and "tc_gen5_mma" in kernel.asm["ttgir"]
    assert "another order" in (record.error or "")


@pytest.mark.parametrize(
    ("stages", "warps", "swapped", "right"), [(1, 4, True, False), (1, 8, True, True), (1, 4, False, True)]
)
def test_two_tiles_at_one_address_are_found_in_ptx(stages: int, warps: int, swapped: bool, right: bool) -> None:
    """Exponentials are stored where keys were; on an H200 with ptxas 12.8 the first kernel is wrong, the others right."""
    graph = attention("float16", 1, 64, 64, 256, 32, 1).mugraph
    schedule = Schedule(num_warps=warps, num_stages=stages, swapped=swapped)
    with loaded(emit(graph, schedule=schedule)) as module:
        [(record, kernel)] = compile_module(module, "sm_90", resources=False)
    assert record.ok is right
    assert right or "ptxas 12.8" in (record.error or "")
    assert find_miscompilation(kernel.asm["ttgir"]) is None


def test_a_sum_of_few_products_is_none_on_tensor_cores() -> None:
    p, b = new_kernel_graph(), new_threadblock_graph((1,))
    x, w = p.new_input((16, 4), "float32", "x"), p.new_input((4, 16), "float32", "w")
    b.new_output(b.matmul(b.new_input(x, (REPLICATED,)), b.new_input(w, (REPLICATED,))), (REPLICATED,))
    p.mark_output(*p.customized([x, w], b))
    with loaded(emit(p.graph())) as module:
        [(record, kernel)] = compile_module(module, "sm_90", resources=False)
    assert record.ok and "tt.dot" not in kernel.asm["ttgir"]


@pytest.mark.parametrize(("dtype", "right"), [("f32", False), ("bf16", True)])
def test_products_in_tf32_are_found(dtype: str, right: bool) -> None:
    """As Triton 3.6 makes them of `tl.sum(x[:, :, None] * y[None, :, :], 1)`; those in half precision are right."""
    operands = " * ".join(f"tensor<{shape}x{dtype}, #ttg.dot_op<{{parent = #mma}}>>" for shape in ("16x4", "4x16"))
    on_wgmma = f"{{inputPrecision = 0 : i32}} : !ttg.memdesc<64x8x{dtype}, #shared> * !ttg.memdesc<8x16x{dtype}, #shared>"
    for line in (
        f"%p = tt.dot %x, %y, %z, inputPrecision = tf32 : {operands}",
        f"%p = ttng.warp_group_dot %x, %y, %z {on_wgmma}",
    ):
        assert (find_miscompilation(f"    {line} -> tensor<16x16xf32, #mma>") is None) is right


def test_layouts_at_different_addresses_are_no_miscompilation() -> None:
    one, other = (f"or.b64 \t%rd{i}, %rd1, {word << 32};\n" for i, word in ((2, 0x40000040), (3, -0x7FFFFFE0)))
    assert find_miscompilation("", one + other.replace("%rd1", "%rd4")) is None
    offsets = "".join(f"add.s64 \t%rd5, %rd1, {offset};\n" for offset in (64, -64, 5 << 32, 6 << 32, -(7 << 32)))
    assert find_miscompilation("", one + offsets) is None
    assert "ptxas" in (find_miscompilation("", one + other) or "")


@pytest.mark.parametrize(
    ("halves", "right"), [("%rs3, _", False), ("_, %rs3", False), ("%rs3, %rs4", True), ("%rs3, %rs5", False)]
)
def test_sums_of_pairs_with_a_constant_of_which_one_half_is_read_are_found(halves: str, right: bool) -> None:
    """ptxas 12.8 writes VIADD.16x2 with 0 as the constant, in all but the third."""
    pair = "mov.b32 \t%r1, {%rs1, %rs2};\nmov.b32 \t%r2, 18;\nadd.s16x2 \t%r3, %r1, %r2;\n"
    read = "add.s16 \t%rs6, %rs3, %rs4;\n"
    assert (find_miscompilation("", f"{pair}mov.b32 \t{{{halves}}}, %r3;\n{read}") is None) is right
    assert find_miscompilation("", f"{pair.replace('mov.b32 	%r2, 18', 'ld.global.b32 %r2, [%rd1]')}{read}") is None
    assert find_miscompilation("", f"{pair}st.global.b32 [%rd1], %r3;\n") is None
