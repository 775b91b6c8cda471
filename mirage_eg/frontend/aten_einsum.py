"""ATen's einsum as matrix products: dims with a letter are summed as soon as no later operand and no result has the letter."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from mirage_eg.frontend.aten_call import Call, Handler
from mirage_eg.frontend.aten_rearrangements import diagonal, permuted, reshaped
from mirage_eg.ir.builder import Tensor
from mirage_eg.ir.errors import UnsupportedError

_DOTS = "αβγδεζηθ"  # letters for the dims of an ellipsis, the last dim first


@dataclass(frozen=True, slots=True)
class _Term:
    """A tensor with a letter for each of its dims."""

    letters: str
    tensor: Tensor

    def extent(self, letter: str) -> int:
        return self.tensor.shape[self.letters.index(letter)]

    def distinct(self) -> "_Term":
        """The term with one dim for each letter: two dims of one letter become their diagonal."""
        for first, letter in enumerate(self.letters):
            if (second := self.letters.find(letter, first + 1)) > 0:
                left = self.letters.replace(letter, "", 2)
                if self.tensor.shape[first] != self.tensor.shape[second]:
                    raise UnsupportedError(
                        f"got the letter {letter!r} for dims of different extents, wanted equal ones, in {self.letters!r}"
                    )
                return _Term(left + letter, diagonal(self.tensor, first, second)).distinct()
        return self

    def summed(self, kept: str) -> "_Term":
        """Without the dims whose letters are not kept."""
        x = self.tensor
        for dim, letter in enumerate(self.letters):
            x = x if letter in kept else x.builder.op("sum", x, dim=dim)
        left = "".join(letter for letter in self.letters if letter in kept)
        return _Term(left, reshaped(x, [self.extent(letter) for letter in left]))

    def arranged(self, *groups: str) -> Tensor:
        """The letters of the first group in order, then one dim for each other group."""
        moved = permuted(self.tensor, [self.letters.index(letter) for group in groups for letter in group])
        flat = [prod(self.extent(letter) for letter in group) for group in groups[1:]]
        return reshaped(moved, [*map(self.extent, groups[0]), *flat])


def _product(x: _Term, y: _Term, kept: str) -> _Term:
    """The product of two terms: batch dims, then the dims of each side; contracted dims are not kept."""
    x, y = x.summed(kept + y.letters), y.summed(kept + x.letters)
    batch = "".join(letter for letter in dict.fromkeys(kept) if letter in x.letters and letter in y.letters)
    inner = "".join(letter for letter in x.letters if letter in y.letters and letter not in kept)
    rows, columns = ("".join(letter for letter in one.letters if letter not in batch + inner) for one in (x, y))
    if inner:
        product = x.arranged(batch, rows, inner) @ y.arranged(batch, inner, columns)
    else:  # no sum: an outer product
        product = x.arranged(batch, rows, "") * y.arranged(batch, "", columns)
    letters = batch + rows + columns
    return _Term(letters, reshaped(product, [(x if letter in x.letters else y).extent(letter) for letter in letters]))


def _read(call: Call) -> tuple[list[_Term], str]:
    """The terms of the equation, and the letters of the result."""
    equation = call.take("equation").replace(" ", "")
    left, arrow, output = equation.partition("->")
    tensors = [call.tensor(f"tensors.{place}") for place in range(len(call.take("tensors")))]
    names = left.split(",")
    terms, most = [], 0
    for name, x in zip(names, tensors, strict=True):
        dots = len(x.shape) - len(name.replace("...", ""))
        most = max(most, dots)
        terms.append(_Term(name.replace("...", _DOTS[:dots][::-1]), x))
    if arrow:
        output = output.replace("...", _DOTS[:most][::-1])
    else:
        letters = "".join(names).replace(".", "")
        output = _DOTS[:most][::-1] + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    terms = [term.distinct() for term in terms]
    extents: dict[str, int] = {}
    for letter, extent in ((letter, term.extent(letter)) for term in terms for letter in term.letters):
        if extents.setdefault(letter, extent) != extent:
            raise UnsupportedError(f"equation = {equation!r} broadcasts a dim of extent 1")
    return terms, output


def _einsum(call: Call) -> Tensor:
    """Operands are multiplied from the left to the right."""
    call.ignore("path")  # the order of the products
    terms, output = _read(call)
    first, *rest = terms
    for place, term in enumerate(rest, 1):
        first = _product(first, term, output + "".join(later.letters for later in rest[place:]))
    first = first.summed(output)
    return permuted(first.tensor, [first.letters.index(letter) for letter in output])


HANDLERS: Mapping[str, Handler] = {"aten.einsum.default": _einsum}
