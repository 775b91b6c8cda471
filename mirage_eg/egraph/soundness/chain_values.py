"""Test a proof chain in the model of its domain: all its terms have the same value on random inputs."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np

from mirage_eg.egraph.chain_checker import ChainError
from mirage_eg.egraph.expression import CONSTANT, REDUCTIONS, Tree, op_of
from mirage_eg.egraph.proof_chain import ProofChain
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.egraph.soundness.models import ManyDigits, Model, TensorValue, UndefinedError
from mirage_eg.egraph.term_text import parse_term

TRIALS = 4
_ARITHMETIC = ManyDigits(most_bits=64)  # differences of larger numbers lose too many digits
MOST_ENTRIES = 48  # of a tensor


def check_values(chain: ProofChain, rulebook: Rulebook, trials: int = TRIALS, seed: int = 0) -> int:
    """Compare the terms of a chain on random inputs, with 100 digits; the number of trials with a value to compare.

    A term that is undefined in a trial is left out of it: partial laws change where a term is defined. A chain with a
    constructor that is no op has no values, and gives 0.

    Raises:
        ChainError: two terms differ; the message has the number of the step.
    """
    free = {name: frozenset(parts) for name, parts in chain.free}
    terms = [parse_term(text, rulebook.signatures, free) for text in (chain.start, *(step.term for step in chain.steps))]
    if not all(map(_is_modelled, terms)):
        return 0
    masks = {it[1][1] for it in _parts(terms) if it[0] == "Where" and it[1][0] == "Var"}
    compared = 0
    for trial in range(trials):
        random = Random(seed + trial)
        model = Model(rulebook.domain, _ARITHMETIC, _sizes(terms, free, random))
        inputs = {name: _tensor(model, parts, random, trial % 2 == 0, name in masks) for name, parts in free.items()}
        values = [_value(term, model, inputs) for term in terms]
        defined = [(number, value) for number, value in enumerate(values) if value is not None]
        compared += len(defined) > 1
        for (_, before), (number, after) in pairwise(defined):
            if not _ARITHMETIC.equal(*np.broadcast_arrays(before, after)):
                raise ChainError(f"step {number} ({chain.steps[number - 1].law}): the term has another value in the model")
    return compared


def _is_modelled(term: Tree) -> bool:
    return term[0] in ("Var", CONSTANT) or (
        op_of(term[0]) is not None and all(_is_modelled(it) for it in term[1:] if isinstance(it, tuple))
    )


def _sizes(terms: list[Tree], free: Mapping[str, frozenset[str]], random: Random) -> dict[str, int]:
    """An extent for each part: those of inputs, and those that reductions name."""
    parts = {part for names in free.values() for part in names}
    parts.update(term[1] for term in _parts(terms) if term[0] in REDUCTIONS)
    sizes: dict[str, int] = {}
    entries = 1
    for part in sorted(parts):
        size = random.choice((2, 3)) if entries * 2 <= MOST_ENTRIES else 1
        size = size if entries * size <= MOST_ENTRIES else 2
        entries *= size
        sizes[part] = size
    return sizes


def _parts(terms: Sequence[Tree]) -> Iterator[Tree]:
    """All subterms, shared ones as often as they are reached."""
    waiting = list(terms)
    while waiting:
        term = waiting.pop()
        yield term
        waiting += (it for it in term[1:] if isinstance(it, tuple))


def _tensor(model: Model, parts: frozenset[str], random: Random, positive: bool, mask: bool) -> TensorValue:
    """Fractions with many digits, so that comparisons of different terms have no ties; zeros and ones in a mask."""
    shape = tuple(size if part in parts else 1 for part, size in model.sizes.items())
    entries = np.empty(shape, dtype=object)
    for index in np.ndindex(shape):
        number = Fraction(random.randint(1, 10_000), random.randint(1_000, 10_000))
        entries[index] = Fraction(random.randint(0, 1)) if mask else number if positive or random.random() < 0.5 else -number
    return model.tensor(entries, parts)


def _value(term: Tree, model: Model, inputs: Mapping[str, TensorValue]) -> Any:
    """The value of a term, or None if it is undefined."""
    memo: dict[int, TensorValue] = {}

    def value(part: Tree) -> TensorValue:
        if part[0] == "Var":
            return inputs[part[1]]
        if part[0] == CONSTANT:
            return model.tensor(np.full((1,) * len(model.sizes), part[1], dtype=object), frozenset())
        if id(part) not in memo:
            operands = [value(it) for it in part[1:] if isinstance(it, tuple)]
            memo[id(part)] = model.apply(part[0], [it for it in part[1:] if not isinstance(it, tuple)], operands)
        return memo[id(part)]

    try:
        return value(term).array
    except UndefinedError:
        return None
