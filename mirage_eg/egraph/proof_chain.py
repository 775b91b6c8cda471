"""Proofs of equality as records: a chain of steps from a term to an equal term, each a rewrite of subterms by one law.

`chain_search` finds chains, `chain_checker` replays them.
"""

from dataclasses import dataclass

Path = tuple[int, ...]  # of child numbers from the root down to a subterm, counted from 0


@dataclass(frozen=True, slots=True)
class ProofStep:
    """One rewrite: the subterms at `positions` are one side of `law` under `substitution`, and become the other side.

    `forward` is from left to right. Terms are texts (`term_text`).
    """

    law: str
    forward: bool
    substitution: tuple[tuple[str, str], ...]  # of the variables of both sides, by name
    positions: tuple[Path, ...]
    term: str  # after the step

    def __str__(self) -> str:
        arrow = "→" if self.forward else "←"
        values = ", ".join(f"{name} = {value}" for name, value in self.substitution)
        places = ", ".join(".".join(map(str, path)) or "the root" for path in self.positions)
        return f"{self.law} {arrow} at {places} with {values}" if values else f"{self.law} {arrow} at {places}"


@dataclass(frozen=True, slots=True)
class ProofChain:
    """A term, and the steps from it to an equal term.

    `free` has the parts of axes of each input, `extents` the sizes of parts where laws of slices need them. `claim` names the
    proved equality among those of one proof.
    """

    start: str
    steps: tuple[ProofStep, ...]
    free: tuple[tuple[str, tuple[str, ...]], ...]
    extents: tuple[tuple[str, int], ...] = ()
    claim: str = ""

    @property
    def end(self) -> str:
        """The last term."""
        return self.steps[-1].term if self.steps else self.start

    @property
    def laws(self) -> tuple[str, ...]:
        """The laws of the steps, each once."""
        return tuple(dict.fromkeys(step.law for step in self.steps))

    def __str__(self) -> str:
        lines = [f"  {self.start}"]
        for number, step in enumerate(self.steps, 1):
            lines += [f"    {number}. {step}", f"= {step.term}"]
        return "\n".join(lines)
