"""`bench laws`: a folder of pairs of programs, each decided at its ranks; what is known of them, file by file."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from mirage_eg.frontend.load import load_pairs
from mirage_eg.ir.errors import OptionError, ProgramError
from mirage_eg.ir.pair import LawPair
from mirage_eg.ir.plurals import counted
from mirage_eg.verify.pairs import PairOutcome, PairVerdict, decide_pair


@dataclass(frozen=True, slots=True)
class LawRow:
    """A pair of a file, and what is known of it."""

    file: str
    verdict: PairVerdict
    note: str
    seconds: float

    @property
    def decided(self) -> bool:
        """Whether it is proved, or refuted, at all ranks."""
        return self.verdict.outcome not in (PairOutcome.UNDECIDED, PairOutcome.TESTED)


@dataclass(frozen=True, slots=True)
class LawCounts:
    """How many pairs of a file, and how many of them are what; `twins_refuted` counts the broken twins."""

    file: str
    pairs: int
    decided: int
    at_a_size: int
    all_sizes: int
    all_ranks: int
    undecided: int
    wrong: int
    twins: int
    twins_refuted: int
    seconds: float


def pairs_of(folder: Path) -> list[tuple[str, LawPair]]:
    """The pairs of the Python files of a folder, or of one file, each with the file's name.

    Raises:
        OptionError: no such folder, no file in it, or a name that two pairs of one file have.
        ProgramError: a file without pairs.
    """
    files = [folder] if folder.is_file() else sorted(it for it in folder.glob("*.py") if not it.name.startswith("_"))
    if not files:
        raise OptionError(f"--dir: got {str(folder)!r}, wanted a folder with Python files of pairs (PAIRS = [mi.LawPair(…)])")
    found = [(file.stem, pair) for file in files for pair in load_pairs(file)]
    twice = [f"{file}: {name}" for (file, name), times in Counter((it, pair.name) for it, pair in found).items() if times > 1]
    if twice:
        raise OptionError(f"--dir: got two pairs of one name, wanted a name of its own for each: {', '.join(twice[:3])}")
    return found


def law_rows(pairs: Sequence[tuple[str, LawPair]]) -> Iterator[LawRow]:
    """Each pair with its verdict.

    Raises ProgramError: functions of some pairs write no legal program; the others come first.
    """
    failed: list[ProgramError] = []
    for file, pair in pairs:
        start = perf_counter()
        try:
            verdict = decide_pair(pair)
        except ProgramError as error:
            failed.append(error)
            continue
        yield LawRow(file, verdict, pair.note, perf_counter() - start)
    if failed:
        more = f"; {counted(len(failed) - 1, 'more pair')} without a verdict" if len(failed) > 1 else ""
        raise ProgramError(f"{failed[0]}{more}") from failed[0]


def counts(rows: Sequence[LawRow]) -> list[LawCounts]:
    """The counts of each file, and last those of all."""
    files = list(dict.fromkeys(row.file for row in rows))
    return [_counts(file, [row for row in rows if row.file == file]) for file in files] + [_counts("all", rows)]


def _counts(name: str, rows: Sequence[LawRow]) -> LawCounts:
    outcomes = Counter(row.verdict.outcome for row in rows)
    twins = [row.verdict.twins for row in rows if row.verdict.twins]
    return LawCounts(
        name,
        pairs=len(rows),
        decided=sum(row.decided for row in rows),
        at_a_size=outcomes[PairOutcome.A_SIZE],
        all_sizes=outcomes[PairOutcome.ALL_SIZES],
        all_ranks=sum(row.verdict.all_ranks is not None for row in rows),
        undecided=outcomes[PairOutcome.UNDECIDED] + outcomes[PairOutcome.TESTED],
        wrong=sum(row.verdict.wrong for row in rows),
        twins=len(twins),
        twins_refuted=sum(all(it.outcome is PairOutcome.NOT_EQUAL for it in ranks) for ranks in twins),
        seconds=sum(row.seconds for row in rows),
    )
