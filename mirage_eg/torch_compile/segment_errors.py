"""Errors of a segment cost speed, never the model: its record has the reason, and torch computes it."""

from collections.abc import Callable

from mirage_eg.backends.evaluator.cpu_threads import OverdueError
from mirage_eg.ir.errors import MirageError, OptionError
from mirage_eg.torch_compile.records import Decision, SegmentRecord
from mirage_eg.torch_compile.settings import Settings, budget_spent
from mirage_eg.torch_compile.unexpected_errors import reason_of


def record_or_why(
    record: Callable[[], SegmentRecord], ops: int, settings: Settings, key: str = "", raised: tuple[type[Exception], ...] = ()
) -> SegmentRecord:
    """The record of a segment of `ops` ops, or of a bucket of it, with the reason where an error leaves it to torch.

    Raises OptionError: a setting is wrong. Errors of the types `raised` are raised, too.
    """
    import torch

    try:
        return record()
    except OverdueError:
        return SegmentRecord(key, ops, Decision.BUDGET, budget_spent(settings))
    except OptionError:
        raise
    except raised:
        raise
    except (MirageError, torch.OutOfMemoryError) as error:
        return SegmentRecord(key, ops, Decision.FAILED, " ".join(str(error).split())[-300:])
    except Exception as error:  # noqa: BLE001 - of one segment; the record, the log and `explain` say why
        return SegmentRecord(key, ops, Decision.ERROR, reason_of(error))
