"""Complex numbers of an FX graph as pairs of real ones, in a last dim of two, as rotary embeddings of Llama 4 have them.

The IR has no complex numbers. What views a complex value as real reads its pair instead. An op that no row of the tables has is
torch's, and its pair is torch's view of its result. Nodes that no other reads then are erased.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mirage_eg.frontend.fx_values import Fx, inserted


def has_complex(graph: Any) -> bool:
    """Whether a node of an FX graph has a complex value."""
    return any(map(_is_complex, graph.nodes))


def write_pairs(graph: Any) -> None:
    """Compute from pairs what an FX graph of ATen ops views as real, in place."""
    it = _Pairs(graph)
    for node in [*graph.nodes]:
        it.place, name = node, str(node.target)
        if name in _REAL and node.args[0] in it.known:
            node.replace_all_uses_with(_REAL[name](it, node.args[0]))
            it.replaced.add(node)
        elif _is_complex(node) and name in _COMPLEX:
            pair = _COMPLEX[name](it, *node.args, **node.kwargs)
            if pair is not None:
                it.known[node] = it.in_type_of(node, pair)
                it.replaced.add(node)
    for node in reversed([*graph.nodes]):
        if node in it.replaced and not node.users:
            graph.erase_node(node)


def _is_complex(value: Any) -> bool:
    """Whether an argument is a node with a complex value, or a complex number."""
    kind = getattr(getattr(value, "meta", {}).get("val"), "dtype", None)
    return isinstance(value, complex) or bool(kind is not None and kind.is_complex)


@dataclass
class _Pairs:
    """The pairs of complex nodes that are `known`; new nodes are written before `place`."""

    graph: Any
    place: Fx = None
    known: dict[Fx, Fx] = field(default_factory=dict)
    replaced: set[Fx] = field(default_factory=set)

    def call(self, name: str, *args: Any) -> Fx:
        """A new node of an ATen op."""
        made = inserted(self.place, name, *args)
        self.replaced.add(made)
        return made

    def of(self, node: Fx) -> Fx:
        """The pair of a complex node."""
        if node not in self.known:
            self.known[node] = self.call("view_as_real", node)
        return self.known[node]

    def in_type_of(self, node: Fx, pair: Fx) -> Fx:
        """The pair in the precision of a complex node, on which the precision of a tensor without dims has no influence."""
        real = node.meta["val"].dtype.to_real()
        return pair if pair.meta["val"].dtype is real else self.call("to.dtype", pair, real)

    def parts(self, value: Any) -> tuple[Any, Any]:
        """The real and the imaginary part of a complex node or number."""
        if isinstance(value, complex):
            return value.real, value.imag
        return self.call("select.int", self.of(value), -1, 0), self.call("select.int", self.of(value), -1, 1)

    def joined(self, real: Fx, imaginary: Fx) -> Fx:
        """The pair of two parts."""
        return self.call("stack", [real, imaginary], -1)


def _copied(it: _Pairs, x: Any, *args: Any, **given: Any) -> Fx | None:
    """In the same type and on the same device; a layout has no influence on the values."""
    one, other = (node.meta["val"] for node in (x, it.place))
    return it.of(x) if one.dtype is other.dtype and one.device == other.device else None


def _complex(it: _Pairs, real: Fx, imaginary: Fx) -> Fx | None:
    """Of parts of one shape; torch's op broadcasts others."""
    one, other = (part.meta["val"].shape for part in (real, imaginary))
    return it.joined(real, imaginary) if one == other else None


def _polar(it: _Pairs, radius: Fx, angle: Fx) -> Fx:
    return it.joined(*(it.call("mul.Tensor", radius, it.call(name, angle)) for name in ("cos", "sin")))


def _exponential(it: _Pairs, x: Fx) -> Fx:
    real, imaginary = it.parts(x)
    return _polar(it, it.call("exp", real), imaginary)


def _product(it: _Pairs, x: Any, y: Any) -> Fx:
    if not _is_complex(x):
        x, y = y, x
    if _is_complex(y):
        (a, b), (c, d) = it.parts(x), it.parts(y)
        terms = [it.call("mul.Tensor", *factors) for factors in ((a, c), (b, d), (a, d), (b, c))]
        return it.joined(it.call("sub.Tensor", *terms[:2]), it.call("add.Tensor", *terms[2:]))
    if isinstance(x, complex):
        return it.joined(*(it.call("mul.Tensor", y, part) for part in it.parts(x)))
    return it.call("mul.Tensor", it.of(x), it.call("unsqueeze", y, -1) if hasattr(y, "meta") else y)


def _sum(name: str, it: _Pairs, x: Any, y: Any, alpha: object = 1) -> Fx | None:
    if alpha != 1 or not all(_is_complex(each) and hasattr(each, "meta") for each in (x, y)):
        return None
    return it.call(name, it.of(x), it.of(y))


def _conjugate(it: _Pairs, x: Fx) -> Fx:
    real, imaginary = it.parts(x)
    return it.joined(real, it.call("neg", imaginary))


def _in_shape(name: str) -> Callable[..., Fx]:
    return lambda it, x, shape, implicit=False: it.call(name, it.of(x), [*shape, 2])


def _along(name: str, it: _Pairs, x: Fx, *args: Any, new: int = 0) -> Fx:
    """An op along dims counted from 0; `new` dims more than the operand has."""
    rank = max(x.meta["val"].dim() + new, 1)  # without dims, dim 0 is the one that an op may name
    count = 2 if name == "transpose.int" else 1
    return it.call(name, it.of(x), *(dim % rank for dim in args[:count]), *args[count:])


def _permuted(it: _Pairs, x: Fx, dims: list[int]) -> Fx:
    rank = x.meta["val"].dim()
    return it.call("permute", it.of(x), [*(dim % rank for dim in dims), rank])


_COMPLEX: Mapping[str, Callable[..., Fx | None]] = {
    "aten.view_as_complex.default": lambda it, x: x,
    "aten.complex.default": _complex,
    "aten.polar.default": _polar,
    "aten.exp.default": _exponential,
    "aten.mul.Tensor": _product,
    "aten.add.Tensor": partial(_sum, "add.Tensor"),
    "aten.sub.Tensor": partial(_sum, "sub.Tensor"),
    **dict.fromkeys(("aten._conj.default", "aten.conj_physical.default", "aten._conj_physical.default"), _conjugate),
    **{f"aten.{name}.default": _in_shape("reshape") for name in ("view", "reshape", "_unsafe_view")},
    "aten.expand.default": _in_shape("expand"),
    **{f"aten.{name}": partial(_along, name) for name in ("select.int", "slice.Tensor", "transpose.int", "squeeze.dim")},
    "aten.unsqueeze.default": partial(_along, "unsqueeze", new=1),
    "aten.permute.default": _permuted,
    **{f"aten.{name}.default": _copied for name in ("alias", "clone", "detach", "_to_copy")},
    **{f"aten.to.{name}": _copied for name in ("dtype", "dtype_layout", "device", "other")},
}
"""The pair of a node's value from its arguments, or None where there is none."""

_REAL: Mapping[str, Callable[[_Pairs, Fx], Fx]] = {
    "aten.view_as_real.default": _Pairs.of,
    "aten.real.default": lambda it, x: it.parts(x)[0],
    "aten.imag.default": lambda it, x: it.parts(x)[1],
}
