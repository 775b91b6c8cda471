"""The keys of segments in the cache: all that a result depends on, with the program itself.

A key that was read from a file says what the program is; whether kernels compute it is another question (`check_entry`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mirage_eg.backends.cost.devices import closest_device
from mirage_eg.backends.measure.timing import gpu_available, gpu_name, gpu_target
from mirage_eg.ir.at_sizes import at_sizes, dims_of
from mirage_eg.ir.deadline import NEVER, Deadline
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.json_text import parse_json
from mirage_eg.ir.serialize import from_json, to_json
from mirage_eg.ir.sizes import Dim, SizeRange
from mirage_eg.pipeline.bucket_ranges import largest_sizes, searched_sizes
from mirage_eg.pipeline.loop_sizes import with_loops
from mirage_eg.pipeline.program_form import form_of
from mirage_eg.pipeline.run.cache import ResultCache, entry_of, key_of
from mirage_eg.pipeline.run.cache_lookup import identity
from mirage_eg.pipeline.run.code_hash import code_hash
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import Candidate, Wanted
from mirage_eg.torch_compile.settings import Settings

Key = Mapping[str, Any]


def options_of(settings: Settings, until: Deadline = NEVER) -> tuple[Options, bool]:
    """The options of the search of a segment that ends `until`, and whether the key names the GPU here."""
    budget = None if until == NEVER else max(until.left(), 1e-6)
    top = 4 if settings.tune else 1  # µGraphs that are verified: the gate takes the first
    options = Options(budget=budget, top=top, device="cpu", cache=False, undefined="keep", not_finite=settings.not_finite)
    if not gpu_available():
        return options, False
    here = closest_device(gpu_name(), gpu_target())
    target = None if here is not None else gpu_target()
    return replace(options, device="cuda" if settings.tune else "cpu", gpu=here, target=target), True


def key_of_segment(
    program: Graph, options: Options, on_gpu: bool, settings: Settings, largest: Mapping[str, Sequence[int]]
) -> Key:
    """The key of a program; one with named dims has the `largest` sizes of its buckets."""
    key = key_of(identity("", program, options), on_gpu=on_gpu, budget=None)
    sized = {"largest": {name: list(sizes) for name, sizes in largest.items()}} if largest else {}
    gate = {"gate": "time"} if is_timed(settings) else {}  # the search ends early where that cannot be won
    return key | {"segment": to_json(program), "tune": settings.tune, "verify": settings.verify} | gate | sized


def request_for(program: Graph, settings: Settings, until: Deadline) -> tuple[Options, bool, Key, Graph]:
    """The options of a program's search, whether its key names the GPU here, the key, and the program at the sizes searched."""
    options, on_gpu = options_of(settings, until)
    dims = dims_of(program)
    largest = largest_sizes(dims, named_buckets(dims, settings)) if dims else {}
    key = key_of_segment(program, options, on_gpu, settings, largest)
    return options, on_gpu, key, at_searched_sizes(program, largest)


def wanted_by(settings: Settings, others: bool = False) -> Wanted:
    """What the backend shows of a search, which with `others` serves other sizes, too: reports have all; proofs are evidence
    where the settings ask for them."""
    others |= settings.report is not None
    winning = is_timed(settings) and not others
    return Wanted(diagnosis=settings.report is not None, proofs=settings.verify == "proved", others=others, winning=winning)


def is_timed(settings: Settings) -> bool:
    """Whether the gate times kernels against Inductor's code, and nothing has timed them before."""
    return settings.gate in ("auto", "time") and not settings.tune and gpu_available()


def title_of(name: str) -> str:
    """The name of a segment's run."""
    return f"segment {name[:12]}"


def longer_of(searched: Graph, settings: Settings, weights: Collection[int]) -> Graph | None:
    """The program whose search serves sizes that may follow, too; None for one of its own sizes alone."""
    return None if settings.tune or settings.search == "always" else with_loops(searched, weights)


def form_of_key(key: Key, program: Graph, weights: Collection[int]) -> str:
    """The name of a program's form: other sizes of it have the same, but for inputs numbered `weights`."""
    besides = {name: value for name, value in key.items() if name not in ("graph", "segment", "largest")}
    return hash_of({**besides, "form": form_of(program, weights)})


def named_buckets(dims: Mapping[str, Dim], settings: Settings) -> list[dict[str, int]]:
    """The ends of buckets that the settings name and that are sizes of these dims."""
    named = settings.buckets or {}
    return [{name: end} for name, dim in dims.items() for end in named.get(name, ()) if dim.min <= end <= dim.max]


def hash_of(key: Key) -> str:
    """The name of a key's entry."""
    return ResultCache(Path()).path(key).stem


def key_in(path: Path) -> Key | None:
    """The key in the first line of an entry; None if it has none."""
    try:
        with open(path, encoding="utf-8") as file:
            key = parse_json(file.readline(), infinities=True)["key"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return key if isinstance(key, dict) and isinstance(key.get("segment"), str) else None


def at_searched_sizes(program: Graph, largest: Mapping[str, Sequence[int]]) -> Graph:
    """The program at the sizes at which one with these largest sizes of buckets is searched."""
    dims = dims_of(program)
    return at_sizes(program, searched_sizes(dims, largest)) if dims else program


def is_good(key: Key) -> Callable[[Candidate], bool]:
    """Whether a candidate has fused kernels with the evidence that a key names, for all inputs that its program takes."""

    def good(entry: Candidate) -> bool:
        kept = entry.compile.compiles and not entry.float_check.leaves_domain
        return bool(entry.fused and kept) and (key["verify"] == "tested" or entry.proved)

    return good


def check_entry(content: bytes, key: Key) -> None:
    """Hold the kernels of an entry against its program, if it is of a segment and this version can use it.

    Raises:
        UnusableEntry: it is damaged, or wrong.
        MirageError: its key is not that of a segment.
    """
    if key.get("code") != code_hash() or not isinstance(key.get("segment"), str):
        return
    program, searched, ranges = programs_of(key)
    if ranges is None:
        entry_of(content, key, searched, used=is_good(key))
    else:
        entry_of(content, key, program, ranges)


def programs_of(key: Key) -> tuple[Graph, Graph, dict[str, SizeRange] | None]:
    """The program of a segment's key, the one at the sizes at which it is searched, and the ranges of a bucket's sizes.

    Raises MirageError: the key is no segment's.
    """
    program = from_json(key["segment"])
    dims, largest, spans = dims_of(program), key.get("largest", {}), key.get("bucket")
    if key.get("verify") not in ("tested", "proved") or not _has_sizes(largest, dims):
        raise MirageError("the key is not that of a segment")
    if spans is None:
        return program, at_searched_sizes(program, largest), None
    if not _has_sizes(spans, dims) or not all(len(span) == 3 for span in spans.values()):
        raise MirageError("the key is not that of a bucket of sizes")
    return program, program, {name: SizeRange(*span) for name, span in spans.items()}


def _has_sizes(value: Any, dims: Mapping[str, Dim]) -> bool:
    """Whether a value gives some sizes for each of these dims."""
    return (
        isinstance(value, dict)
        and value.keys() == dims.keys()
        and all(
            isinstance(sizes, list) and sizes and all(type(size) is int and size > 0 for size in sizes)
            for sizes in value.values()
        )
    )
