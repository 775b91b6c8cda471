"""Does an entry of the cache compute its program? Asked of entries that this machine did not make, when they are first used.

A checksum and a source that is its graph's prove nothing of the program: whoever writes an entry writes both. So sources are
emitted again, and the graphs run once in a random field and in floats, against the program. What was found right is marked by
the hash of the whole entry, in a folder of the user in which no import and no shared cache writes: a changed entry is checked
again.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import platformdirs

from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.sizes import SizeRange
from mirage_eg.pipeline.run.result import Candidate

MADE = "made here"


def is_marked(entry: bytes, ranks: Sequence[int]) -> bool:
    """Whether this machine has made the entry, or has checked the candidates of these ranks."""
    return any(_mark(entry, what).is_file() for what in (MADE, str(ranks)))


def set_mark(entry: bytes, ranks: Sequence[int] | None = None) -> None:
    """Mark an entry as made here, or its candidates of these ranks as checked; one without a mark is checked again."""
    mark = _mark(entry, MADE if ranks is None else str(ranks))
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError:
        return


def _mark(entry: bytes, what: str) -> Path:
    folder = platformdirs.user_state_path("mirage_eg", appauthor=False) / "checked"
    return folder / sha256(entry + what.encode()).hexdigest()


def fault_of(program: Graph, candidates: Mapping[int, Candidate], ranges: Mapping[str, SizeRange] | None) -> str | None:
    """Why candidates, by their ranks, do not compute the program, at all sizes in `ranges` if it has named dims."""
    for rank, candidate in candidates.items():
        names = [(graph.input_names, graph.output_names) for graph in (candidate.graph, program)]
        if names[0] != names[1]:
            return f"number {rank} names its inputs and outputs {names[0]}, the program {names[1]}"
    others = {rank: each for rank, each in candidates.items() if each.graph != program}
    try:
        return _fault_of(program, others, ranges) if others else None
    except MirageError as error:
        return f"it cannot be held against the program: {error}"


def _fault_of(program: Graph, candidates: Mapping[int, Candidate], ranges: Mapping[str, SizeRange] | None) -> str | None:
    from mirage_eg.verify.all_sizes import RANDOM_SIZES, verify_sizes
    from mirage_eg.verify.block_reference import BlockReference
    from mirage_eg.verify.evidence import combine_evidence  # loads egglog
    from mirage_eg.verify.proof import Prover

    if ranges is not None:
        for rank, candidate in candidates.items():
            sized = verify_sizes(program, candidate.graph, ranges, trials=1, random_sizes=RANDOM_SIZES)
            if not sized.likely:
                return f"number {rank} does not compute the program: {sized.difference or sized.text}"
        return None
    reference = BlockReference(program, 1)
    graphs = [candidate.graph for candidate in candidates.values()]
    prover = Prover(program)
    for rank, (verdict, _) in zip(candidates, reference.check_all(graphs), strict=True):
        if verdict.undecided_because is not None:
            verdict = combine_evidence(verdict, f"number {rank}", prover.prove(candidates[rank].graph))
        if not verdict.equal:
            return f"number {rank} does not compute the program: {verdict.difference or verdict.undecided_because}"
    for (rank, candidate), check in zip(candidates.items(), reference.float_checks(graphs), strict=True):
        if candidate.float_check.ok and not check.ok:
            return f"number {rank} does not compute the program as its types round: {check.problem}"
    return None
