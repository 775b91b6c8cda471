"""Broadcasts, constants and iota: a tensor of shape N is repeated along axes M before its own."""

import mirage_eg as mi

CONSTANT = 7


def cut(g, x, start, stop, step=1):
    """The part of x between start and stop, along all axes."""
    for axis, (first, last) in enumerate(zip(start, stop, strict=True)):
        x = g.slice(x, axis, first, last, step)
    return x


PAIRS = [
    mi.LawPair(
        "a sum of broadcasts",
        sizes="N M",
        ranks=(1, 2),
        inputs=lambda s: {"x": s.N, "y": s.N},
        program=lambda g, s, x, y: g.add(g.broadcast(x, (*s.M, *s.N)), g.broadcast(y, (*s.M, *s.N))),
        candidate=lambda g, s, x, y: g.broadcast(g.add(x, y), (*s.M, *s.N)),
        twin=lambda g, s, x, y: g.broadcast(g.sub(x, y), (*s.M, *s.N)),
    ),
    mi.LawPair(
        "a product of broadcasts",
        sizes="N M",
        ranks=(1, 2),
        inputs=lambda s: {"x": s.N, "y": s.N},
        program=lambda g, s, x, y: g.mul(g.broadcast(x, (*s.M, *s.N)), g.broadcast(y, (*s.M, *s.N))),
        candidate=lambda g, s, x, y: g.broadcast(g.mul(x, y), (*s.M, *s.N)),
        twin=lambda g, s, x, y: g.broadcast(g.add(x, y), (*s.M, *s.N)),
    ),
    mi.LawPair(
        "a transposed constant",
        sizes="N",
        inputs=lambda s: {"c": (1,)},
        program=lambda g, s, c: g.transpose(g.broadcast(c, s.N), s.axes[::-1]),
        candidate=lambda g, s, c: g.broadcast(c, s.N[::-1]),
        twin=lambda g, s, c: g.scale(g.broadcast(c, s.N[::-1]), 2),
    ),
    mi.LawPair(
        "a reversed constant",
        sizes="N",
        inputs=lambda s: {"c": (1,)},
        program=lambda g, s, c: g.flip(g.broadcast(c, s.N), s.axes),
        candidate=lambda g, s, c: g.broadcast(c, s.N),
        twin=lambda g, s, c: g.shift(g.broadcast(c, s.N), 1),
    ),
    mi.LawPair(
        "a slice of a constant",
        sizes="N P>=0 Q>=0",
        inputs=lambda s: {"c": (1,)},
        program=lambda g, s, c: cut(g, g.broadcast(c, s.P + s.N + s.Q), s.P, s.P + s.N),
        candidate=lambda g, s, c: g.broadcast(c, s.N),
        twin=lambda g, s, c: g.scale(g.broadcast(c, s.N), 3),
    ),
    mi.LawPair(
        "a gathered part of a constant",
        sizes="n p>=0 q>=0",
        inputs=lambda s: {"c": (1,)},
        program=lambda g, s, c: g.gather(g.broadcast(c, (s.p + s.n + s.q,)), g.shift(g.iota(s.n), s.p)),
        candidate=lambda g, s, c: g.broadcast(c, (s.n,)),
        twin=lambda g, s, c: g.scale(g.broadcast(c, (s.n,)), 2),
        note="a dynamic slice is a gather at consecutive places, along one axis",
    ),
    mi.LawPair(
        "a broadcast iota",
        sizes="n m",
        inputs=lambda s: {"x": (s.m, s.n)},
        program=lambda g, s, x: g.add(x, g.broadcast(g.cast(g.iota(s.n), "float32"), (s.m, s.n))),
        candidate=lambda g, s, x: g.add(x, g.cast(g.iota(s.n), "float32")),
        twin=lambda g, s, x: g.add(x, g.flip(g.cast(g.iota(s.n), "float32"), 0)),
        note="iota has one axis; a sum broadcasts it along the others",
    ),
    mi.LawPair(
        "a broadcast of a broadcast",
        sizes="N M",
        ranks=(1, 2),
        inputs=lambda s: {"x": s.N},
        program=lambda g, s, x: g.broadcast(g.broadcast(x, (s.M[-1], *s.N)), (*s.M, *s.N)),
        candidate=lambda g, s, x: g.broadcast(x, (*s.M, *s.N)),
        twin=lambda g, s, x: g.broadcast(g.flip(x, 0), (*s.M, *s.N)),
    ),
    mi.LawPair(
        "iota of one element is zero",
        sizes="n",
        inputs=lambda s: {"x": (s.n, 1)},
        program=lambda g, s, x: g.mul(x, g.cast(g.iota(1), "float32")),
        candidate=lambda g, s, x: g.fill(x, 0),
        twin=lambda g, s, x: g.scale(x, 1),
        note="iota has one axis; a product broadcasts it along the others",
    ),
    mi.LawPair(
        "an element of iota is its place",
        sizes="p>=0 q>=0",
        inputs=lambda s: {"x": (1,)},
        program=lambda g, s, x: g.mul(x, g.cast(g.slice(g.iota(s.p + 1 + s.q), 0, s.p, s.p + 1), "float32")),
        candidate=lambda g, s, x: g.scale(x, s.p),
        twin=lambda g, s, x: g.scale(x, s.p + 1),
    ),
]
