"""A synthesis that is stopped and continued: which candidates are decided, and the laws that hold or are refuted so far.

The state is that at the end of a chunk of candidates. A run that continues from it ends with the laws of a run that never
stopped: terms are enumerated again, laws are tested again, and derivations are those of the chunks that are left.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from mirage_eg.ir.errors import OptionError


class BudgetSpent(Exception):
    """The seconds that a synthesis may take are over; the message says at which stage."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The first `decided` candidates are decided: texts of the laws among them that hold, in order, and of the refuted ones."""

    decided: int = 0
    known: tuple[str, ...] = ()
    refuted: tuple[str, ...] = ()


OnChunk = Callable[[Begun], None]
NOTHING = Begun()


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments that decide the laws of a synthesis."""

    ops: tuple[str, ...]
    size: int
    seed: int


def state_path(out: Path) -> Path:
    """The file next to a rule file that has the state of its synthesis."""
    return out.with_name(f"{out.stem}.state.json")


def state_text(arguments: Arguments, begun: Begun) -> str:
    """The state as JSON."""
    return json.dumps({"arguments": asdict(arguments), "begun": asdict(begun)}, ensure_ascii=False) + "\n"


def read_state(path: Path, arguments: Arguments) -> Begun:
    """The state of a synthesis with these arguments. Raises OptionError: there is none, or it is of other arguments."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        given, begun = data["arguments"], data["begun"]
        found = Arguments(tuple(given["ops"]), given["size"], given["seed"])
        state = Begun(begun["decided"], tuple(begun["known"]), tuple(begun["refuted"]))
    except OSError:
        raise OptionError(
            f"--resume: got no {path}, wanted the state that a stopped synthesis leaves next to its --out"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise OptionError(f"--resume: {path} is no state of a synthesis; start it again without --resume") from None
    if found != arguments:
        raise OptionError(
            f"--resume: {path} has --ops {','.join(found.ops)} --size {found.size} --seed {found.seed}, wanted "
            f"--ops {','.join(arguments.ops)} --size {arguments.size} --seed {arguments.seed}"
        )
    return state
