"""Found kernels of segments: in memory, and as entries of the result cache that a second process or machine can use.

The key of a segment is the hash of all that its result depends on: program with types and strides, options, laws, versions of
this package and its dependencies, device. An entry contains its program, so that a saved model needs only the key. Reading one
executes nothing: it is JSON, and of an entry that this machine neither made nor checked a source that differs from the one
emitted again from its graph is refused.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_eg.backends.cost.devices import Device
from mirage_eg.backends.evaluator.cpu_threads import OverdueError, ending
from mirage_eg.ir.at_sizes import at_sizes, dims_of
from mirage_eg.ir.deadline import NEVER, Deadline
from mirage_eg.ir.errors import MirageError, UnsupportedError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.sizes import SizeRange
from mirage_eg.pipeline.bucket_ranges import searched_sizes
from mirage_eg.pipeline.program_form import vector_products
from mirage_eg.pipeline.run.cache import OFF, CacheEntry, ResultCache, chosen_cache, now
from mirage_eg.pipeline.run.json_codec import dumps
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import Behind, Candidate, Result
from mirage_eg.torch_compile.begun_searches import BegunSearches
from mirage_eg.torch_compile.gate_findings import GateFindings
from mirage_eg.torch_compile.kept_records import Kept, kept_record, write_kept
from mirage_eg.torch_compile.records import LOGGER
from mirage_eg.torch_compile.segment_keys import (
    Key,
    at_searched_sizes,
    form_of_key,
    hash_of,
    is_good,
    key_in,
    key_of_segment,
    longer_of,
    options_of,
    programs_of,
    request_for,
    title_of,
    wanted_by,
)
from mirage_eg.torch_compile.settings import Settings, budget_spent

if TYPE_CHECKING:
    from mirage_eg.optimizer.tune import Tuning
    from mirage_eg.pipeline.other_sizes import OtherSizes
    from mirage_eg.pipeline.region_records import RegionSearch

FORMS = "forms"  # a folder of the cache: for each form of a program a folder with a file for each segment that was searched


@dataclass(frozen=True)
class FoundSegment:
    """The result of the search for one segment's program; `candidate` is the kernel to use, None if no fused one is good.

    `data` is what `key` is the hash of, without `tune` if it was not tuned. A program with named dims has the `largest` sizes
    of its buckets; its candidate is that of the sizes at which it was searched. A segment of one bucket has the `ranges` of its
    sizes. `note`: why it was searched though other sizes had been, or was not tuned.
    """

    key: str
    data: Key
    program: Graph
    result: Result
    candidate: Candidate | None
    device: Device
    from_cache: bool
    largest: Mapping[str, Sequence[int]] = field(default_factory=dict)
    ranges: Mapping[str, SizeRange] = field(default_factory=dict)
    note: str = ""

    @property
    def cut(self) -> bool:
        """Whether the budget ended its search before there was a kernel."""
        return self.candidate is None and self.result.cut

    @property
    def refused(self) -> bool:
        """Whether the tuner ran fused kernels, and none was right; `grid` has an entry for each generated kernel."""
        fused = [it for it in self.result.measurements if it.grid and it.outcome.tried]
        return bool(fused) and all(it.us is None for it in fused)

    @cached_property
    def behind(self) -> Behind | None:
        """The predicted times where its kernels cannot win against Inductor's code, those of a search that ended so first."""
        if self.result.behind is not None or self.candidate is None or self.largest:
            return self.result.behind
        from mirage_eg.pipeline.ranking import behind

        return behind(self.candidate.us, self.program, self.device)

    @cached_property
    def library_us(self) -> float:
        """The predicted time of the program with one library kernel an op, at the largest sizes."""
        from mirage_eg.backends.cost.roofline_model import predict_us

        sizes = {name: values.largest for name, values in self.ranges.items()}
        return predict_us(at_sizes(self.program, sizes) if sizes else self.program, self.device)


@dataclass(frozen=True, slots=True)
class WantedSegment:
    """A segment that has no kernels yet: `searched` is its program at the sizes of its search; one with buckets is `sized`.

    The `settings` have the seconds of tuning that are its own, or those of a bucket.
    """

    name: str
    form: str
    searched: Graph
    sized: bool
    settings: Settings
    options: Options
    until: Deadline
    on_gpu: bool
    observer: Callable[..., None]

    @property
    def tuning(self) -> "Tuning | None":
        """How its search is tuned; where it has buckets, these are tuned instead."""
        return None if self.sized else _tuning(self.settings)

    def from_search(self, earlier: FoundSegment, loops: bool) -> Result | None:
        """The result of the search for `earlier` at these sizes, tuned if the settings say so.

        `loops`: not where a search would find loops that the earlier one could not.
        """
        from mirage_eg.pipeline.other_sizes import OtherSizes  # loads egglog and Triton

        sizes = OtherSizes(earlier.result, _as_searched(earlier), self.searched, self.options, until=self.until)
        if self.sized:
            with ending(self.until):
                return sizes.structures(loops=loops)
        if self.on_gpu and self.tuning is not None:
            return sizes.tuned(title_of(self.name), self.observer, self.tuning, wanted_by(self.settings))
        with ending(self.until):
            return sizes.tiled(proved=self.settings.verify == "proved", loops=loops)


class SegmentStore:
    """The segments of one folder (None: of this process alone)."""

    def __init__(self, cache: ResultCache | None) -> None:
        self.cache = cache
        self.searches = 0
        self._found: dict[str, FoundSegment] = {}
        self._forms: dict[str, dict[str, FoundSegment]] = {}  # those that were searched, by their keys
        self._unusable: set[str] = set()  # segments of forms that the cache has no usable entry of
        self._sizes: dict[tuple[str, bool], OtherSizes] = {}  # of segments with named dims, and whether buckets are tuned
        self.begun: BegunSearches | None = None

    def find(
        self,
        program: Graph,
        settings: Settings,
        observer: Callable[..., None],
        weights: Collection[int] = (),
        other_sizes: bool = False,
        until: Deadline = NEVER,
        tune: float = inf,
    ) -> FoundSegment | None:
        """The kernels of a program, by a search if the settings allow one; None if there are none and no search is allowed.

        Structures that were found for the same program at other sizes serve again, without a search. The sizes of the inputs
        numbered `weights` are the same there. With `other_sizes`, the search serves longer ones, too (`with_loops`).
        What the budget ended is not kept, unless it has a kernel. Tuning takes `tune` seconds at most.

        Raises OverdueError: it is not there at `until`.
        """
        options, on_gpu, key, searched = request_for(program, settings, until)
        own = _tuned_in(settings, tune)
        for each in () if settings.search == "always" else _keys(key, own):
            if (known := self._known(each, program, searched, options.device_record)) is not None:
                return known
        name, form = hash_of(key), form_of_key(key, program, weights)
        wanted = WantedSegment(name, form, searched, bool(dims_of(program)), own, options, until, on_gpu, observer)
        result, note = None, ""
        if settings.search != "always":
            result, note = self._from_other_sizes(wanted)
        if result is None and settings.search == "offline":
            return None
        longer = longer_of(searched, settings, weights) if result is None and not note and other_sizes else None
        if longer is not None:
            longer_key = key_of_segment(longer, options, on_gpu, settings, {})
            if self._search_for_form(wanted, longer_key, longer, longer).candidate is not None:
                result, note = self._from_other_sizes(wanted)
        if result is None:
            found = self._search_for_form(wanted, key, program, searched)
            found = replace(found, note=note or found.note)
            if found.key in self._found:
                self._found[found.key] = found
            return found
        return self._kept(_keys(key, own)[-1], program, result, options)

    def may_have(self, key: Key, form: str) -> bool:
        """Whether there may be kernels of this key or form, without a search; entries are not read."""
        name = hash_of(key)
        places = () if self.cache is None else (self.cache.path(key), self.cache.folder / FORMS / form)
        return name in self._found or bool(self._forms.get(form)) or any(place.exists() for place in places)

    def _search_for_form(self, wanted: WantedSegment, key: Key, program: Graph, searched: Graph) -> FoundSegment:
        """The segment of a search at the sizes of `searched`, which later programs of the form use."""
        settings, options = wanted.settings, wanted.options
        with nullcontext() if self.cache is None else self.cache.alone(key, wanted.until):
            known = None if settings.search == "always" else self._known(key, program, searched, options.device_record)
            if known is not None:  # of another process, meanwhile
                found = known
            else:
                found = self._searched(wanted, key, program, searched)
                self.searches += 1
                if found.cut:
                    return found
                found = replace(self._kept(found.data, program, found.result, options), note=found.note)
            self._found[found.key] = found
            self._keep_form(wanted.form, found)
        return found

    def _searched(self, wanted: WantedSegment, key: Key, program: Graph, searched: Graph) -> FoundSegment:
        """What a worker finds, or this process; where its tuning has no kernel in time, what a worker verified, with a note.

        Where the tuner ran fused kernels and refused all of them, none of the worker's is taken. The key says so.

        Raises OverdueError: there is nothing in time.
        """
        name, tune = hash_of(key), 0.0 if wanted.tuning is None else wanted.settings.tune
        result = None if self.begun is None else self.begun.result(name, wanted.until)
        ahead = None if self.begun is None else self.begun.ahead(name)
        if result is None and not wanted.until.passed() and (ahead is None or wanted.tuning is not None):
            options = options_of(wanted.settings, wanted.until)[0]
            with nullcontext() if ahead is None else suppress(OverdueError):
                result = search_segment(
                    name, searched, replace(wanted, options=options), () if ahead is None else ahead.regions
                )
        key = _keys(key, wanted.settings)[-1]
        found = None if result is None else _found(key, program, result, wanted.options.device_record, from_cache=False)
        if ahead is not None and (found is None or (found.candidate is None and not found.refused)):
            untuned, note = ahead.untuned(wanted.until.later(tune)), ""
            if untuned is not None:
                if not wanted.sized:  # else its buckets are tuned
                    key, note = _untuned(key), f"not tuned: {budget_spent(wanted.settings)}"
                found = _found(key, program, untuned, wanted.options.device_record, from_cache=False)
                return replace(found, note=note)
        if found is None:
            raise OverdueError
        return found

    def _known(self, key: Key, program: Graph, searched: Graph, device: Device) -> FoundSegment | None:
        name = hash_of(key)
        if name not in self._found and (entry := self._entry(key, searched)) is not None:
            self._found[name] = _found(key, program, entry.result, device, from_cache=True)
        return self._found.get(name)

    def _entry(self, key: Key, searched: Graph, alone: bool = False) -> CacheEntry | None:
        return None if self.cache is None else self.cache.find(key, searched, used=is_good(key), alone=alone)

    def _kept(self, key: Key, program: Graph, result: Result, options: Options) -> FoundSegment:
        found = self._found[hash_of(key)] = _found(key, program, result, options.device_record, from_cache=False)
        if self.cache is not None:
            self.cache.keep(key, replace(result, measurements=()), now())
        return found

    def _from_other_sizes(self, wanted: WantedSegment) -> tuple[Result | None, str]:
        """The result of an earlier search for the same program at other sizes; with tiles for these unless it has buckets.

        A search with other products with vectors serves only if no search is allowed. The first poor result of a form is not
        taken, for a reason: the program needs a search of its own.
        """
        earlier, vectors = self._of_form(wanted.form), vector_products(wanted.searched)
        offline = wanted.settings.search == "offline"
        alike = [it for it in earlier if vector_products(_as_searched(it)) == vectors]
        alike.sort(key=lambda it: it.candidate is None)  # a search that found nothing serves where no other one does
        loops = not offline and all(it.candidate is not None for it in alike)
        poor: list[Result] = []
        why = ""
        for each in [*alike, *(it for it in earlier if offline and it not in alike)]:
            result = wanted.from_search(each, loops)
            if result is None:
                continue
            from mirage_eg.pipeline.other_sizes import why_worse

            LOGGER.info("segment: kernels of the search for segment %s, at other sizes", each.key[:12])
            problem = why_worse(result, each.result)
            if problem is None:
                return result, ""
            poor.append(result)
            why = why or problem
        if poor and (offline or len(alike) > 1):
            return min(poor, key=lambda it: it.candidates[0].us), ""
        return None, why and f"searched again: {why}"

    def _of_form(self, form: str) -> list[FoundSegment]:
        """The segments of a form that were searched: in this process, then those that only the cache has."""
        known = self._forms.setdefault(form, {})
        for name in () if self.cache is None else sorted(file.name for file in (self.cache.folder / FORMS / form).glob("*")):
            if name not in known and name not in self._unusable:
                try:
                    known[name] = self.by_key(name)
                except MirageError as error:
                    self._unusable.add(name)
                    LOGGER.warning("form: %s", error)
        return [*known.values()]

    def _keep_form(self, form: str, found: FoundSegment) -> None:
        """Keep that a segment of a form was searched: one file each, so that no process overwrites what another one wrote."""
        self._forms.setdefault(form, {})[found.key] = found
        if self.cache is not None:
            write_kept(self.cache.folder / FORMS / form / found.key, "")

    def by_key(self, name: str, alone: bool = False) -> FoundSegment:
        """The segment of a key, as a compiled model names it; with `alone` that to be called, with nothing for other searches.

        Raises MirageError: the cache has no such entry, or one that cannot be used.
        """
        if name not in self._found:
            place = "this process (the cache is off)" if self.cache is None else self.cache.folder
            missing = f"mirage_eg::segment: no kernel {name[:12]}… in {place}"
            hint = "; try: mirage-eg cache import FILE, or compile the model again"
            if self.cache is None or not (path := self.cache.folder / f"{name}.jsonl").is_file():
                raise MirageError(missing + hint)
            key = key_in(path)
            if key is None or hash_of(key) != name:
                raise MirageError(f"{path}: is no kernel of a segment{hint}")
            program, searched, ranges = programs_of(key)
            entry = self._entry(key, searched, alone) if ranges is None else None
            if entry is None or not entry.result.candidates:
                raise MirageError(f"{path}: cannot be used here{hint}")
            found = _found(key, program, entry.result, Options().device_record, from_cache=True)
            if alone:
                return found
            self._found[name] = found
        return self._found[name]

    def bucket(
        self,
        found: FoundSegment,
        ranges: Mapping[str, SizeRange],
        settings: Settings,
        until: Deadline = NEVER,
        tune: float = inf,
    ) -> FoundSegment:
        """The segment for all sizes in `ranges`: from the cache, or with new tiles for the structures that the search found,
        which are tuned in `tune` seconds at most; the segment itself without named dims.

        Raises:
            UnsupportedError: no µGraph is right at all of them.
            OverdueError: it is not there at `until`.
        """
        if not ranges:
            return found
        spans = {name: [it.least, it.largest, it.multiple_of] for name, it in ranges.items()}
        settings = _tuned_in(settings, tune)
        for key in _keys({**found.data, "bucket": spans}, settings):
            if (name := hash_of(key)) in self._found:
                return self._found[name]
            entry = None if self.cache is None else self.cache.find(key, found.program, ranges)
            if known := () if entry is None else entry.result.candidates:
                break
        if known:
            [candidate] = known
        else:
            with ending(until):
                candidate = self._instantiated(found, ranges, settings, until)
            if self.cache is not None:
                self.cache.keep(key, Result((candidate,), found.result.report), now())
        self._found[name] = replace(
            found, key=name, data=key, candidate=candidate, from_cache=bool(known), ranges=ranges, note=""
        )
        return self._found[name]

    def _instantiated(
        self, found: FoundSegment, ranges: Mapping[str, SizeRange], settings: Settings, until: Deadline
    ) -> Candidate:
        from mirage_eg.pipeline.other_sizes import OtherSizes

        options, on_gpu = options_of(settings)
        name = found.key, settings.tune > 0
        if name not in self._sizes:
            sizes = searched_sizes(dims_of(found.program), found.largest)
            searched = found.result.searched or at_sizes(found.program, sizes)
            self._sizes[name] = OtherSizes(found.result, searched, found.program, options, sizes)
        tuning = _tuning(settings) if on_gpu else None
        made = self._sizes[name].bucket(ranges, tuning, until)
        if settings.verify == "proved" and not made.verdict.proof.proved:
            raise UnsupportedError(f"sizes {made.name}: tested, not proved: {made.verdict.proof.reason}")
        candidate: Candidate = made.candidate
        return candidate

    def kept(self, file: str, kind: type[Kept]) -> Kept | None:
        """The record in a file of the cache, of this process or an earlier one."""
        return None if self.cache is None else kept_record(self.cache.folder / file, kind)

    def keep(self, file: str, record: object) -> None:
        """Keep a record in a file of the cache."""
        if self.cache is not None:
            write_kept(self.cache.folder / file, dumps(record) + "\n")

    def findings(self, key: str) -> GateFindings | None:
        """What the gate found of a segment."""
        return self.kept(f"{key}.gate.json", GateFindings)

    def keep_findings(self, key: str, findings: GateFindings) -> None:
        """Keep what the gate found."""
        self.keep(f"{key}.gate.json", findings)


_STORES: dict[str, SegmentStore] = {}


def store_of(settings: Settings) -> SegmentStore:
    """The store that the settings or MIRAGE_EG_CACHE name; one for each folder."""
    if settings.cache is None:
        cache = chosen_cache()
    else:
        cache = None if str(settings.cache) == OFF else ResultCache(Path(settings.cache).expanduser())
    place = OFF if cache is None else str(cache.folder)
    return _STORES.setdefault(place, SegmentStore(cache))


def segment_by_key(name: str) -> FoundSegment:
    """The segment of a key, from any store of this process or from the cache of MIRAGE_EG_CACHE.

    Raises MirageError: there is none.
    """
    for store in _STORES.values():
        if name in store._found:
            return store._found[name]
    for store in _STORES.values():
        if store.cache is not None and (store.cache.folder / f"{name}.jsonl").is_file():
            return store.by_key(name)
    return store_of(Settings()).by_key(name)


def forget() -> None:
    """Forget the stores of this process; the files stay."""
    _STORES.clear()


def _tuned_in(settings: Settings, seconds: float) -> Settings:
    """The settings of a segment that is tuned in so many seconds at most; with those of no search it is not."""
    return replace(settings, tune=0.0 if settings.search == "offline" else min(seconds, settings.tune))


def _untuned(key: Key) -> Key:
    """The key of a segment that was not tuned, where the key says that it was."""
    return {**key, "tune": 0.0} if key["tune"] else key


def _keys(key: Key, settings: Settings) -> Sequence[Key]:
    """The keys of entries that serve a segment; the last one is that of its own, if it is tuned as these settings say."""
    return (key, _untuned(key)) if key["tune"] and not settings.tune else (key,)


def _as_searched(found: FoundSegment) -> Graph:
    return at_searched_sizes(found.program, found.largest)


def _tuning(settings: Settings) -> "Tuning | None":
    if not settings.tune:
        return None
    from mirage_eg.optimizer.heuristics import EFFORT
    from mirage_eg.optimizer.tune import Tuning

    return Tuning(EFFORT).of(settings.tune)


def search_segment(name: str, program: Graph, wanted: WantedSegment, ahead: "Sequence[RegionSearch]" = ()) -> Result:
    """The result of the search of a segment's program, in this process and its workers, unless it was `ahead`."""
    from mirage_eg.pipeline.optimize import optimize_wanted

    shown = wanted_by(wanted.settings, wanted.sized or program != wanted.searched)  # other sizes may take another µGraph
    options = wanted.options if wanted.tuning else replace(wanted.options, device="cpu")
    return optimize_wanted(title_of(name), program, options, shown, wanted.observer, wanted.tuning, ahead=ahead)


def _found(key: Key, program: Graph, result: Result, device: Device, *, from_cache: bool) -> FoundSegment:
    good = next(filter(is_good(key), result.candidates), None)
    return FoundSegment(hash_of(key), key, program, result, good, device, from_cache, key.get("largest") or {})
