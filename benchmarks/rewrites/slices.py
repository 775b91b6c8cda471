"""Slices, along all axes at once: P elements are left out before a part of N elements, and Q after it."""

import mirage_eg as mi

VALUE = 7  # around a padded tensor


def cut(g, x, start, stop, step=1):
    """The part of x between start and stop, along the first axes."""
    for axis, (first, last) in enumerate(zip(start, stop, strict=True)):
        x = g.slice(x, axis, first, last, step)
    return x


def padded(g, x, before, after, value=VALUE):
    """x with a value around it."""
    return g.pad(x, [*zip(before, after, strict=True)], value)


PAIRS = [
    mi.LawPair(
        "a slice of everything",
        sizes="N",
        inputs=lambda s: {"x": s.N},
        program=lambda g, s, x: cut(g, x, s.N - s.N, s.N),
        candidate=lambda g, s, x: g.scale(x, 1),
        twin=lambda g, s, x: g.flip(x, s.axes),
    ),
    mi.LawPair(
        "a slice of a number",
        sizes="N P>=0 Q>=0",
        inputs=lambda s: {"x": s.P + s.N + s.Q},
        program=lambda g, s, x: cut(g, g.fill(x, VALUE), s.P, s.P + s.N),
        candidate=lambda g, s, x: g.full(s.N, VALUE, "float32"),
        twin=lambda g, s, x: g.full(s.N, VALUE + 1, "float32"),
    ),
    mi.LawPair(
        "a slice of a broadcast along old and new axes",
        sizes="N M P>=0 Q>=0 R>=0 S>=0",
        ranks=(1, 2),
        inputs=lambda s: {"x": s.P + s.N + s.Q},
        program=lambda g, s, x: cut(
            g, g.broadcast(x, (*(s.R + s.M + s.S), *(s.P + s.N + s.Q))), (*s.R, *s.P), (*(s.R + s.M), *(s.P + s.N))
        ),
        candidate=lambda g, s, x: g.broadcast(cut(g, x, s.P, s.P + s.N), (*s.M, *s.N)),
        twin=lambda g, s, x: g.broadcast(cut(g, x, s.Q, s.Q + s.N), (*s.M, *s.N)),
    ),
    mi.LawPair(
        "a slice of a pad gives the padded tensor",
        sizes="N P>=0 Q>=0",
        inputs=lambda s: {"x": s.N},
        program=lambda g, s, x: cut(g, padded(g, x, s.P, s.Q), s.P, s.P + s.N),
        candidate=lambda g, s, x: g.scale(x, 1),
        twin=lambda g, s, x: g.flip(x, s.axes),
        note="without interior padding",
    ),
    mi.LawPair(
        "a slice of the padding",
        sizes="N K P>=0 Q>=0 R>=0",
        inputs=lambda s: {"x": s.N},
        program=lambda g, s, x: cut(g, padded(g, x, s.P + s.K + s.R, s.Q), s.P, s.P + s.K),
        candidate=lambda g, s, x: g.full(s.K, VALUE, "float32"),
        twin=lambda g, s, x: g.full(s.K, VALUE - 1, "float32"),
        note="without interior padding",
    ),
    mi.LawPair(
        "a slice inside a pad is a slice",
        sizes="N P>=0 Q>=0 R>=0 S>=0",
        inputs=lambda s: {"x": s.R + s.N + s.S},
        program=lambda g, s, x: cut(g, padded(g, x, s.P, s.Q), s.P + s.R, s.P + s.R + s.N),
        candidate=lambda g, s, x: cut(g, x, s.R, s.R + s.N),
        twin=lambda g, s, x: cut(g, x, s.S, s.S + s.N),
    ),
    mi.LawPair(
        "a slice of a slice",
        sizes="N P>=0 Q>=0 R>=0 S>=0",
        inputs=lambda s: {"x": s.P + s.Q + s.N + s.R + s.S},
        program=lambda g, s, x: cut(g, cut(g, x, s.P, s.P + s.Q + s.N + s.R), s.Q, s.Q + s.N),
        candidate=lambda g, s, x: cut(g, x, s.P + s.Q, s.P + s.Q + s.N),
        twin=lambda g, s, x: cut(g, x, s.P, s.P + s.N),
    ),
    mi.LawPair(
        "the second half of a concat",
        sizes="m n N P>=0 Q>=0",
        inputs=lambda s: {"x": (s.m, *(s.P + s.N + s.Q)), "y": (s.n, *(s.P + s.N + s.Q))},
        program=lambda g, s, x, y: cut(g, g.concat([x, y], 0), (s.m, *s.P), (s.m + s.n, *(s.P + s.N))),
        candidate=lambda g, s, x, y: cut(g, y, (0, *s.P), (s.n, *(s.P + s.N))),
        twin=lambda g, s, x, y: cut(g, g.flip(y, 0), (0, *s.P), (s.n, *(s.P + s.N))),
        ranks=(1, 2, 3),
    ),
    mi.LawPair(
        "a slice of a broadcast along new axes",
        sizes="N M R>=0 S>=0",
        ranks=(1, 2),
        inputs=lambda s: {"x": s.N},
        program=lambda g, s, x: cut(g, g.broadcast(x, (*(s.R + s.M + s.S), *s.N)), s.R, s.R + s.M),
        candidate=lambda g, s, x: g.broadcast(x, (*s.M, *s.N)),
        twin=lambda g, s, x: g.broadcast(g.flip(x, 0), (*s.M, *s.N)),
    ),
    mi.LawPair(
        "a slice within the first part of a concat",
        sizes="n p>=0 q>=0 m N P>=0 Q>=0",
        inputs=lambda s: {"x": (s.p + s.n + s.q, *(s.P + s.N + s.Q)), "y": (s.m, *(s.P + s.N + s.Q))},
        program=lambda g, s, x, y: cut(g, g.concat([x, y], 0), (s.p, *s.P), (s.p + s.n, *(s.P + s.N))),
        candidate=lambda g, s, x, y: cut(g, x, (s.p, *s.P), (s.p + s.n, *(s.P + s.N))),
        twin=lambda g, s, x, y: cut(g, x, (s.q, *s.P), (s.q + s.n, *(s.P + s.N))),
        ranks=(1, 2, 3),
    ),
    mi.LawPair(
        "a slice within the second part of a concat",
        sizes="n p>=0 q>=0 m N P>=0 Q>=0",
        inputs=lambda s: {"x": (s.m, *(s.P + s.N + s.Q)), "y": (s.p + s.n + s.q, *(s.P + s.N + s.Q))},
        program=lambda g, s, x, y: cut(g, g.concat([x, y], 0), (s.m + s.p, *s.P), (s.m + s.p + s.n, *(s.P + s.N))),
        candidate=lambda g, s, x, y: cut(g, y, (s.p, *s.P), (s.p + s.n, *(s.P + s.N))),
        twin=lambda g, s, x, y: cut(g, y, (s.q, *s.P), (s.q + s.n, *(s.P + s.N))),
        ranks=(1, 2, 3),
    ),
    mi.LawPair(
        "a slice after the first of three joined parts",
        sizes="a b c p>=0 q>=0 N P>=0 Q>=0",
        inputs=lambda s: {
            name: (extent, *(s.P + s.N + s.Q)) for name, extent in (("x", s.a), ("y", s.p + s.b), ("z", s.c + s.q))
        },
        program=lambda g, s, x, y, z: cut(g, g.concat([x, y, z], 0), (s.a + s.p, *s.P), (s.a + s.p + s.b + s.c, *(s.P + s.N))),
        candidate=lambda g, s, x, y, z: cut(g, g.concat([y, z], 0), (s.p, *s.P), (s.p + s.b + s.c, *(s.P + s.N))),
        twin=lambda g, s, x, y, z: cut(g, g.concat([z, y], 0), (s.p, *s.P), (s.p + s.b + s.c, *(s.P + s.N))),
        ranks=(1, 2, 3),
    ),
    mi.LawPair(
        "a slice of a reversed tensor",
        sizes="N P>=0 Q>=0",
        inputs=lambda s: {"x": s.P + s.N + s.Q},
        program=lambda g, s, x: cut(g, g.flip(x, s.axes), s.P, s.P + s.N),
        candidate=lambda g, s, x: g.flip(cut(g, x, s.Q, s.Q + s.N), s.axes),
        twin=lambda g, s, x: g.flip(cut(g, x, s.P, s.P + s.N), s.axes),
    ),
    mi.LawPair(
        "every second element of a reversed tensor",
        sizes="K P>=0 Q>=0",
        inputs=lambda s: {"x": s.P + s.K * 2 - 1 + s.Q},
        program=lambda g, s, x: cut(g, g.flip(x, s.axes), s.P, s.P + s.K * 2 - 1, 2),
        candidate=lambda g, s, x: g.flip(cut(g, x, s.Q, s.Q + s.K * 2 - 1, 2), s.axes),
        twin=lambda g, s, x: g.flip(cut(g, x, s.P, s.P + s.K * 2 - 1, 2), s.axes),
        note="the step is 2",
    ),
    mi.LawPair(
        "a gather of consecutive places is a slice",
        sizes="n p>=0 q>=0",
        inputs=lambda s: {"x": (s.p + s.n + s.q,)},
        program=lambda g, s, x: g.gather(x, g.shift(g.iota(s.n), s.p)),
        candidate=lambda g, s, x: g.slice(x, 0, s.p, s.p + s.n),
        twin=lambda g, s, x: g.slice(x, 0, s.q, s.q + s.n),
        note="a dynamic slice is a gather at consecutive places, along one axis",
    ),
    mi.LawPair(
        "a gather of all places",
        sizes="n m",
        inputs=lambda s: {"x": (s.n, s.m)},
        program=lambda g, s, x: g.gather(x, g.iota(s.n)),
        candidate=lambda g, s, x: g.scale(x, 1),
        twin=lambda g, s, x: g.flip(x, 0),
        note="a dynamic slice is a gather at consecutive places, along one axis",
    ),
    mi.LawPair(
        "a gather of a broadcast",
        sizes="n p>=0 q>=0 m",
        inputs=lambda s: {"x": (s.p + s.n + s.q,)},
        program=lambda g, s, x: g.gather(g.broadcast(x, (s.m, s.p + s.n + s.q)), g.shift(g.iota(s.n), s.p), 1),
        candidate=lambda g, s, x: g.broadcast(g.gather(x, g.shift(g.iota(s.n), s.p)), (s.m, s.n)),
        twin=lambda g, s, x: g.broadcast(g.gather(x, g.shift(g.iota(s.n), s.q)), (s.m, s.n)),
        note="a dynamic slice is a gather at consecutive places, along one axis",
    ),
    mi.LawPair(
        "a gather of a transposed tensor",
        sizes="n p>=0 q>=0 m",
        inputs=lambda s: {"x": (s.p + s.n + s.q, s.m)},
        program=lambda g, s, x: g.transpose(g.gather(x, g.shift(g.iota(s.n), s.p)), (1, 0)),
        candidate=lambda g, s, x: g.gather(g.transpose(x, (1, 0)), g.shift(g.iota(s.n), s.p), 1),
        twin=lambda g, s, x: g.gather(g.transpose(x, (1, 0)), g.shift(g.iota(s.n), s.q), 1),
        note="a dynamic slice is a gather at consecutive places, along one axis",
    ),
    mi.LawPair(
        "a gather of a gather",
        sizes="n p>=0 q>=0 r>=0 t>=0",
        inputs=lambda s: {"x": (s.p + s.q + s.n + s.r + s.t,)},
        program=lambda g, s, x: g.gather(g.gather(x, g.shift(g.iota(s.q + s.n + s.r), s.p)), g.shift(g.iota(s.n), s.q)),
        candidate=lambda g, s, x: g.gather(x, g.shift(g.iota(s.n), s.p + s.q)),
        twin=lambda g, s, x: g.gather(x, g.shift(g.iota(s.n), s.p)),
        note="a dynamic slice is a gather at consecutive places, along one axis",
    ),
]
