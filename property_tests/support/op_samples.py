"""Samples of PyTorch's databases of ops and modules through import and torch.compile, compared with eager torch.

A *kind* says what is run: an element type, in-place variants, special values, modules, or torch.compile. A sample's verdict is
inside (some op is in a program), outside (none is), refused (with a message of ours), wrong, or crash; unexported if
torch or torch.export does not take it, and random if eager torch itself gives other values in a second call or leaves memory
as it is. A wrong result for special values is excused where float32 or torch itself is the reason (`excuse`).
"""

import sys
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.utils import _pytree as pytree

from mirage_eg.frontend.torch_export import import_program
from mirage_eg.ir.errors import MirageError
from property_tests.support.torch_import import AsModule

SAMPLES = 8
KINDS = ("float32", "int64", "bool", "in-place", "special", "modules", "compile")
_DTYPES = {"float32": torch.float32, "int64": torch.int64, "bool": torch.bool}
_KEEP_INFINITIES = ("max", "min", "logsumexp", "mask", "where", "clamp", "add", "mul")  # parts of names of ops
_DIM_OF_ORDER = {"sort": 0, "argsort": 0, "topk": 1}  # the place of `dim` after the input, which the indices of results order
_FATAL = {"linalg.eigvals": "numbers that are none end the process in LAPACK"}  # for eager torch 2.13, which eig refuses
_LARGE = 2.0**64  # its square is no finite number of float32
_MOVES = 4  # trials, and how many times their largest change is excused
_UNINITIALISED = ("empty", "new_empty", "resize_")  # starts of names of ops whose results nobody wrote


@dataclass(frozen=True, slots=True)
class Sample:
    """A function of tensors, which may write them, and the tensors.

    If there is a `tied` dim, the last result is an order of the elements of the first tensor along it, in which torch may
    put equal elements in any order.
    """

    function: Any
    tensors: tuple[torch.Tensor, ...]
    tied: int | None = None

    def fresh(self, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
        """Copies of the tensors with their strides; those of a floating-point type in another one, if it is given."""
        return [_copy(it if dtype is None or not it.is_floating_point() else it.to(dtype)) for it in self.tensors]


@dataclass(slots=True)
class Findings:
    """What the samples of one op gave: numbers of verdicts, what was wrong in which samples, and reasons of nodes outside."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[int]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)


def _copy(x: torch.Tensor) -> torch.Tensor:
    if x.layout is not torch.strided or x.is_quantized or (x.numel() and 0 in x.stride()):
        return x.clone()
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)


def databases() -> tuple[Sequence[Any], Sequence[Any]]:
    """Ops and modules. The base class of torch's own tests, which nothing here uses, need not be installed."""
    if "expecttest" not in sys.modules:
        try:
            import expecttest  # noqa: F401
        except ImportError:
            absent = ModuleType("expecttest")
            absent.TestCase = unittest.TestCase  # type: ignore[attr-defined]
            sys.modules["expecttest"] = absent
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.common_modules import module_db
    return op_db, module_db


def subjects(kind: str) -> dict[str, Any]:
    """The ops or modules of a kind, by name."""
    ops, modules = databases()
    if kind == "modules":
        return {it.name: it for it in modules}
    dtype = _DTYPES.get(kind, torch.float32)
    taken = [it for it in ops if dtype in it.dtypes and (kind != "in-place" or it.inplace_variant is not None)]
    return {f"{it.name}.{it.variant_test_name}".rstrip("."): it for it in taken}


def tenth(kind: str) -> dict[str, Any]:
    """Every tenth op or module of a kind, always the same ones."""
    return dict(sorted(subjects(kind).items())[KINDS.index(kind) :: 10])


def samples_of(kind: str, subject: Any) -> Iterator[Sample]:
    """The first samples of an op or module."""
    torch.manual_seed(0)
    if kind == "modules":
        for given in _module_inputs(subject):
            module = subject.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs).eval()
            yield _sample(module, given.forward_input.args, given.forward_input.kwargs)
        return
    dtype = _DTYPES.get(kind, torch.float32)
    op = subject.inplace_variant if kind == "in-place" else subject.op
    limit = {"compile": 4, "special": len(_SPECIAL)}.get(kind, SAMPLES)
    for number, one in enumerate(islice(subject.sample_inputs("cpu", dtype), limit)):
        if kind == "in-place" and one.broadcasts_input:
            continue
        sample = replace(_sample(op, (one.input, *one.args), one.kwargs), tied=tied_dim(subject.name, one.args, one.kwargs))
        yield _with_special_values(sample, number) if kind == "special" else sample


def tied_dim(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """The dim of an order whose ties torch leaves open."""
    place = _DIM_OF_ORDER.get(name)
    if place is None or kwargs.get("stable"):
        return None
    return int(kwargs.get("dim", args[place] if len(args) > place else -1))


def _module_inputs(subject: Any) -> list[Any]:
    given = subject.module_inputs_func(subject, device="cpu", dtype=torch.float32, requires_grad=False, training=False)
    return [it for it in given if it.forward_input is not None][:SAMPLES]


def _sample(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sample:
    """A call as a function of its tensors alone."""
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
    leaves = [it.detach() if isinstance(it, torch.Tensor) else it for it in leaves]
    places = [place for place, it in enumerate(leaves) if isinstance(it, torch.Tensor)]

    def of_tensors(*tensors: Any) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        args, kwargs = pytree.tree_unflatten(filled, structure)
        return function(*args, **kwargs)

    made = AsModule(of_tensors)
    if isinstance(function, torch.nn.Module):
        made.called = function
    return Sample(made.eval(), tuple(leaves[place] for place in places))


_INF, _NAN = float("inf"), float("nan")
_SPECIAL = (
    (_NAN, _INF, -_INF, 0.0, -0.0, 1e-40, 1e38, -1e38),
    (_INF, -_INF),
    (_NAN,),
    (0.0, -0.0, 1e-40, -1e-42),
    (1e38, -1e38, 1e-38),
)


def _with_special_values(sample: Sample, number: int) -> Sample:
    """A third of the elements of floating-point tensors replaced: by all special values, or by those of one kind."""
    generator, chosen = torch.Generator().manual_seed(number), torch.tensor(_SPECIAL[number % len(_SPECIAL)])

    def replaced(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point() or x.layout is not torch.strided:
            return x
        special = chosen[torch.randint(len(chosen), x.shape, generator=generator)].to(x.dtype)
        return torch.where(torch.rand(x.shape, generator=generator) < 0.34, special, x)

    return replace(sample, tensors=tuple(map(replaced, sample.tensors)))


def check(kind: str, subject: Any) -> Findings:
    """Run the samples of an op or module."""
    found = Findings()
    run = _compiled if kind == "compile" else _imported
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for number, sample in enumerate(samples_of(kind, subject)):
            verdict, what = _checked(run, sample, str(getattr(subject, "name", "")), found, special=kind == "special")
            found.counts[verdict] += 1
            if verdict in ("wrong", "crash", "refused", "unexported", "excused"):
                found.faults.setdefault(f"{verdict}: {what}", []).append(number)
    return found


_Run = Callable[[Sample, Findings, list[torch.Tensor]], tuple[str, Any]]


class Unexported(Exception):
    """torch.export does not take a function."""


def _checked(run: _Run, sample: Sample, name: str, found: Findings, *, special: bool) -> tuple[str, str]:
    torch.manual_seed(0)
    wanted_tensors, got_tensors = sample.fresh(), sample.fresh()
    if name in _FATAL and not all(it.isfinite().all() for it in wanted_tensors):
        return "unexported", f"eager: {_FATAL[name]}"
    try:
        wanted = sample.function(*wanted_tensors)
    except Exception as error:  # noqa: BLE001 - a sample that torch itself does not take
        return "unexported", f"eager: {_line(error)}"
    if name.startswith(_UNINITIALISED) or _is_random(sample):
        return "random", ""
    try:
        verdict, got = run(sample, found, got_tensors)
    except Unexported as error:
        return "unexported", str(error)
    except MirageError as error:
        return "refused", _line(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        return "crash", _line(error)
    exact_tensors = sample.fresh(torch.float64)
    try:
        exact = sample.function(*exact_tensors)
    except Exception:  # noqa: BLE001 - torch does not take every op in float64 with the other arguments
        exact, exact_tensors = wanted, wanted_tensors
    keeps = any(part in name for part in _KEEP_INFINITIES)
    how = {"special": special, "strides": run is _compiled, "by_norm": name.startswith("linalg."), "keeps": keeps}

    def right(*results: Any) -> bool:
        return not differs(*results, **how)

    for what, ours, torchs, exacts in (
        ("result", *(ranks(it, sample) for it in (got, wanted, exact))),
        ("argument", got_tensors, wanted_tensors, exact_tensors),
    ):
        if why := differs(ours, torchs, exacts, **how):
            excused = special and what == "result" and excuse(sample, ours, torchs, exacts, right)
            return ("excused", excused) if excused else ("wrong", f"{what}: {why}")
    if run is _compiled and (why := _aliases_differ(got, got_tensors, wanted, wanted_tensors)):
        return "wrong", why
    return verdict, ""


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:250]}"


def _is_random(sample: Sample) -> bool:
    """Whether eager torch gives other values under another seed; ops of the database set one themselves.

    Few places that are drawn may be the same ones for two seeds.
    """

    def result(seed: int) -> Any:
        torch.manual_seed(seed)
        tensors = sample.fresh()
        with patch.object(torch, "manual_seed"):
            return sample.function(*tensors), tensors

    first = result(1)
    return any(differs(first, other, other, special=False, strides=False) for other in map(result, range(2, 6)))


def _imported(sample: Sample, found: Findings, tensors: list[torch.Tensor]) -> tuple[str, Any]:
    try:
        program = torch.export.export(sample.function, tuple(sample.fresh()), strict=False)
    except Exception as error:  # noqa: BLE001 - torch's own limits, whatever they raise
        raise Unexported(_line(error)) from None
    model = import_program(program)
    found.reasons.update(f"{it.op}: {it.reason}" for it in model.outside)
    return "inside" if model.segments or not model.outside else "outside", model.run(*tensors)


def excuse(sample: Sample, got: Any, wanted: Any, exact: Any, right: Callable[[Any, Any, Any], bool]) -> str:
    """Why a result for special values may differ from torch's; empty if nothing excuses it.

    - range: an input is so large that its square overflows, and where we are not finite our program is right in float64;
    - cancellation: an input is so large, and changes of inputs by 2⁻²³ of themselves move torch's float64 result as far;
    - decomposition: torch's own decomposition of the op differs from its kernel as we do.
    """
    wide = Sample(sample.function, tuple(sample.fresh(torch.float64)))
    floats = [it for it in wide.tensors if it.is_floating_point() and it.layout is torch.strided]
    if any((it[it.isfinite()].abs() > _LARGE).any() for it in floats):
        try:
            ours = _imported(wide, Findings(), wide.fresh())[1]
        except (MirageError, Unexported):
            return ""
        if right(_replaced(lambda x, y: ~x.isfinite(), got, ours), wanted, exact):
            return "range"
        moved = [sample.function(*_moved(wide, seed)) for seed in range(_MOVES)]
        if right(_replaced(_as_near_as_moved, got, exact, *moved), wanted, exact):
            return "cancellation"
    try:
        decomposed = torch.export.export(sample.function, tuple(sample.fresh()), strict=False).run_decompositions().module()
    except Exception:  # noqa: BLE001 - torch's own limits, whatever they raise
        return ""
    result = decomposed(*sample.fresh())
    return "decomposition" if right(got, result, result) else ""


def _replaced(chosen: Callable[..., torch.Tensor], got: Any, *others: Any) -> list[Any]:
    """The leaves of a result, with the elements of the first of the others where `chosen` of all is true."""
    made = []
    for x, *ys in zip(*map(pytree.tree_leaves, (got, *others)), strict=False):
        alike = all(isinstance(it, torch.Tensor) and it.is_floating_point() for it in (x, *ys)) and x.shape == ys[0].shape
        made.append(torch.where(chosen(x, *ys), ys[0], x).to(x.dtype) if alike else x)
    return made


def _moved(sample: Sample, seed: int) -> list[torch.Tensor]:
    """The tensors, each floating-point number moved by at most the distance of float32 to the next."""
    generator = torch.Generator().manual_seed(seed)
    return [
        it * (1 + 2.0**-23 * (2 * torch.rand(it.shape, generator=generator, dtype=it.dtype) - 1))
        if it.is_floating_point() and it.layout is torch.strided
        else it
        for it in sample.fresh()
    ]


def _as_near_as_moved(x: torch.Tensor, exact: torch.Tensor, *moved: torch.Tensor) -> torch.Tensor:
    return (x - exact).abs() <= _MOVES * torch.stack([(it - exact).abs() for it in moved]).amax(0)


def _compiled(sample: Sample, found: Findings, tensors: list[torch.Tensor]) -> tuple[str, Any]:
    from mirage_eg.torch_compile.backend import backend
    from mirage_eg.torch_compile.records import forget_records, graph_records

    torch._dynamo.reset()
    forget_records()
    options = {"search": "offline", "rest": "eager", "min_ops": 1, "gate": "off"}
    got = torch.compile(sample.function.function, backend=backend, options=options)(*tensors)
    for graph in graph_records():
        found.reasons.update(f"{it.op}: {it.reason}" for it in graph.outside)
        if graph.fallback:
            found.reasons[f"whole graph: {graph.fallback}"] += 1
        errors = [graph.fallback if graph.unexpected else "", *(it.reason for it in graph.segments if it.decision == "error")]
        if any(errors):
            raise AssertionError(next(filter(None, errors)))
    return "inside" if any(graph.segments for graph in graph_records()) else "outside", got


def ranks(result: Any, sample: Sample) -> Any:
    """A result with ranks of the elements in the place of their indices if ties may be in any order; wrong indices remain."""
    leaves = pytree.tree_leaves(result)
    if sample.tied is None or not leaves or not isinstance(leaves[-1], torch.Tensor):
        return result
    x, places = (it.movedim(sample.tied, -1) if it.ndim else it for it in (sample.tensors[0], leaves[-1]))
    if not x.ndim or places.shape[:-1] != x.shape[:-1] or places.dtype is not torch.int64:
        return result
    found = torch.empty_strided(places.shape, places.stride(), dtype=places.dtype)
    for row in np.ndindex(*x.shape[:-1]):
        chosen = places[row].tolist()
        if len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(x.shape[-1])):
            return result
        _, equal = np.unique(x[row].numpy(), return_inverse=True)  # not-a-numbers are equal
        found[row] = torch.from_numpy(equal)[places[row]]
    return [*leaves[:-1], found.movedim(-1, sample.tied)]


def differs(
    got: Any, wanted: Any, exact: Any, *, special: bool, strides: bool, by_norm: bool = False, keeps: bool = True
) -> str:
    """How a result differs from torch's, and from torch's in float64; empty if it does not.

    With `special`, by the contract for numbers that are none (docs/explanation), with `keeps` infinities are the same ones.
    With `by_norm`, errors are relative to the largest finite element, as those of the algorithms of linear algebra are.
    """
    ours, structure = pytree.tree_flatten(got)
    torchs, other = pytree.tree_flatten(wanted)
    exacts = pytree.tree_leaves(exact)
    if len(ours) != len(torchs) or len(exacts) != len(torchs):
        return f"got the structure {structure}, wanted {other}"
    for x, y, z in zip(ours, torchs, exacts, strict=True):
        if not isinstance(y, torch.Tensor):
            if x != y and not (x != x and y != y):
                return f"got {x!r}, wanted {y!r}"
        elif why := _tensor_differs(x, y, z if isinstance(z, torch.Tensor) else y, special, strides, by_norm, keeps):
            return why
    return ""


def _tensor_differs(x: Any, y: torch.Tensor, z: torch.Tensor, special: bool, strides: bool, by_norm: bool, keeps: bool) -> str:
    if not isinstance(x, torch.Tensor):
        return f"got {type(x).__name__}, wanted a tensor"
    if x.shape != y.shape or x.dtype != y.dtype or x.layout != y.layout:
        return f"got {list(x.shape)} {x.dtype}, wanted {list(y.shape)} {y.dtype}"
    if strides and x.layout is torch.strided and x.numel() and x.stride() != y.stride():
        return f"got the strides {x.stride()}, wanted {y.stride()}"
    if y.layout is not torch.strided:
        x, y, z = x.to_dense(), y.to_dense(), z.to_dense()
    if y.is_quantized:
        x, y, z = x.dequantize(), y.dequantize(), z.dequantize()
    if not (y.is_floating_point() or y.is_complex()):
        return "" if torch.equal(x, y) or (special and torch.equal(x, z)) else f"got {_some(x, y, x != y)}"
    if z.shape != y.shape:
        z = y
    wide = torch.complex128 if y.is_complex() else torch.float64
    x, y, z = x.to(wide), y.to(wide), z.to(wide)
    if y.is_complex():
        x, y, z = (torch.view_as_real(it.resolve_conj()) for it in (x, y, z))
    least = max([1.0, *y[y.isfinite()].abs().tolist()]) if by_norm else 1.0
    near = _near(x, y, least) | _near(x, z, least)
    if special:
        near |= ~y.isfinite() & ~x.isfinite() & (y.isnan() | ~z.isinf() | (not keeps))
    return "" if near.all() else f"got {_some(x, y, ~near)}"


def _near(x: torch.Tensor, y: torch.Tensor, size: float) -> torch.Tensor:
    return torch.isclose(x, y, 1e-4, 1e-5 * size, equal_nan=True)


def _some(x: torch.Tensor, y: torch.Tensor, bad: torch.Tensor) -> str:
    place = tuple(bad.nonzero()[0].tolist())
    return f"{x[place].item()}, wanted {y[place].item()} at {place}; {int(bad.sum())} of {bad.numel()} elements"


def _aliases_differ(got: Any, got_tensors: Sequence[Any], wanted: Any, wanted_tensors: Sequence[Any]) -> str:
    ours, torchs = (_aliases(*pair) for pair in ((got, got_tensors), (wanted, wanted_tensors)))
    return "" if ours == torchs else f"aliases: got {ours}, wanted {torchs}"


def _aliases(result: Any, tensors: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """For each result the arguments whose memory it has."""
    return [
        tuple(place for place, it in enumerate(tensors) if _memory(it) == _memory(one) is not None)
        for one in pytree.tree_leaves(result)
        if isinstance(one, torch.Tensor)
    ]


def _memory(x: torch.Tensor) -> int | None:
    if x.layout is not torch.strided or not x.numel():
        return None
    return x.untyped_storage().data_ptr()
