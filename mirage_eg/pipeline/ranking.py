"""The ranking of µGraphs, the library form included: by time, measured on a GPU or else predicted.

A µGraph that was not compiled ranks as one that compiles.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from math import inf

from mirage_eg.backends.cost.compiled_form import compiled_us
from mirage_eg.backends.cost.devices import Device
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.weights import prepared_values
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import Behind, Candidate


def ordered(candidates: Sequence[Candidate], options: Options) -> list[Candidate]:
    """The candidates, fastest first; of equally fast ones first those without overflow, then, by prediction, fewer kernels if
    they take no longer than as many launches, then those that keep no functions of weights.

    After all others, in this order: µGraphs that do not compile, that fail the float check, that have more kernels than
    `max_kernels`, that have no generated kernel although grids are given, that were not measured although others were. With
    `prefer_few_kernels` the number of kernels comes before time.
    """
    return [
        candidate
        for equally_fast in _in_groups(candidates, options)
        for candidate in sorted(equally_fast, key=_among_equals(equally_fast))
    ]


def on_which_the_first_depends(candidates: Sequence[Candidate], options: Options) -> list[Candidate]:
    """The first of the candidates and the fastest of its equals: if both compile, it is the first whether others do or not."""
    group = next(_in_groups(candidates, options), [])
    return [*{id(it): it for it in (min(group, key=_among_equals(group)), group[0])}.values()] if group else []


def behind(best_us: float, program: Graph, device: Device) -> Behind | None:
    """Why the best µGraph of a program, of predicted `best_us`, cannot win against Inductor's code; None if it may."""
    if best_us == inf or best_us < HEURISTICS.behind * (within_us := compiled_us(program, device)):
        return None
    return Behind(best_us, within_us)


def _in_groups(candidates: Sequence[Candidate], options: Options) -> Iterator[list[Candidate]]:
    """The candidates in groups of equally fast ones, the fastest of each first."""
    measured = any(candidate.measured_us is not None for candidate in candidates)

    def grade(candidate: Candidate) -> tuple[bool, bool, bool, bool, bool, int]:
        return (
            not candidate.compile.ok,
            not candidate.float_check.ok,
            exceeds(candidate, options),
            options.griddims is not None and not candidate.fused,
            measured and candidate.measured_us is None,
            candidate.kernels if options.prefer_few_kernels else 0,
        )

    for _, alike in groupby(sorted(candidates, key=grade), grade):
        yield from _by_time([*alike], HEURISTICS.close_measured if measured else HEURISTICS.close)


def _among_equals(group: Sequence[Candidate]) -> Callable[[Candidate], tuple[bool, int, bool, float]]:
    """The order of equally fast candidates; a kernel less is worth a few microseconds of prediction."""
    least = min(candidate.us for candidate in group)

    def order(candidate: Candidate) -> tuple[bool, int, bool, float]:
        slower = 0 if candidate.us == inf else int((candidate.us - least) / HEURISTICS.kernel_us)
        kernels = candidate.kernels + slower if candidate.measured_us is None else 0
        return candidate.float_check.overflows, kernels, bool(prepared_values(candidate.graph)), candidate.us

    return order


def exceeds(candidate: Candidate, options: Options) -> bool:
    """Whether it has more kernels than asked for."""
    return options.max_kernels is not None and candidate.kernels > options.max_kernels


def _by_time(candidates: Sequence[Candidate], close: float) -> list[list[Candidate]]:
    """Fastest first, in groups: each those within the factor `close` of the fastest that is left."""
    groups: list[list[Candidate]] = []
    for candidate in sorted(candidates, key=lambda candidate: candidate.us):
        if groups and candidate.us <= close * groups[-1][0].us:
            groups[-1].append(candidate)
        else:
            groups.append([candidate])
    return groups


def notes_on(candidates: Sequence[Candidate], options: Options, others: Sequence[float] = ()) -> list[str]:
    """What a reader should know of the first: that it rounds wrong, has too many kernels, or is the library form though fused
    µGraphs were found; `others` are the predicted times of those that were found and not kept."""
    first, notes = candidates[0], list[str]()
    if not first.float_check.ok:
        notes.append(f"the first equals the program in exact numbers; as its types round them: {first.float_check.problem}")
    if exceeds(first, options):
        notes.append(
            f"no µGraph of at most {options.max_kernels} kernels was found (--max-kernels): the first has {first.kernels}"
        )
    fused = [candidate.us for candidate in candidates if candidate.fused and candidate.compile.ok and candidate.float_check.ok]
    if not first.fused and (slower := min([*fused, *([] if fused else others)], default=None)) is not None:
        notes.append(
            f"the first runs on library kernels, {first.kernels} in {first.us:.1f} µs; "
            f"the fastest fused µGraph that was found takes {slower:.1f} µs"
        )
    return notes
