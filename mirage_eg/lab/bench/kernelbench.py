"""`bench kernelbench`: which problems of a KernelBench checkout import, and whether the imported programs are right.

KernelBench (Ouyang et al., 2025; MIT license) has one model in each file KernelBench/level*/*.py: a class `Model`, functions
`get_inputs` and `get_init_inputs`, and its sizes at the top level. The files are read and run, never copied. Models stay in
train mode, as KernelBench runs them.
"""

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from types import CellType, FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from mirage_eg.backends.evaluator.sandbox import Worker
from mirage_eg.ir.errors import LimitError, OptionError, ProgramError
from mirage_eg.lab.bench.model_errors import largest_error, tensors_of
from mirage_eg.lab.bench.shrinking import SHRINKINGS, run_source

TOLERANCE = 1e-5  # of the largest element, against float64; or 4 times the error of the model in its own types
MOST_ELEMENTS = 1 << 22, 1 << 24  # of all inputs, where sizes are shrunk: as wanted, and as the largest
ADDRESS_SPACE = 64 << 30  # bytes of a problem's process


# Of a model at sizes that it was not written for.
FOREIGN_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError),
    *(OSError, RuntimeError, SyntaxError, TypeError, ValueError),
)


class Import(StrEnum):
    """The result of one problem: all of it imported and right or wrong; some of it outside; import itself fails, or takes too
    long; the model has no result to compare with."""

    RIGHT = "right"
    WRONG = "wrong"
    OUTSIDE = "outside"
    FAILED = "failed"
    NO_REFERENCE = "no reference"


@dataclass(frozen=True, slots=True)
class Problem:
    """One file of a KernelBench checkout."""

    level: int
    number: int
    path: Path

    @property
    def name(self) -> str:
        """As in `level1/19_ReLU`."""
        return f"level{self.level}/{self.path.stem}"


@dataclass(frozen=True, slots=True)
class ImportRow:
    """The import of one problem. `ops` counts those of its programs, `error` is relative to the largest element of the result.

    `shrinking` names the smaller sizes of the check, if any.
    """

    problem: str
    result: Import
    reason: str = ""
    segments: int = 0
    ops: int = 0
    error: float | None = None
    shrinking: str | None = None
    seconds: float = 0.0


def find_problems(folder: Path, names: Sequence[str] = ()) -> list[Problem]:
    """The problems of a checkout, or those named, as level1/19_ReLU, level1/19 or level1, in the order of the names.

    Raises OptionError: a folder without problems, or a name that is none.
    """
    found = []
    for path in folder.glob("KernelBench/level*/*.py"):
        if (level := re.fullmatch(r"level(\d+)", path.parent.name)) and (number := re.match(r"(\d+)_", path.name)):
            found.append(Problem(int(level[1]), int(number[1]), path))
    if not found:
        raise OptionError(f"--dir: got {str(folder)!r}, wanted a checkout of KernelBench, with KernelBench/level1/*.py")
    found.sort(key=lambda problem: (problem.level, problem.number, problem.name))
    named: dict[str, Problem] = {}
    for name in names:
        mine = {problem.name: problem for problem in found if _is_named(problem, name)}
        if not mine:
            raise OptionError(f"problem: got {name!r}, wanted a level or problem of {folder}, such as {found[0].name}")
        named |= mine
    return [*named.values()] if names else found


def _is_named(problem: Problem, name: str) -> bool:
    return name in (f"level{problem.level}", f"level{problem.level}/{problem.number}", problem.name)


def import_rows(problems: Sequence[Problem], shrink: bool, seconds: float) -> Iterator[ImportRow]:
    """One row for each problem; problems run in a process apart, each for at most `seconds` of processor time."""
    with ExitStack() as stack:
        worker: Worker | None = None
        for problem in problems:
            worker = worker or stack.enter_context(Worker(ADDRESS_SPACE))
            start = perf_counter()
            try:
                row = worker.call(import_problem, problem, shrink, seconds=seconds, task=problem.name)
            except LimitError as error:
                row = ImportRow(problem.name, Import.FAILED, str(error).removeprefix(f"{problem.name} "))
                worker.close()
                worker = None
            yield replace(row, seconds=perf_counter() - start)


def import_problem(problem: Problem, shrink: bool) -> ImportRow:
    """Import one problem and compare its programs with the model in float64; with `shrink`, at sizes that a CPU computes."""
    torch.set_num_threads(1)
    source = problem.path.read_text(encoding="utf-8")
    reason = ""
    waiting: list[tuple[str | None, int]] = [(name, MOST_ELEMENTS[0]) for name in SHRINKINGS] if shrink else [(None, 0)]
    while waiting:
        shrinking, most = waiting.pop(0)
        try:
            reference = _reference(source, str(problem.path), shrinking, most)
        except FOREIGN_ERRORS as error:
            reason = reason or f"the model fails{' at smaller sizes' if shrink else ''}: {_line(error)}"
            if isinstance(error, _TooLargeError) and most < MOST_ELEMENTS[-1]:
                waiting.append((shrinking, MOST_ELEMENTS[-1]))
            continue
        return replace(compared_row(problem.name, *reference), shrinking=shrinking)
    return ImportRow(problem.name, Import.NO_REFERENCE, reason)


class _UnusableError(ValueError):
    """A model that cannot serve as a reference."""


class _TooLargeError(_UnusableError):
    """A model whose inputs have too many elements."""


Trial = tuple[list[Any], list[Any]]  # arguments of a model, and its results in float64


def _reference(source: str, path: str, shrinking: str | None, most: int) -> tuple[Any, list[Trial]]:
    """The model in train mode, and its results for its own inputs and, where they are finite, for normal ones.

    With `shrinking` its inputs may have `most` elements.
    """
    module = run_source(source, path, shrinking)
    torch.manual_seed(0)
    given = module.get_init_inputs()
    model = with_buffers(module.Model(**given) if isinstance(given, dict) else module.Model(*given))
    if shrinking:
        with torch.device("meta"):
            elements = sum(one.numel() for one in tensors_of(module.get_inputs()))
        if elements > most:
            raise _TooLargeError(f"its inputs have {elements:,} elements, more than {most:,}")
    inputs = list(module.get_inputs())
    normal = [torch.randn_like(x) if is_float(x) else x for x in inputs]
    with torch.no_grad():
        trials = [(drawn, _results(in_float64(model), *drawn)) for drawn in (inputs, normal)]
    usable = [trial for trial in trials if all(bool(torch.isfinite(x).all()) for x in trial[1])]
    if not usable:
        raise _UnusableError("its result is not finite")
    return model, usable


def _results(function: Any, *inputs: Any) -> list[Any]:
    """The tensors of a call that has random numbers of one seed."""
    torch.manual_seed(0)
    return tensors_of(function(*inputs))


def in_float64(model: Any) -> Callable[..., Any]:
    """A copy of a model in float64, with its closures over modules, as a function of inputs of any type.

    Random numbers of the model in float32 are those of the copy.
    """
    memo: dict[int, Any] = {}
    copied = with_buffers(copy.deepcopy(model, memo)).double()
    for module in copied.modules():
        for name, value in vars(module).items():
            if isinstance(value, FunctionType) and value.__closure__:  # a copy has the same cells
                cells = tuple(CellType(memo.get(id(it.cell_contents), it.cell_contents)) for it in value.__closure__)
                function = FunctionType(value.__code__, value.__globals__, name, value.__defaults__, cells)
                function.__kwdefaults__ = value.__kwdefaults__
                setattr(module, name, function)

    def call(*inputs: Any) -> Any:
        with _Float32Made():
            return copied(*(it.double() if is_float(it) else it for it in inputs))

    return call


def with_buffers(model: Any) -> Any:
    """The model, whose tensors are buffers where they were plain attributes: torch.export takes no write to those."""
    for module in model.modules():
        for name in [name for name, value in vars(module).items() if isinstance(value, torch.Tensor)]:
            module.register_buffer(name, vars(module).pop(name))
    return model


class _Float32Made(TorchFunctionMode):  # type: ignore[misc]
    """Makes tensors of no other tensor, and random ones like another, in float32, and gives them in float64."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_random = function in (torch.rand_like, torch.randn_like)
        made = function(*args, **({"dtype": torch.float32} if is_random else {}) | (kwargs or {}))
        is_own = is_random or not any(isinstance(it, torch.Tensor) for it in args)
        return made.double() if is_own and isinstance(made, torch.Tensor) and made.dtype is torch.float32 else made


def is_float(value: Any) -> bool:
    """Whether a value is a tensor of a floating-point type."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def compared_row(name: str, model: Any, trials: list[Trial]) -> ImportRow:
    """The row of a model that has a reference."""
    from mirage_eg.frontend.fx_partition import RANDOM
    from mirage_eg.frontend.torch_export import import_program

    try:
        with torch.no_grad():
            program = torch.export.export(model, tuple(trials[0][0]), strict=False)
    except (RuntimeError, ValueError, TypeError) as error:
        return ImportRow(name, Import.OUTSIDE, f"torch.export: {_line(error)}")
    try:
        imported = import_program(program)
    except ProgramError as error:
        return ImportRow(name, Import.OUTSIDE, _line(error))
    ops = sum(len(program.ops) for program in imported.programs)
    row = ImportRow(name, Import.RIGHT, segments=len(imported.programs), ops=ops)
    if reasons := Counter(f"{one.op}: {one.reason}" for one in imported.outside if one.reason != RANDOM):
        first, *rest = [text if count == 1 else f"{text} ({count} times)" for text, count in reasons.items()]
        return replace(row, result=Import.OUTSIDE, reason=first + (f"; {len(rest)} more" if rest else ""))
    for inputs, wanted in trials:
        with torch.no_grad():
            results, own = _results(imported.run, *inputs), _results(copy.deepcopy(model), *inputs)
        if [x.shape for x in results] != [x.shape for x in wanted]:
            return replace(row, result=Import.WRONG, reason="the results have other shapes")
        found, most = largest_error(results, wanted), max(TOLERANCE, 4 * largest_error(own, wanted))
        row = replace(row, error=max(row.error or 0.0, found))
        if not found <= most:
            reason = f"an error of {row.error:.1e} of the largest element, wanted at most {most:.1e}"
            return replace(row, result=Import.WRONG, reason=reason)
    return row


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:199]}…"


def summary(rows: Sequence[ImportRow]) -> list[tuple[str, ...]]:
    """The number of problems of each level and result, with a head and a total."""
    levels = sorted({row.problem.partition("/")[0] for row in rows})
    table = [("", *Import, "all")]
    for level in (*levels, "all"):
        mine = [row.result for row in rows if level in ("all", row.problem.partition("/")[0])]
        table.append((level, *(str(mine.count(result)) for result in Import), str(len(mine))))
    return table
