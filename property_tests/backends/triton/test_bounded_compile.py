"""A kernel that its compiler cannot swallow is not tried, or dropped after its share, and no process of it is left."""

import re
from pathlib import Path
from time import monotonic

import pytest

from mirage_eg.backends.evaluator.sandbox import Worker
from mirage_eg.backends.triton.bounded_compile import compile_within
from mirage_eg.backends.triton.compile import cache_folder, compile_module, compile_source, loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.kernel_size import MOST, instructions
from mirage_eg.ir.deadline import after
from property_tests.backends.triton.test_bounded_ptxas import endless as endless
from property_tests.backends.triton.test_bounded_ptxas import lives, until
from property_tests.support.hand_written import HAND_WRITTEN, gated_mlp


def test_a_kernel_that_is_too_large_is_not_tried(endless: Path) -> None:
    begun = monotonic()
    [record] = compile_source(emit(gated_mlp("float64", 128, 512, 1024, 2, 2).mugraph), "sm_90")
    assert not record.ok and record.error is not None
    [count] = re.findall(r"not compiled: about ([\d,]+) instructions for each thread, wanted at most 16,384", record.error)
    assert int(count.replace(",", "")) > MOST
    assert not endless.exists() and monotonic() - begun < 5


def _counts() -> tuple[int, int]:
    """Of products on matrix units: those of the compiler, and those that are estimated."""
    with loaded(emit(gated_mlp("float64", 32, 64, 64, 2, 2).mugraph)) as module:
        [(_, compiled)] = compile_module(module, "sm_90")
    return len(re.findall(r"mma\.sync\S*f64", compiled.asm["ptx"])), instructions(compiled.asm["source"], 4)


def test_products_are_counted_as_the_compiler_has_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with Worker(0) as process:  # one that has compiled nothing else: LLVM's options are the process's
        made, estimated = process.call(_counts, seconds=60, task="compiling")
    assert made <= estimated <= 2 * made


def test_functions_count_where_they_are_called() -> None:
    text = """
    tt.func public @kernel(%x: !tt.ptr<f32>) {
      %a = tt.call @one.f32(%x) : (tensor<64x64xf32>) -> tensor<64x64xf32>
      %b = tt.call @one.f32(%a) : (tensor<64x64xf32>) -> tensor<64x64xf32>
      %c = arith.addi %i, %i : tensor<64x64xi32>
    }
    tt.func private @one.f32(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
      %y = math.exp %x : tensor<64x64xf32>
      %z = tt.dot %y, %y, %y, inputPrecision = ieee : tensor<64x64xf32> * tensor<64x64xf32> -> tensor<64x64xf32>
    }
    """
    assert instructions(text, 4) == 2 * (64 * 64 + 64**3) // 128
    assert instructions(text.replace("ieee", "tf32"), 4) == 2 * (64 * 64 + 64**3 // 1024) // 128


def test_a_compiler_that_does_not_end_is_ended_with_its_children(endless: Path) -> None:
    source = emit(HAND_WRITTEN["attention"]("float16").mugraph)
    with Worker(0) as process:
        process.call(cache_folder, seconds=40, task="beginning")
        for seconds in (2.4, 10, 40):  # on a busy machine ptxas begins late
            begun = monotonic()
            [record] = compile_within(source, "sm_90", process, after(seconds))
            assert seconds / 2 <= monotonic() - begun < seconds
            assert not record.ok and record.error is not None and record.error.startswith("the compiler stopped after")
            if endless.exists():
                break
        until(lambda: not lives(int(endless.read_text())))
        [late] = compile_within(source, "sm_90", process, after(0))
        assert late.error == "the budget was spent"


def test_the_next_kernel_is_compiled_after_one_that_was_dropped(endless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = emit(HAND_WRITTEN["attention"]("float16").mugraph)
    with Worker(0) as process:
        assert not compile_within(source, "sm_90", process, after(1))[0].ok
        for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
            monkeypatch.delenv(name)
        assert compile_within(source, "sm_90", process, after(120))[0].ok
