"""Test a proof chain in the model of its domain: all its terms have the same value on random inputs."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import chain, pairwise
from random import Random

import numpy as np

from mirage_eg.egraph.chain_checker import ChainError
from mirage_eg.egraph.expression import CONSTANT, REDUCTIONS, Term, flatten, op_of
from mirage_eg.egraph.proof_chain import ProofChain
from mirage_eg.egraph.rulebook import Rulebook
from mirage_eg.egraph.soundness.models import ManyDigits, Model, TensorValue, UndefinedError
from mirage_eg.egraph.term_text import parse_term

TRIALS = 2  # one of positive numbers, one of both signs
_ARITHMETIC = ManyDigits(most_bits=64)  # differences of larger numbers lose too many digits
MOST_ENTRIES = 48  # of a tensor
_MOST_DIMS = 64  # of a NumPy array


def check_values(chain: ProofChain, rulebook: Rulebook, trials: int = TRIALS, seed: int = 0) -> int:
    """Compare the terms of a chain on random inputs, with 100 digits; the number of trials with a value to compare.

    A term that is undefined in a trial is left out of it, and so is a trial in which the first or the last term is: a proof by
    partial laws holds where both are defined. A chain with a constructor that is no op has no values, and gives 0, and so does
    one with more parts than an array may have dims.

    Raises ChainError: two terms differ; the message has the number of the step.
    """
    free = {name: frozenset(parts) for name, parts in chain.free}
    terms = [parse_term(it, rulebook.signatures, free) for it in (chain.start, *(step.term for step in chain.steps))]
    expression = flatten(terms, free)  # most steps change few subterms
    subterms, places = expression.terms, expression.outputs
    if not all(it.constructor in ("Var", CONSTANT) or op_of(it.constructor) is not None for it in subterms):
        return 0
    if len(_parts(subterms, free)) > _MOST_DIMS:
        return 0
    conditions = (subterms[it.children[0]] for it in subterms if it.constructor == "Where")
    masks = {it.constants[0] for it in conditions if it.constructor == "Var"}
    compared = 0
    for trial in range(trials):
        random = Random(seed + trial)
        model = Model(rulebook.domain, _ARITHMETIC, _sizes(subterms, free, random))
        inputs = {name: _tensor(model, parts, random, trial % 2 == 0, name in masks) for name, parts in free.items()}
        values = _values(subterms, model, inputs)
        if values[places[0]] is None or values[places[-1]] is None:
            continue
        defined = [(number, value.array) for number, value in enumerate(values[place] for place in places) if value is not None]
        compared += len(defined) > 1
        for (_, before), (number, after) in pairwise(defined):
            if before is not after and not _ARITHMETIC.equal(*np.broadcast_arrays(before, after)):
                raise ChainError(f"step {number} ({chain.steps[number - 1].law}): the term has another value in the model")
    return compared


def _parts(subterms: Sequence[Term], free: Mapping[str, frozenset[str]]) -> set[str]:
    """The parts of axes that inputs have, and those over which reductions run."""
    return {*chain.from_iterable(free.values()), *(str(it.constants[0]) for it in subterms if it.constructor in REDUCTIONS)}


def _sizes(subterms: Sequence[Term], free: Mapping[str, frozenset[str]], random: Random) -> dict[str, int]:
    """An extent for each part: those of inputs, and those that reductions name."""
    sizes: dict[str, int] = {}
    entries = 1
    for part in sorted(_parts(subterms, free)):
        size = random.choice((2, 3)) if entries * 2 <= MOST_ENTRIES else 1
        size = size if entries * size <= MOST_ENTRIES else 2
        entries *= size
        sizes[part] = size
    return sizes


def _tensor(model: Model, parts: frozenset[str], random: Random, positive: bool, mask: bool) -> TensorValue:
    """Fractions with many digits, so that comparisons of different terms have no ties; zeros and ones in a mask."""
    shape = tuple(size if part in parts else 1 for part, size in model.sizes.items())
    entries = np.empty(shape, dtype=object)
    for index in np.ndindex(shape):
        number = Fraction(random.randint(1, 10_000), random.randint(1_000, 10_000))
        entries[index] = Fraction(random.randint(0, 1)) if mask else number if positive or random.random() < 0.5 else -number
    return model.tensor(entries, parts)


def _values(subterms: Sequence[Term], model: Model, inputs: Mapping[str, TensorValue]) -> list[TensorValue | None]:
    """The value of each subterm, or None if it is undefined."""
    values: list[TensorValue | None] = []
    for it in subterms:
        operands = [value for number in it.children if (value := values[number]) is not None]
        if it.constructor == "Var":
            values.append(inputs[str(it.constants[0])])
        elif len(operands) < len(it.children):
            values.append(None)
        else:
            try:
                values.append(model.apply(it.constructor, it.constants, operands))
            except UndefinedError:
                values.append(None)
    return values
