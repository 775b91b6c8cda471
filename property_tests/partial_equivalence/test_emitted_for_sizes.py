"""One emitted program of a corrected mutant for all heights: right at each, verified at primes, and refused at others."""

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.runtime.library_lookup import torch_library
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.file_tables import tables_of
from mirage_eg.backends.triton.interpreter import RunProgram, interpreter
from mirage_eg.ir.at_sizes import dims_of
from mirage_eg.ir.builder import KernelGraph
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.sizes import Dim
from mirage_eg.partial_equivalence import emitted_for_sizes
from mirage_eg.partial_equivalence.all_sizes import SizedMutant, for_named_dim
from mirage_eg.partial_equivalence.emitted_for_sizes import at_size, emit_for_all_sizes
from mirage_eg.partial_equivalence.mutants import mutants
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality


def _program(after: str = "", width: int = 5) -> Graph:
    graph = KernelGraph()
    x = graph.new_input((2, 2, Dim("H", min=4, max=40), width), "float32", "x")
    y = graph.conv2d(x, graph.new_input((2, 2, 3, 3), "float32", "w"), pads=1)
    graph.mark_output(graph.relu(y) if after else y, "y")
    return graph.graph()


def _stated(program: Graph, name: str) -> list[SizedMutant]:
    """The statements about a mutant with this beginning of its name."""
    mutant = next(it for it in mutants(program) if name in it.name and it.rectangles)
    found, refused = for_named_dim(program, mutant, "H")
    assert not refused
    return found


@pytest.fixture(scope="module")
def run() -> Iterator[RunProgram]:
    with interpreter() as run:
        yield run


CASES = {  # what is after the convolution, the width, and a mutant; how many programs serve its statements
    "batch into height": ("", 5, "n→h (2, inner to outer)", [1]),
    "halves of an image": ("", 5, "h→n (2, outer to outer)", [1, 1]),
    "batch into height, relu": ("relu", 5, "n→h (2, inner to outer)", [4]),
    "batch into width": ("", 8, "n→w (2, inner to outer)", [3]),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_one_program_serves_all_heights_with_these_tiles(case: str, run: RunProgram) -> None:
    after, width, name, counts = CASES[case]
    program = _program(after, width)
    served, programs = list[int](), list[int]()
    for sized in _stated(program, name):
        sources = emit_for_all_sizes(sized, dims_of(program)["H"])
        programs.append(len(sources))
        for place, source in enumerate(sources):
            with loaded(source) as module:
                [(_, dim, least, largest, step)] = module.SIZES.values()
                sizes = range(least, largest + 1, step)
                served += sizes
                assert dim == 2 and len(sizes) > 2
                for size in (least, 37) if place == 0 and 37 in sizes else (least,):
                    _check(run, sized, source, module, size)
    assert sorted(served) == [*range(min(served), 41)], "one program for each height"
    assert programs == counts


def _check(run: RunProgram, sized: SizedMutant, source: str, module: ModuleType, size: int) -> None:
    """The corrected program is equal at a size, and the source computes the program there."""
    whole, corrected = at_size(sized, size)
    shapes = [kind.shape for kind in whole.input_types]
    assert [shape for shape, _, _ in tables_of(module, shapes).inputs.values()] == shapes
    assert verify(whole, corrected).verdict is Equality.EQUAL
    random = np.random.default_rng(size)
    arrays = [random.standard_normal(shape).astype("float32") for shape in shapes]
    [wanted] = evaluate(whole, [array.astype(float) for array in arrays], FloatAlgebra())
    [got] = run(source, arrays)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_ranges_meet_where_not_every_size_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emitted_for_sizes, "EVERY", 6)
    program = _program(width=8)
    [sized] = _stated(program, "n→w (2, inner to outer)")
    sources = emit_for_all_sizes(sized, dims_of(program)["H"])
    assert [source.partition("SIZES = ")[2].partition("\n")[0] for source in sources] == [
        f'{{"H": (0, 2, {least}, {largest}, 1)}}' for least, largest in ((33, 40), (17, 32), (4, 16))
    ]


def test_a_height_that_it_does_not_serve_is_refused() -> None:
    program = _program()
    [sized] = _stated(program, "x: n→h (2, inner to outer)")
    [source] = emit_for_all_sizes(sized, dims_of(program)["H"])
    with loaded(source) as module:
        inputs, _ = module.layouts(41)
        with pytest.raises(ValueError, match="size H: got 41, wanted 4, 5, … 40"):
            module.check([], 41)
        assert inputs["x"] == ((2, 2, 41, 5), "float32", (410, 205, 5, 1))


@pytest.mark.gpu
def test_one_program_serves_all_heights_on_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    program = _program()
    [sized] = _stated(program, "n→h (2, inner to outer)")
    [source] = emit_for_all_sizes(sized, dims_of(program)["H"])
    for size in (4, 16, 37, 40):
        x, w = (torch.randn(shape, device="cuda") for shape in ((2, 2, size, 5), (2, 2, 3, 3)))
        wanted = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
        with loaded(source) as module:
            assert float((module.run(x, w).double() - wanted).abs().max()) < 1e-2
            running = RunningProgram(module, ["x", "w"], shapes=[x.shape, w.shape])
            [got] = running((x, w), torch_library())
        assert float((got.double() - wanted).abs().max()) < 1e-2
