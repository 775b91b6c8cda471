"""Agreement of two halves of outputs: saturation ends as soon as the laws make them equal."""

import subprocess
import sys

from mirage_eg.egraph.expression import Expression, flatten
from mirage_eg.egraph.oracle import Limits, saturate
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.egraph.sufficient_laws import agreement

BOOK = load_rules("indexed")
NAMES = ("a", "b", "c", "d", "e")


def sums_of_five(last: str) -> Expression:
    a, b, c, d, e = (("Var", name) for name in NAMES)
    one = ("Add", ("Add", ("Add", ("Add", a, b), c), d), e)
    other = ("Add", ("Add", ("Add", ("Add", b, a), c), d), ("Var", last))
    return flatten([one, other], dict.fromkeys(NAMES, frozenset()))


def test_equal_halves_end_the_saturation() -> None:
    both = sums_of_five("e")
    found, all_of_it = agreement(BOOK, both, Limits()), saturate(BOOK, both, Limits())
    assert found.equal and found.stopped is None
    assert found.nodes < all_of_it.saturation.nodes


def test_unequal_halves_are_saturated() -> None:
    both = sums_of_five("a")
    found = agreement(BOOK, both, Limits())
    assert not found.equal and found.nodes == saturate(BOOK, both, Limits()).saturation.nodes


def test_the_language_of_egglog_for_python_is_not_loaded() -> None:
    check = (
        "import sys, mirage_eg.pipeline.stages; assert not {'egglog', 'black'} & {*sys.modules}; import egglog; "
        "from mirage_eg.egraph.egglog_bindings import bindings; assert egglog.bindings.EGraph is bindings.EGraph"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
