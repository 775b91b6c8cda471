"""Launching, on a GPU that is not there: what reaches the driver, which memory is whose, what is refused."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Thread, current_thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.backends.runtime import calls
from mirage_eg.backends.runtime import running_program as runtime
from mirage_eg.backends.runtime.argument_checks import check_array
from mirage_eg.backends.runtime.array_library import ArrayLayout, ArrayLocation, Library
from mirage_eg.backends.runtime.calls import call, capture
from mirage_eg.backends.runtime.cupy_arrays import Cupy
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.runtime.torch_arrays import Torch
from mirage_eg.backends.triton.all_sizes import emit_for_sizes
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.emit import emit
from mirage_eg.backends.triton.kernel_binaries import binaries_of
from mirage_eg.backends.triton.schedule import Schedule
from mirage_eg.ir.at_sizes import at_sizes
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.errors import GraphError, MirageError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import node
from mirage_eg.ir.ops import Level
from mirage_eg.ir.sizes import SizeRange
from property_tests.backends.runtime.test_argument_checks import cupy_array
from property_tests.support.fake_driver import FakeArray, FakeDriver, FakeLibrary, arrays_for, layouts
from property_tests.support.hand_written import HAND_WRITTEN, gated_mlp, split_attention

SPLIT = split_attention("float16", 2, 32, 16, 64, 16, 4, 1, 8)


PLAIN = Schedule()


@contextmanager
def running(graph: Graph, driver: FakeDriver, schedule: Schedule = PLAIN) -> Iterator[RunningProgram]:
    with loaded(emit(graph, schedule=schedule)) as module:
        yield RunningProgram(module, graph.input_names, layouts(graph.output_names, graph.output_types), driver)


def named(
    program: RunningProgram, arrays: list[FakeArray], results: tuple[FakeArray, ...], library: FakeLibrary
) -> dict[str, int]:
    """The address of each value by its name: arguments, what the call returned, and what else was allocated."""
    known = {kind.name: array.pointer for kind, array in zip(program.plan.inputs, arrays, strict=True)}
    arenas = [array for array in library.made if all(array is not result for result in results)]
    assert len(arenas) == bool(program.plan.arena)
    known |= {program.plan.values[value].name: arenas[0].pointer + offset for value, offset in program.plan.arena}
    assert program.plan.results is not None
    return known | {
        program.plan.values[value].name: result.pointer for value, result in zip(program.plan.results, results, strict=True)
    }


@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_each_kernel_argument_is_the_address_of_the_array_of_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = HAND_WRITTEN[name]("float16").mugraph
    driver, library = FakeDriver(), FakeLibrary()
    monkeypatch.setattr(runtime, "compile_module", uncompiled)
    source = emit(graph)
    given = dict(re.findall(r"^    (\w+)\[.*\]\((.*), \*\*OPTIONS", source, re.MULTILINE))
    with loaded(source) as module:
        parameters = {kernel: given[kernel].split(", ") for kernel in module.SIGNATURES}
        program = RunningProgram(module, graph.input_names, layouts(graph.output_names, graph.output_types), driver)
        arrays = arrays_for(program)
        addresses = named(program, arrays, program(arrays, library), library)
    assert [launched.kernel for launched in driver.launched] == list(parameters)
    for launched in driver.launched:
        wanted = [addresses[argument] for argument in parameters[launched.kernel]]
        assert launched.arguments == (*wanted, 0, 0)


def uncompiled(module: Any, target: Any, resources: bool) -> list[tuple[Any, Any]]:
    """Stands for the compiler where what it makes does not matter."""
    made = []
    for name in (it.name for kernel, types in module.SIGNATURES.items() for it in binaries_of(kernel, types)):
        metadata = SimpleNamespace(name=name, shared=0, num_warps=4, num_ctas=1, global_scratch_size=0)
        record = SimpleNamespace(ok=True, kernel=name, error=None)
        made.append((record, SimpleNamespace(metadata=metadata, asm={"cubin": b""})))
    return made


def test_kernels_are_compiled_once_a_device_and_launched_as_compiled() -> None:
    driver, library = FakeDriver(), FakeLibrary()
    with running(SPLIT.mugraph, driver) as program:
        for _ in range(3):
            program(arrays_for(program), library)
        assert len(driver.loaded) == 2
        program([replace(array, device=1) for array in arrays_for(program)], library)
        assert [device for device, *_ in driver.loaded] == [0, 0, 1, 1]
    assert all(image.startswith(b"\x7fELF") for _, _, image, _ in driver.loaded)
    shared = {name: bytes_ for _, name, _, bytes_ in driver.loaded}
    assert all(launched.shared == shared[launched.kernel] for launched in driver.launched)
    assert {launched.threads for launched in driver.launched} == {128}
    assert driver.inside == 0


def test_intermediates_are_reused_on_a_stream_but_not_between_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "compile_module", uncompiled)
    driver, library = FakeDriver(), FakeLibrary()
    with running(SPLIT.mugraph, driver) as program:
        assert len(program.plan.arena) == 3  # partial products, partial sums, their maxima
        seen: dict[int, list[FakeArray]] = {}
        for stream in (7, 8, 7, 8):
            library.current, library.made = stream, []
            [result] = program(arrays_for(program), library)
            inner = [array for array in library.made if array is not result]
            assert len(inner) == (0 if stream in seen else 1)  # the arena
            seen.setdefault(stream, inner)
    assert {launched.stream for launched in driver.launched} == {7, 8}
    pointers = {stream: {inner[0].pointer + offset for _, offset in program.plan.arena} for stream, inner in seen.items()}
    assert not pointers[7] & pointers[8]
    for launched in driver.launched:
        assert not set(launched.arguments) & pointers[15 - launched.stream]


def test_where_memory_is_reused_in_order_intermediates_last_for_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "compile_module", uncompiled)
    driver, library = FakeDriver(), FakeLibrary(keeps_captured=True)
    with running(SPLIT.mugraph, driver) as program:
        results = [program(arrays_for(program), library)[0] for _ in range(2)]
        [arena] = [array for array in library.made if array not in results]
        assert not arena.pointer
        first, second = (set(launched.arguments) for launched in driver.launched[::2])
        assert first & second == {0} and len(first) == len(second)


def test_a_new_stream_with_the_handle_of_one_that_is_gone_has_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "compile_module", uncompiled)
    driver, library = FakeDriver(), FakeLibrary()
    with running(SPLIT.mugraph, driver) as program:
        inner = []
        for number in (100, 101):
            driver.numbers[7], library.made = number, []
            [result] = program(arrays_for(program), library)
            inner.append({array.pointer for array in library.made if array is not result})
    assert len(inner[0]) == len(inner[1]) == 1  # the arena
    assert not inner[0] & inner[1]


def test_the_memory_of_a_capture_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "compile_module", uncompiled)
    driver, library = FakeDriver(captures=frozenset({9})), FakeLibrary()
    with running(SPLIT.mugraph, driver) as program:
        used = []
        for stream in (7, 9, 9, 7):
            library.current = stream
            arrays = arrays_for(program)
            [result] = program(arrays, library)
            own = {result.pointer, 0, *(array.pointer for array in arrays)}
            used.append({pointer for launched in driver.launched[-2:] for pointer in launched.arguments} - own)
    assert used[0] == used[3]
    assert not used[0] & used[1] and not used[1] & used[2] and not used[0] & used[2]


def test_outputs_are_new_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "compile_module", uncompiled)
    driver, library = FakeDriver(), FakeLibrary()
    with running(SPLIT.mugraph, driver) as program:
        arrays = arrays_for(program)
        [first], [second] = program(arrays, library), program(arrays, library)
        assert first is not second
        own = replace(first, pointer=1 << 40)
        made = len(library.made)
        assert program(arrays, library, [own]) == (own,)
        assert len(library.made) == made
        assert not library.copies
    assert driver.launched[-1].arguments[-3] == 1 << 40


def test_calls_from_threads_take_turns_on_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "compile_module", uncompiled)
    driver, library = FakeDriver(), FakeLibrary()
    with running(SPLIT.mugraph, driver) as program:
        program(arrays_for(program), library)

        def work() -> None:
            for _ in range(200):
                program(arrays_for(program), library)

        threads = [Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    kernels = [launched.kernel for launched in driver.launched]
    assert len(kernels) == 2 * 801
    assert kernels[::2] == kernels[:1] * 801 and kernels[1::2] == kernels[1:2] * 801


def test_only_so_many_streams_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "compile_module", uncompiled)
    driver, library = FakeDriver(), FakeLibrary()
    with running(SPLIT.mugraph, driver) as program:
        for stream in range(1, 101):
            library.current = stream
            program(arrays_for(program), library)
        assert len(program._stream_states) == runtime.MOST_STREAMS


# --- What is refused ------------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "shape": ({"shape": (2, 32, 17)}, r"got shape \(2, 32, 17\), wanted \(2, 32, 16\)"),
    "rank": ({"shape": (32, 16), "strides": (16, 1)}, r"got shape \(32, 16\)"),
    "element type": ({"dtype": "float32"}, "got float32, wanted float16"),
    "device": ({"device": 1}, "device"),
    "memory of the host": ({"device": None}, "on the CPU, wanted one on a CUDA device"),
    "strides": ({"strides": (512, 1, 32)}, r"got strides \(512, 1, 32\), wanted \(512, 16, 1\).*contiguous"),
    "alignment": ({"pointer": (1 << 30) + 2}, "multiple of 16"),
}


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_argument_is_named_and_nothing_is_launched(what: str, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "compile_module", uncompiled)
    driver, library = FakeDriver(), FakeLibrary()
    graph = split_attention("float16", 2, 32, 16, 32, 16, 2, 1, 8).mugraph
    changes, words = WRONG[what]
    with running(graph, driver) as program:
        arrays = arrays_for(program)
        shape = arrays[place].shape
        changes = {"shape": (*shape[:2], shape[2] + 1)} if what == "shape" else changes
        changes = {"strides": (shape[1] * shape[2], 1, shape[1])} if what == "strides" else changes
        arrays[place] = replace(arrays[place], **changes)
        # A device is wrong only beside others: the first that differs from the first argument is named.
        name = graph.input_names[1 if what == "device" and place == 0 else place]
        words = words if place == 0 and what not in ("shape",) else words.split(r"\(")[0].strip()
        with pytest.raises(GraphError, match=f"argument {name}: .*{words}"):
            program(arrays, library)
    assert not driver.launched
    assert driver.inside == 0


def test_an_argument_is_called_as_in_the_program_not_as_in_the_source() -> None:
    program = new_kernel_graph()
    program.exp(program.new_input((4, 4), name="α"))
    graph = program.graph()
    with running(graph, FakeDriver()) as made, pytest.raises(GraphError, match="argument α: got shape"):
        made([FakeArray((4, 5), "float16", (5, 1))], FakeLibrary())


@given(extent=st.integers(1, 4), stride=st.integers(0, 99))
@settings(max_examples=20)
def test_the_stride_of_a_single_element_does_not_matter(extent: int, stride: int) -> None:
    wanted = ArrayLayout("x", (extent, 8), "float32", (8, 1))
    array = FakeArray((extent, 8), "float32", (stride, 1))
    if extent == 1 or stride == 8:
        assert check_array(FakeLibrary(), array, wanted, "argument x").pointer == array.pointer
    else:
        with pytest.raises(GraphError, match="argument x: got strides"):
            check_array(FakeLibrary(), array, wanted, "argument x")


@pytest.mark.parametrize("change", [{"shape": (2, 32, 8)}, {"dtype": "float32"}, {"device": 1}, {"strides": (512, 1, 32)}])
def test_a_wrong_output_buffer_is_named(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "compile_module", uncompiled)
    driver, library = FakeDriver(), FakeLibrary()
    with running(SPLIT.mugraph, driver) as program:
        arrays = arrays_for(program)
        kind = program.outputs[0]
        right = FakeArray(kind.shape, kind.dtype, kind.strides)
        program(arrays, library, [right])
        done = len(driver.launched)
        for wrong in (replace(right, **change), replace(right, pointer=arrays[1].pointer + 64)):
            with pytest.raises(GraphError, match=f"out {kind.name}: "):
                program(arrays, library, [wrong])
    assert len(driver.launched) == done


def test_a_kernel_that_does_not_fit_is_one_error_and_nothing_is_launched() -> None:
    driver, library = FakeDriver(), FakeLibrary()
    graph = gated_mlp("float16", 64, 1024, 256, 1, 8).mugraph
    with (
        running(graph, driver, Schedule(num_stages=6)) as program,
        pytest.raises(UnsupportedError, match="shared memory"),
    ):
        program(arrays_for(program), library)
    assert not driver.launched
    assert driver.inside == 0


# --- CUDA graphs, library kernels, no torch -------------------------------------------------------------------------------


def test_a_captured_program_has_static_arrays() -> None:
    driver, library = FakeDriver(), FakeLibrary()
    with running(SPLIT.mugraph, driver) as program:
        made = capture(program, None, library)
        assert [array.shape for array in made.inputs] == [kind.shape for kind in program.plan.inputs]
        assert driver.launched[-1].arguments[-3] == made.outputs[0].pointer
        given = arrays_for(program)
        assert capture(program, given, library).inputs == tuple(given)


class TorchOnTheHost(Torch):
    """Tensors of the CPU that say they are on a GPU."""

    def locate(self, array: Any, what: str) -> ArrayLocation:
        return super().locate(array, what)._replace(device=0, pointer=array.data_ptr())

    def device(self) -> int:
        return 0

    def stream(self, device: int) -> int:
        return 7

    def allocator(self, layout: ArrayLayout, device: int) -> Callable[[], Any]:
        import torch

        dtype = getattr(torch, layout.dtype)
        return lambda: torch.full(layout.shape, 5.0).as_strided(layout.shape, layout.strides).to(dtype)


def between() -> Graph:
    """A generated kernel, a matmul and a view of the library, and another output that a generated kernel writes."""
    pair = gated_mlp("float16", 8, 128, 128, 2, 4)
    nodes = list(pair.mugraph.nodes)[:-1]
    number = len(pair.mugraph.types) - 1
    nodes += [
        node("matmul", number, 1),
        node("reshape", number, shape=(128, 8)),
        node("output", number + 1),
        node("output", number + 2),
    ]
    return Graph(tuple(nodes))


def test_a_program_that_calls_torch_reuses_what_it_does_not_return(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    library: Library = TorchOnTheHost()
    monkeypatch.setattr(runtime, "compile_module", uncompiled)
    driver = FakeDriver()
    with running(between(), driver) as program:
        assert program.calls_torch
        arrays = [torch.ones(kind.shape, dtype=torch.float16) for kind in program.plan.inputs]
        results = [program(arrays, library) for _ in range(3)]
        views = {result[1].untyped_storage().data_ptr() for result in results}
        assert len(views) == 3  # the reshaped buffer is returned: each call has its own
        out = [torch.empty(kind.shape, dtype=torch.float16) for kind in program.outputs]
        assert program(arrays, library, out) == tuple(out)
        assert torch.equal(out[0], results[0][0])
    assert len(driver.launched) == 4
    assert all(launched.stream == 7 for launched in driver.launched)


def test_intermediates_beside_library_kernels_last_for_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    made: list[torch.Tensor] = []

    class WithMemory(TorchOnTheHost):
        def memory(self, nbytes: int, device: int) -> Any:
            made.append(torch.empty(nbytes, dtype=torch.uint8))
            return made[-1]

    monkeypatch.setattr(runtime, "compile_module", uncompiled)
    graph = between()
    driver, alone = FakeDriver(), Graph(graph.nodes[:-1])  # without the view of the generated kernel's result
    with running(alone, driver) as program:
        arrays = [torch.ones(kind.shape, dtype=torch.float16) for kind in program.plan.inputs]
        for _ in range(2):
            [_] = program(arrays, WithMemory())
            [arena] = made
            assert program.plan.arena_bytes > 0 and arena.untyped_storage().nbytes() == 0
    assert all(address for launched in driver.launched for address in launched.arguments[:-2])


def test_library_kernels_on_cupy_arrays_without_torch_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ImportError

    streams = SimpleNamespace(get_current_stream=lambda device: SimpleNamespace(ptr=7))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(dtype=np.dtype, cuda=streams))
    monkeypatch.setattr(calls, "torch_library", missing)
    with running(between(), driver := FakeDriver()) as program:
        arrays = [cupy_array(layout, 0, 0, False) for layout in program.plan.inputs]
        with pytest.raises(MirageError, match=r"library kernels, which torch runs, .*: pip install torch"):
            call(program, arrays, Cupy())
        with pytest.raises(MirageError, match=r"library kernels, which torch runs, .*: pip install torch"):
            capture(program, arrays, Cupy())
    assert driver.launched == []


def test_library_and_generated_kernels_are_on_the_stream_of_their_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    class OfThreads(TorchOnTheHost):
        def stream(self, device: int) -> int:
            return streams[current_thread().name]

    monkeypatch.setattr(runtime, "compile_module", uncompiled)
    driver, library, streams = FakeDriver(), OfThreads(), {"one": 3, "two": 4}
    with running(between(), driver) as program:
        arrays = [torch.ones(kind.shape, dtype=torch.float16) for kind in program.plan.inputs]
        outs = {name: [torch.empty(kind.shape, dtype=torch.float16) for kind in program.outputs] for name in streams}

        def work() -> None:
            for _ in range(50):
                program(arrays, library, outs[current_thread().name])

        threads = [Thread(target=work, name=name) for name in streams]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert Counter(launched.stream for launched in driver.launched) == {3: 50, 4: 50}


def test_a_tensor_that_wants_a_gradient_is_refused() -> None:
    import torch

    with pytest.raises(GraphError, match=r"argument x: .*torch\.no_grad"):
        Torch().locate(torch.ones(3, requires_grad=True), "argument x")
    with torch.no_grad():
        assert Torch().locate(torch.ones(3, requires_grad=True), "argument x").dtype == "float32"


def test_without_torch_in_the_process_kernels_compile_and_launch() -> None:
    script = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("torch was asked for")
sys.meta_path.insert(0, Refuse())
from mirage_eg.backends.triton.all_sizes import emit_for_sizes
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.ir.node import TensorType
from property_tests.support.fake_driver import FakeDriver, FakeLibrary, arrays_for, layouts
driver = FakeDriver()
with loaded(sys.stdin.read()) as module:
    program = RunningProgram(module, ("Q", "K", "V"), layouts(("O",), [TensorType((2, 32, 16), "float16")]), driver)
    program(arrays_for(program), FakeLibrary())
print(len(driver.launched), "torch" in sys.modules)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, input=emit(SPLIT.mugraph), capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["2", "False"], done.stderr


def test_a_graph_of_library_kernels_alone_has_nothing_to_launch() -> None:
    program = new_kernel_graph()
    program.matmul(program.new_input((16, 32)), program.new_input((32, 16)))
    with running(program.graph(), FakeDriver()) as made:
        assert made.calls_torch
        assert made.plan.buffers == ()


@pytest.mark.parametrize("n", [2, 17, 128])
def test_a_size_reaches_each_kernel_that_takes_it_with_its_grid(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    block = Graph(
        (node("input", shape=(71, 8), dtype="float16", imap=(0,), fmap=-1), node("exp", 0), node("output", 1, omap=(0,))),
        Level.BLOCK,
        (5,),
    )
    given = node("input", shape=(71, 8), dtype="float16", name="X", dims="n=2:128,")
    graph = Graph((given, node("block", 0, graph=block), node("output", 1, name="O")))
    driver, library = FakeDriver(), FakeLibrary()
    monkeypatch.setattr(runtime, "compile_module", uncompiled)
    there = at_sizes(graph, {"n": n})
    with loaded(emit_for_sizes(graph, {"n": SizeRange(2, 128)})) as module:
        outputs = layouts(there.output_names, there.output_types)
        program = RunningProgram(module, ("X",), outputs, driver, [kind.shape for kind in there.input_types])
        [x] = arrays_for(program)
        [result] = program([x], library)
    [launched] = driver.launched
    assert result.shape == (n, 8) and launched.grid == (-(-n // 16), 1, 1)
    assert launched.arguments == (x.pointer, result.pointer, n, 0, 0)
    assert launched.kernel.endswith("at full tiles") == (n % 16 == 0)
