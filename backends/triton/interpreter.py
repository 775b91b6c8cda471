"""Running emitted programs without a GPU: Triton's interpreter, in a process of its own.

The interpreter must be chosen before Triton is imported and then rules the whole process; so one worker runs program after
program. Slow (milliseconds a tile op): for checking kernels on small shapes, not for using them. Needs torch.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from mirage_eg.backends.evaluator.sandbox import Worker
from mirage_eg.backends.triton.emulated_assembler import assembled, over_cluster
from mirage_eg.backends.triton.op_table import NAN_MAX
from mirage_eg.backends.triton.targets import ALIGNMENT
from mirage_eg.ir.errors import MirageError

Array = np.ndarray[Any, np.dtype[Any]]
RunProgram = Callable[[str | Path, Sequence[Array]], list[Array]]


class InterpreterError(MirageError):
    """A program that raises in the interpreter; the message ends with its traceback."""


def run_program(source: str | Path, arrays: Sequence[Array]) -> list[Array]:
    """The results of a program on arrays."""
    import torch

    from mirage_eg.backends.triton.compile import loaded
    from mirage_eg.backends.triton.file_tables import tables_of

    with loaded(source) as module:
        tensors = []
        inputs = tables_of(module, [array.shape for array in arrays]).inputs
        for array, (shape, dtype, strides) in zip(arrays, inputs.values(), strict=True):
            tensor = torch.empty_strided(shape, strides, dtype=getattr(torch, dtype))
            tensors.append(tensor.copy_(torch.from_numpy(np.ascontiguousarray(array)).reshape(shape)))  # NumPy's has a dim
        return as_arrays(module.run(*tensors))


@contextmanager
def interpreter(run: RunProgram = run_program) -> Iterator[RunProgram]:
    """A function that runs an emitted program (its text or path) on arrays; its outputs are in float64, integers as they are.

    Arrays are rounded to the element types that the program declares and laid out with its strides. `run`: another function of
    an importable module that runs a program in the process. After a program that raises the next one has a new process.
    """
    with Worker(0, {"TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}) as worker:

        def answer(source: str | Path, arrays: Sequence[Array]) -> list[Array]:
            try:
                results: list[Array] = worker.call(_answer, run, source, [*arrays], seconds=inf, task="the interpreter")
            except MirageError as error:
                worker.close()
                raise InterpreterError(str(error)) from None
            return results

        yield answer


def _answer(run: RunProgram, source: str | Path, arrays: Sequence[Array]) -> list[Array]:
    """The results of a program, in the process of the interpreter."""
    _mended()
    try:
        return run(source, arrays)
    except Exception:  # noqa: BLE001 - of the program; the caller has its traceback
        raise InterpreterError(traceback.format_exc()) from None


@cache
def _mended() -> None:
    _mend_narrow_types()
    _allow_precisions()
    _reduce_maxima_at_once()
    _require_alignment()
    _know_assembler()
    _launch_in_turn()


def as_arrays(results: Any) -> list[Array]:
    """The results of a program as arrays: integers as they are, other numbers in float64."""
    import torch

    whole = torch.int32, torch.int64
    given = results if isinstance(results, tuple) else (results,)
    return [(it if it.dtype in whole else it.to(torch.float64)).numpy() for it in given]


def _mend_narrow_types() -> None:
    """Triton's interpreter (3.6 to 3.9) multiplies bit patterns of bfloat16 in tl.dot, rounds to bfloat16 and float8 towards 0,
    takes whole numbers for bit patterns, and has no not-a-number in float8.

    It gets the values of the operands instead, and rounds to nearest as a GPU does.
    """
    import torch
    from triton import language as tl
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    float8 = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}
    plain_types = {tl.float32: torch.float32, tl.float16: torch.float16}
    plain, convert, cast = InterpreterBuilder.create_dot, interpreter._convert_float, InterpreterBuilder.cast_impl

    def convert_float(x: Array, given: Any, wanted: Any, rounding_mode: Any) -> Array:
        if given in float8 and wanted in plain_types:
            return torch.from_numpy(x).view(float8[given]).to(plain_types[wanted]).numpy()  # type: ignore[no-any-return]
        if given in plain_types and wanted in float8:
            return torch.from_numpy(x).to(float8[wanted]).view(torch.uint8).numpy()  # type: ignore[no-any-return]
        if (given, wanted) != (tl.float32, tl.bfloat16):
            result: Array = convert(x, given, wanted, rounding_mode)
            return result
        bits = x.view(np.uint32)
        rounded = bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))
        return (np.where(np.isnan(x), bits | 0x400000, rounded) >> 16).astype(np.uint16)

    def values(operand: Any) -> Any:
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        return TensorHandle((operand.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return plain(self, values(a), values(b), *rest)

    def cast_impl(self: Any, x: Any, wanted: Any) -> Any:
        is_whole = wanted.scalar == tl.bfloat16 and x.dtype.scalar.is_int()
        return cast(self, cast(self, x, tl.float32) if is_whole else x, wanted)

    InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl = create_dot, cast_impl
    interpreter._convert_float = convert_float


def _allow_precisions() -> None:
    """Triton's interpreter (3.6 to 3.9) refuses some names of precisions; it multiplies in float32 under each of them."""
    from triton.runtime.interpreter import InterpreterOptions, interpreter_builder

    interpreter_builder.options = InterpreterOptions(
        allowed_dot_input_precisions=("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")
    )


def _reduce_maxima_at_once() -> None:
    """Triton's interpreter reduces by a function of ours in a Python loop over the elements; NumPy's maximum is the same."""
    from triton.runtime.interpreter import ReduceOps

    plain = ReduceOps.apply_impl

    def apply(self: Any, operands: Any) -> Any:
        if self.combine_fn.__name__ == NAN_MAX:
            return self.min_max(operands[0], val_reduce_op=np.max)
        return plain(self, operands)

    ReduceOps.apply_impl = apply


def _know_assembler() -> None:
    """Triton's interpreter has no inline assembler."""
    from triton import language as tl
    from triton.runtime.interpreter import TensorHandle

    def elementwise(asm: Any, constraints: Any, args: Any, dtype: Any, is_pure: Any, pack: Any) -> Any:
        arrays = np.broadcast_arrays(*(it.handle.data for it in args))
        types = dtype if isinstance(dtype, tuple) else (dtype,)
        if "barrier.cluster" in str(asm):
            results = iter([over_cluster(str(asm), arrays[0])])
        else:
            results = assembled(str(asm), str(constraints), arrays, [_NUMPY_TYPES[str(it)] for it in types], pack)
        found = tuple(
            tl.tensor(TensorHandle(values, it), tl.block_type(it, list(values.shape)))
            for values, it in zip(results, types, strict=True)
        )
        return found if isinstance(dtype, tuple) else found[0]

    tl.inline_asm_elementwise = elementwise


_NUMPY_TYPES: Mapping[str, np.dtype[Any]] = {"fp16": np.dtype(np.float16), "fp32": np.dtype(np.float32)}


def _launch_in_turn() -> None:
    """Kernels run sequentially: a dependent launch waits for nothing."""
    import triton.language.extra.cuda as cuda

    cuda.gdc_wait = cuda.gdc_launch_dependents = lambda: None


def _require_alignment() -> None:
    """Kernels are compiled for arrays at multiples of 16 bytes; a GPU reports other addresses as misaligned, and the process is
    lost. The interpreter takes any."""
    from triton.runtime.interpreter import GridExecutor

    plain = GridExecutor.__call__

    def launch(self: Any, *arguments: Any, **options: Any) -> None:
        for name, given in zip(self.arg_names, arguments, strict=False):
            if hasattr(given, "data_ptr") and given.data_ptr() % ALIGNMENT:
                where = f"{given.storage_offset()} elements from the start of its memory"
                raise InterpreterError(f"{self.fn.__name__}: {name} begins {where}, wanted a multiple of {ALIGNMENT} bytes")
        plain(self, *arguments, **options)

    GridExecutor.__call__ = launch
