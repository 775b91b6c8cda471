"""Found kernels of segments: in memory, and as entries of the result cache that a second process or machine can use.

The key of a segment is the hash of all that its result depends on: program with types and strides, options, laws, versions of
this package and its dependencies, device. An entry contains its program, so that a saved model needs only the key. Reading one
executes nothing: it is JSON, and a source that differs from the one emitted again from its graph is refused.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from mirage_eg.backends.cost.devices import Device, closest_device
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.measure.timing import gpu_available, gpu_name, gpu_target
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.serialize import from_json, to_json
from mirage_eg.pipeline.run.cache import OFF, ResultCache, chosen_cache, key_of, now
from mirage_eg.pipeline.run.cache_lookup import identity
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.output_files import write_atomically
from mirage_eg.pipeline.run.result import Candidate, Result
from mirage_eg.torch_compile.settings import Settings

_LOGGER = logging.getLogger("mirage_eg.torch")
Key = Mapping[str, Any]


@dataclass(frozen=True)
class FoundSegment:
    """The result of the search for one segment's program; `candidate` is the kernel to use, None if no fused one is good."""

    key: str
    program: Graph
    result: Result
    candidate: Candidate | None
    device: Device
    from_cache: bool

    @cached_property
    def library_us(self) -> float:
        """The predicted time of the program with one library kernel an op."""
        return predict_us(self.program, self.device)


@dataclass(frozen=True, slots=True)
class GateTimes:
    """Measured microseconds of a segment, warm and cold: by our kernels, and by Inductor's code for the same nodes."""

    ours_us: float
    inductor_us: float
    ours_cold_us: float
    inductor_cold_us: float


class SegmentStore:
    """The segments of one folder (None: of this process alone)."""

    def __init__(self, cache: ResultCache | None) -> None:
        self.cache = cache
        self.searches = 0
        self._found: dict[str, FoundSegment] = {}

    def find(self, program: Graph, settings: Settings, observer: Callable[..., None]) -> FoundSegment | None:
        """The kernels of a program, by a search if the settings allow one; None if there are none and no search is allowed."""
        options, on_gpu = _options(settings)
        key = _key(program, options, on_gpu, settings)
        name = _hash(key)
        if settings.search != "always":
            if name in self._found:
                return self._found[name]
            entry = None if self.cache is None else self.cache.find(key, program)
            if entry is not None:
                self._found[name] = _found(name, program, entry.result, settings, options, from_cache=True)
                return self._found[name]
        if settings.search == "offline":
            return None
        result = _search(name, program, settings, options, observer)
        self.searches += 1
        found = _found(name, program, result, settings, options, from_cache=False)
        kept = result.candidates[:1] if found.candidate is None else (found.candidate,)
        if self.cache is not None:
            self.cache.keep(key, Result(kept, result.report), now())
        self._found[name] = found
        return found

    def by_key(self, name: str) -> FoundSegment:
        """The segment of a key, as a compiled model names it.

        Raises:
            MirageError: the cache has no such entry, or one that cannot be used.
        """
        if name not in self._found:
            missing = f"mirage_eg::segment: no kernel {name[:12]}… in {self._place()}"
            hint = "; try: mirage-eg cache import FILE, or compile the model again"
            if self.cache is None or not (path := self.cache.folder / f"{name}.jsonl").is_file():
                raise MirageError(missing + hint)
            key = _key_in(path)
            if key is None or _hash(key) != name:
                raise MirageError(f"{path}: is no kernel of a segment{hint}")
            program = from_json(key["segment"])
            entry = self.cache.find(key, program)
            if entry is None or not entry.result.candidates:
                raise MirageError(f"{path}: cannot be used here{hint}")
            candidate = entry.result.candidates[0]
            self._found[name] = FoundSegment(name, program, entry.result, candidate, Options().device_record, True)
        return self._found[name]

    def times(self, name: str) -> GateTimes | None:
        """The times that the gate measured for a segment, in this process or an earlier one."""
        if self.cache is None or not (path := self._gate_path(name)).is_file():
            return None
        try:
            times = json.loads(path.read_text())
            return GateTimes(*(float(times[field.name]) for field in fields(GateTimes)))
        except (OSError, ValueError, KeyError, TypeError) as error:
            _LOGGER.warning("gate: %s ignored: %s", path, error)
            return None

    def keep_times(self, name: str, times: GateTimes) -> None:
        """Keep what the gate measured."""
        if self.cache is not None:
            write_atomically(self._gate_path(name), json.dumps(asdict(times)) + "\n")

    def _gate_path(self, name: str) -> Path:
        assert self.cache is not None
        return self.cache.folder / f"{name}.gate.json"

    def _place(self) -> str:
        return "this process (the cache is off)" if self.cache is None else str(self.cache.folder)


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

    Raises:
        MirageError: there is none.
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


def _options(settings: Settings) -> tuple[Options, bool]:
    """The options of the search, and whether the key names the GPU here."""
    if not gpu_available():
        return Options(budget=settings.budget, top=4, device="cpu", cache=False), False
    here = closest_device(gpu_name(), gpu_target())
    target = None if here is not None else gpu_target()
    place = "cuda" if settings.tune else "cpu"
    return Options(budget=settings.budget, top=4, device=place, gpu=here, target=target, cache=False), True


def _key(program: Graph, options: Options, on_gpu: bool, settings: Settings) -> Key:
    key = key_of(identity("", program, options), on_gpu=on_gpu, budget=None)
    return key | {"segment": to_json(program), "tune": settings.tune, "verify": settings.verify}


def _hash(key: Key) -> str:
    return ResultCache(Path()).path(key).stem


def _key_in(path: Path) -> Key | None:
    """The key in the first line of an entry; None if it has none."""
    try:
        with open(path, encoding="utf-8") as file:
            key = json.loads(file.readline())["key"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return key if isinstance(key, dict) and isinstance(key.get("segment"), str) else None


def _search(name: str, program: Graph, settings: Settings, options: Options, observer: Callable[..., None]) -> Result:
    from mirage_eg.optimizer.heuristics import EFFORT
    from mirage_eg.optimizer.tune import Tuning
    from mirage_eg.pipeline.optimize import optimize

    tuning = Tuning(replace(EFFORT, seconds=settings.tune)) if settings.tune else None
    return optimize(f"segment {name[:12]}", program, options, observer, tuning)


def _found(
    name: str, program: Graph, result: Result, settings: Settings, options: Options, *, from_cache: bool
) -> FoundSegment:
    good = (
        entry
        for entry in result.candidates
        if entry.fused and entry.compile.ok and (settings.verify == "tested" or entry.proved)
    )
    return FoundSegment(name, program, result, next(good, None), options.device_record, from_cache)


def fingerprint(text: str) -> str:
    """A short hash for names."""
    return sha256(text.encode()).hexdigest()[:12]


__all__ = ["FoundSegment", "GateTimes", "SegmentStore", "fingerprint", "forget", "segment_by_key", "store_of"]
