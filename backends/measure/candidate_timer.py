"""Candidates on the GPU, one at a time: a comparison with float64 results, and the time of a run.

A candidate that fails is an outcome, no exception; only a GPU context that is lost for all that follow is one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, isnan, nan
from statistics import geometric_mean, median
from typing import Any

from mirage_eg.backends.measure.timing import (
    Outcome,
    Timing,
    captured,
    causal_mask,
    event_us,
    free_cached_memory,
    time_in_turn,
    timing_stream,
)
from mirage_eg.backends.runtime.cuda_driver import Driver, Function, LaunchCall, cuda_driver
from mirage_eg.backends.runtime.library_lookup import torch_library
from mirage_eg.backends.runtime.running_program import RunningProgram
from mirage_eg.backends.triton.compile import loaded
from mirage_eg.backends.triton.file_tables import Kind, tables_of
from mirage_eg.backends.triton.kernel_binaries import kernel_name
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.shapes import Shape

_RUNS = 10


class EventDriver:
    """A driver that can record an event before each launch and one after it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._recorded: list[tuple[int, Any, Any]] | None = None  # handles of functions with events; None: record none

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def prepare(self, function: Function, grid: Shape, stream: int, parameters: Any) -> LaunchCall:
        """The driver's launch, which records events while kernels are timed."""
        launch = self._driver.prepare(function, grid, stream, parameters)

        def recorded() -> int:
            if self._recorded is None:
                return launch()
            import torch

            start, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
            start.record()
            status = launch()
            end.record()
            self._recorded.append((function.handle, start, end))
            return status

        return recorded

    def kernels_us(self, run: Callable[[], object]) -> dict[int, float]:
        """The microseconds of each function in one run, by its handle; none if the run cannot be captured.

        A function that is launched several times has their sum.
        """
        self._recorded = []
        try:
            if captured(run, _RUNS) is None:
                return {}
            times: dict[int, list[float]] = {}
            for handle, start, end in self._recorded:
                times.setdefault(handle, []).append(1000.0 * start.elapsed_time(end))
        finally:
            self._recorded = None
        return {handle: median(us) * len(us) / _RUNS for handle, us in times.items()}


ERROR_RATIO = 2  # a candidate may be this many times as wrong as the library form, as in the float check
TOLERANCE = {"float16": 1e-2, "bfloat16": 6e-2, "float32": 1e-3, "float64": 1e-9}  # or so wrong, of the largest element
TOLERANCE |= {"float8_e4m3fn": 2**-3, "float8_e5m2": 2**-2, "float8_e8m0fnu": 1}  # two neighbours
MOST_WRONG = 0.1  # of the largest element: a library form that is more wrong is no measure, and allows nothing
FIXED_SHAPES: Sequence[Sequence[Shape]] = ((),)  # of a program that takes no sizes
MOST_DIFFERENT = 1e-2  # of whole numbers, such as places in an order: roundings decide between numbers that are nearly equal
PART = 1 << 26  # elements that are compared at once
_QUICK_RUNS = 20  # in the CUDA graph of a first, rough measurement
_NEAR_OVERFLOW = 0.9  # of the largest finite number: larger values may round to infinity


class DeviceLost(MirageError):
    """The GPU context is unusable (an illegal address, say): continue in a fresh process."""


@dataclass(frozen=True, slots=True)
class _AtShapes:
    """Inputs of these shapes, a list for each magnitude; their float64 results, and the errors of the library form."""

    shapes: Sequence[Shape]
    kinds: Sequence[Kind]
    tensors: list[list[Any]] = field(default_factory=list)
    wanted: list[list[Any]] = field(default_factory=list)
    own_errors: list[list[float]] = field(default_factory=list)

    def add(self, tensors: list[Any], wanted: list[Any], own_errors: list[float]) -> None:
        self.tensors.append(tensors)
        self.wanted.append(wanted)
        self.own_errors.append(own_errors)


class CandidateTimer:
    """The inputs of a program on the GPU, its float64 results, and the errors of its library form."""

    def __init__(self, source: str, seed: int = 0, shapes: Sequence[Sequence[Shape]] = FIXED_SHAPES) -> None:
        """`source` is the library form of the program, with a `reference`; candidates take the same inputs.

        Where programs take sizes, `shapes` are those of the inputs at each of the sizes at which candidates are timed.
        """
        with loaded(source) as module:
            self._cases = [_AtShapes(each, tuple(tables_of(module, each).inputs.values())) for each in shapes]
            for case in self._cases:
                for magnitude in module.MAGNITUDES:
                    case.add(*judging_inputs(module, case.kinds, magnitude, seed, case.shapes))
        free_cached_memory()

    def quick(self, source: str) -> Outcome:
        """Check on small and large inputs, then time roughly."""
        return self._guarded(source, full=False)[0]

    def full(self, source: str) -> tuple[Outcome, Timing | None]:
        """Check likewise, then time warm and cold."""
        return self._guarded(source, full=True)

    def _guarded(self, source: str, full: bool) -> tuple[Outcome, Timing | None]:
        import torch
        from triton.errors import TritonError

        try:
            found = []
            for case in self._cases:
                found.append(self._run(source, case, full))
                if found[-1][0].problem is not None:
                    return found[-1]
            return found[0] if len(found) == 1 else _joined(found)
        # A kernel that needs more than the GPU has; one that the driver or torch refuses; one that does not compile.
        except (TritonError, RuntimeError, MirageError) as error:
            problem = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        try:
            torch.cuda.synchronize()
        except RuntimeError as lost:
            raise DeviceLost(f"the GPU context is lost after: {problem}") from lost
        return Outcome(None, None, problem), None

    def _run(self, source: str, case: _AtShapes, full: bool) -> tuple[Outcome, Timing | None]:
        import torch

        from mirage_eg.backends.measure.tf32 import without_tf32  # loads torch

        library = torch_library()
        with loaded(source) as module, timing_stream():
            driver, worst = EventDriver(cuda_driver()), 0.0
            layouts = tables_of(module, case.shapes).inputs
            program = RunningProgram(module, list(layouts), driver=driver, shapes=case.shapes)
            for tensors, wanted, own in zip(case.tensors, case.wanted, case.own_errors, strict=True):
                arguments = _laid_out(module, layouts.values(), tensors)
                with without_tf32():  # which torch's own convolutions may have
                    results = program(arguments, library)
                torch.cuda.synchronize()
                most = [allowed_error(got.dtype, error) for got, error in zip(results, own, strict=True)]
                errors = largest_errors(results, wanted)
                error, allowed = max(zip(errors, most, strict=True), key=lambda pair: pair[0] / pair[1])
                if not error <= allowed:
                    return Outcome(None, error, f"wrong: largest error {error:.2e} of the largest element"), None
                worst = max(worst, error)
            arguments = _laid_out(module, layouts.values(), case.tensors[0])
            run = program.repeated(arguments, library)
            if full:
                timing = time_in_turn(run)
                return Outcome(timing.warm_us, worst, None), timing
            replay = captured(run, _QUICK_RUNS)
            if replay is None:
                return Outcome(median(event_us(run, repeats=5)), worst, None), None
            us = median(event_us(replay, repeats=3)) / _QUICK_RUNS
            names = list(getattr(module, "SIGNATURES", ()))
            if len(names) < 2:
                return Outcome(us, worst, None), None
            times, functions = driver.kernels_us(run), program.functions(torch.cuda.current_device())
            kernels = dict.fromkeys(names, 0.0)
            for binary, function in functions.items():  # of a kernel with two, one runs
                kernels[kernel_name(binary)] += times.get(function.handle, 0.0)
            return Outcome(us, worst, None, tuple(kernels.values()) if times else ()), None


def run_once(source: str, shapes: Sequence[Shape] = ()) -> None:
    """Run a program on random inputs of these shapes; an error with which the GPU is not lost says nothing.

    Raises DeviceLost: the kernels ended this process's context.
    """
    import torch
    from triton.errors import TritonError

    problem = ""
    with loaded(source) as module, timing_stream():
        try:
            layouts = tables_of(module, shapes).inputs
            tensors = _laid_out(module, layouts.values(), random_inputs(module, [*layouts.values()], 1.0, 0))
            RunningProgram(module, list(layouts), shapes=shapes)(tensors, torch_library())
        except (TritonError, RuntimeError, MirageError) as error:
            problem = " ".join(str(error).split())[:300]
        try:
            torch.cuda.synchronize()
        except RuntimeError as lost:
            raise DeviceLost(problem or " ".join(str(lost).split())[:300]) from lost
    free_cached_memory()


def _joined(found: Sequence[tuple[Outcome, Timing | None]]) -> tuple[Outcome, Timing | None]:
    """The outcomes of a right candidate at several sizes as one: geometric means of the times, the largest error."""
    outcomes, timings = [outcome for outcome, _ in found], [timing for _, timing in found if timing is not None]
    kernels = zip(*(outcome.kernels_us for outcome in outcomes), strict=True) if all(it.kernels_us for it in outcomes) else ()
    us, errors = [it.us for it in outcomes if it.us is not None], [it.error for it in outcomes if it.error is not None]
    outcome = Outcome(geometric_mean(us), max(errors), None, tuple(map(geometric_mean, kernels)))
    if not timings:
        return outcome, None
    warm, cold = (geometric_mean(getattr(it, name) for it in timings) for name in ("warm_us", "cold_us"))
    spreads = (max(getattr(it, name) for it in timings) for name in ("warm_spread_us", "cold_spread_us"))
    return outcome, Timing(warm, next(spreads), cold, next(spreads), timings[0].method, timings[0].device)


def random_inputs(module: Any, kinds: Sequence[Kind], magnitude: float, seed: int, device: Any = "cuda") -> list[Any]:
    """Inputs of an emitted program, `magnitude` times as large as usual ones."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    tensors = [
        torch.randn(shape, device=device, generator=generator).mul_(magnitude * scale)
        for scale, (shape, _, _) in zip(module.SCALES, kinds, strict=True)
    ]
    for position in getattr(module, "ROOTS", ()):
        tensors[position] = 0.5 + torch.rand(kinds[position][0], device=device, generator=generator)
    for position, below in getattr(module, "WHOLE", {}).items():
        tensors[position] = torch.randint(below, kinds[position][0], device=device, generator=generator)
    for position, masked in getattr(module, "CAUSAL", {}).items():
        tensors[position] = causal_mask(kinds[position][0], masked, device)
    return [tensor.to(getattr(torch, dtype)) for tensor, (_, dtype, _) in zip(tensors, kinds, strict=True)]


def judging_inputs(
    module: Any, kinds: Sequence[Kind], magnitude: float, seed: int, shapes: Sequence[Shape] = (), device: Any = "cuda"
) -> tuple[list[Any], list[Any], list[float]]:
    """Random inputs, their float64 results and the errors of the library form; smaller inputs where it is no measure."""
    while True:
        tensors = random_inputs(module, kinds, magnitude, seed, device)
        wanted = [*module.reference(*tensors)]
        errors = errors_of_form(module, tensors, wanted, shapes)
        if magnitude <= 1 or not any(map(isnan, errors)):
            return tensors, wanted, errors
        magnitude /= 2


def _laid_out(module: Any, kinds: Any, tensors: Sequence[Any]) -> list[Any]:
    """The tensors with the strides that a candidate declares; those that it writes are copies."""
    import torch

    made, written = [], getattr(module, "WRITTEN", {}).values()
    for place, (tensor, (shape, _, strides)) in enumerate(zip(tensors, kinds, strict=True)):
        same = tensor.stride() == tuple(strides) and place not in written
        made.append(
            tensor if same else torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
        )
    return made


def errors_of_form(module: Any, tensors: Sequence[Any], wanted: Sequence[Any], shapes: Sequence[Shape] = ()) -> list[float]:
    """The error of each result of the library form, in the program's types.

    It is no measure, and the error NaN, where it overflows, does not run or is more wrong than `MOST_WRONG`: on large inputs
    roundings decide a softmax or what a clamp leaves, and every order of the ops is about as wrong. Of whole numbers,
    such as places in an order, most may be others then, which says nothing: the error is infinite. It is that with TF32 where
    torch's settings allow it, unless that alone is so wrong: then it is that without.
    """
    from triton.errors import TritonError

    from mirage_eg.backends.measure.tf32 import without_tf32

    def found() -> tuple[Sequence[Any], list[float]]:
        results = module.run(*_laid_out(module, tables_of(module, shapes).inputs.values(), tensors))
        results = results if isinstance(results, tuple) else (results,)
        return results, largest_errors(results, wanted)

    try:
        results, wrong = found()
        if not max(wrong, default=0.0) <= MOST_WRONG:
            with without_tf32():
                results, wrong = found()
    except (TritonError, RuntimeError):  # this form is a candidate, too: the problem is reported there
        return [nan] * len(wanted)
    errors = []
    for got, error in zip(results, wrong, strict=True):
        if got.is_floating_point():
            finite = all(bool(it.double().isfinite().all()) for it in in_parts(got))
            errors.append(error if error <= MOST_WRONG and finite else nan)
        else:
            errors.append(error if error <= MOST_WRONG else inf)
    return errors


def allowed_error(dtype: Any, own: float) -> float:
    """The error that a result of a candidate may have, where that of the library form has `own`; NaN allows nothing."""
    import torch

    if not dtype.is_floating_point:
        return max(MOST_DIFFERENT, ERROR_RATIO * own)
    own = 0.0 if isnan(own) else own
    return max(TOLERANCE[str(dtype).removeprefix("torch.")], ERROR_RATIO * own + float(torch.finfo(dtype).eps))


def largest_errors(results: Sequence[Any], wanted: Sequence[Any]) -> list[float]:
    """The largest error of each result, relative to its largest element; of whole numbers the share that differs.

    A number that is none in `got` alone is infinitely wrong; overflows are equal.
    """
    import torch

    errors = []
    for got, exact_values in zip(results, wanted, strict=True):
        if not got.numel():
            errors.append(0.0)
        elif not got.is_floating_point():
            errors.append(float((got.double() != exact_values.double()).double().mean()))
        else:
            limit, largest, difference = _NEAR_OVERFLOW * torch.finfo(got.dtype).max, 1e-30, 0.0
            for some, exact in zip(in_parts(got), in_parts(exact_values), strict=True):
                have, want = (it.double().clamp(-limit, limit) for it in (some, exact))
                largest = max(largest, float(want.abs().nan_to_num(0.0).max()))
                away = (have - want).abs().masked_fill(have.isnan() & want.isnan(), 0.0).max()
                difference = max(difference, float(away.nan_to_num(nan=inf)))
            errors.append(difference / largest)
    return errors


def in_parts(tensor: Any) -> Sequence[Any]:
    """The elements of a tensor, as many at once as are compared: float64 takes memory."""
    parts: Sequence[Any] = tensor.reshape(-1).split(PART)
    return parts
