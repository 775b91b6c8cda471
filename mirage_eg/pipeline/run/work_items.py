"""Work items of a run: each is done once, wherever it runs, and never again when the run is resumed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, get_type_hints

from mirage_eg.backends.evaluator.cpu_threads import raise_if_stopped
from mirage_eg.pipeline.run.checkpoint import Checkpoint, key_of
from mirage_eg.pipeline.run.executors import Function, Workers

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Work:
    """The workers of a run, and what it has on disk, if anything; `part` names the part of the run that the work is of."""

    workers: Workers
    checkpoint: Checkpoint | None = None
    part: str = ""

    def run(
        self,
        stage: str,
        function: Function,
        common: Any,
        items: Sequence[Any],
        on_done: Callable[[int, Any], None] | None = None,
        keep: Callable[[Any], bool] = lambda result: True,
        likely: Iterable[Any] | None = None,
    ) -> list[Any]:
        """The result of each item, in their order.

        `function(common, items)` gives results in the order of its items. `on_done(count, result)` is called with each as it is
        finished; `keep` says whether a result is final and goes into the checkpoint. Idle workers begin items that are `likely`
        to be asked for next.
        """
        results: list[Any] = [None] * len(items)
        [wanted] = get_args(get_type_hints(function)["return"]) if self.checkpoint is not None else [object]
        keys = [] if self.checkpoint is None else [key_of(self.part + stage, item) for item in items]
        done = 0
        open_ = list(range(len(items)))
        if self.checkpoint is not None:
            for position, key in enumerate(keys):
                if key in self.checkpoint:
                    results[position] = self.checkpoint.get(key, wanted)
                    open_.remove(position)
                    done += 1
                    if on_done is not None:
                        on_done(done, results[position])
        left = [items[i] for i in open_]
        if likely is None:
            finished = self.workers.run(stage, function, common, left)
        else:
            finished = self.workers.run_ahead(stage, function, common, left, likely)
        for number, result in finished:
            raise_if_stopped()  # nothing is kept of what was interrupted
            position = open_[number]
            results[position] = result
            done += 1
            if self.checkpoint is not None and keep(result):
                self.checkpoint.put(keys[position], result)
            if on_done is not None:
                on_done(done, result)
        return results

    def has(self, stage: str) -> bool:
        """Whether an earlier run has finished something of this stage."""
        return self.checkpoint is not None and self.checkpoint.has(self.part + stage)

    def once(self, stage: str, item: Any, compute: Callable[[], T], wanted: Any) -> T:
        """The result of `compute`, of type `wanted`; it is one work item and runs here."""
        if self.checkpoint is None:
            return compute()
        key = key_of(self.part + stage, item)
        if key not in self.checkpoint:
            self.checkpoint.put(key, compute())
        result: T = self.checkpoint.get(key, wanted)
        return result
