"""The identity of a run, and its result if that is on disk; nothing here loads the search."""

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from typing import Any

from mirage_eg.backends.cost.devices import closest_device
from mirage_eg.backends.cost.user_cost import UserCost
from mirage_eg.egraph.rule_files import chosen_files, text_hash
from mirage_eg.ir.deadline import Deadline
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.op.elementwise import REGISTRY
from mirage_eg.ir.serialize import to_json
from mirage_eg.ir.weights import matching_inputs, with_weights
from mirage_eg.pipeline.run.cache import ResultCache, chosen_cache, installed_version, key_of, reported
from mirage_eg.pipeline.run.code_hash import code_hash
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.result import Result
from mirage_eg.version import __version__

_FREE = {"jobs", "executor", "budget", "device", "cache"}  # options that change no result of a work item


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A program, options with the device of this machine, the identity of the run, and the cache with the key of its result.

    `cache` is None where it is off. The run ends `until`.
    """

    name: str
    program: Graph
    options: Options
    on_gpu: bool
    identity: Mapping[str, Any]
    cache: ResultCache | None
    key: Mapping[str, Any]
    until: Deadline


def run_request(name: str, program: Graph, options: Options, on_gpu: bool) -> RunRequest:
    """The request for a run that begins now; the cache is off where there are custom ops, or a user's cost."""
    until, program = options.until(), with_weights(program, matching_inputs(program, options.weights))
    run = identity(name, program, options)
    cache = chosen_cache() if options.cache and not REGISTRY and options.cost is None else None
    key = {} if cache is None else key_of(run, on_gpu=on_gpu, budget=options.budget)
    return RunRequest(name, program, options, on_gpu, run, cache, key, until)


def cached_result(request: RunRequest) -> Result | None:
    """The result of an earlier run, if it is on disk."""
    entry = None if request.cache is None else request.cache.find(request.key, request.program)
    return None if entry is None else reported(entry.result, request.name, "hit", entry.computed)


def identity(name: str, program: Graph, options: Options) -> dict[str, Any]:
    """The identity of a run: runs with one identity have the same work items with the same results."""
    chosen: dict[str, Any] = {field.name: getattr(options, field.name) for field in fields(options) if field.name not in _FREE}
    chosen["gpu"] = {name: value for name, value in asdict(options.device_record).items() if name != "cost"}
    chosen["cost"] = options.cost.name if isinstance(options.cost, UserCost) else None
    files = chosen_files(options.domain, options.rules, options.without, options.undefined_in(program))
    return {
        "program": name,
        "graph": sha256(to_json(program).encode()).hexdigest(),
        "options": chosen,
        "theories": {file.path: text_hash(file.text) for file in files},
        "versions": versions(),
        "code": code_hash(),
    }


def versions() -> dict[str, str]:
    """The versions of Python, this package and others that results depend on."""
    own = {"python": platform.python_version(), "mirage-eg": __version__}
    return own | {package: str(installed_version(package)) for package in ("egglog", "numpy", "triton")}


def for_this_machine(options: Options) -> tuple[Options, bool]:
    """The options with the record of the GPU here, where candidates run on it, and whether they do.

    A `gpu` or another `target` in the options goes before the GPU here.
    """
    if not uses_gpu(options):
        return options, False
    if options.gpu is not None:
        return options, True
    from mirage_eg.backends.measure.timing import gpu_name, gpu_target

    here = closest_device(gpu_name(), gpu_target())
    wanted = here is not None and options.target in (None, here.target)
    return (replace(options, gpu=here) if wanted else options), True


def uses_gpu(options: Options) -> bool:
    """Whether candidates are run on a GPU here."""
    if options.device == "cpu":
        return False
    from mirage_eg.backends.measure.timing import gpu_available

    if gpu_available():
        return True
    if options.device == "cuda":
        raise MirageError("device: got cuda, but no CUDA GPU is usable here; use --device cpu to rank by the cost model")
    return False
