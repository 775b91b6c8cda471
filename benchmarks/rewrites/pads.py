"""Pads, updates of a part, reversals and transposes, along all axes at once."""

import mirage_eg as mi

VALUE = 7  # around a padded tensor


def cut(g, x, start, stop):
    """The part of x between start and stop, along the first axes."""
    for axis, (first, last) in enumerate(zip(start, stop, strict=True)):
        x = g.slice(x, axis, first, last)
    return x


def padded(g, x, before, after, value=VALUE):
    """x with a value around it."""
    return g.pad(x, [*zip(before, after, strict=True)], value)


def turned(axes, places):
    """The axes, moved on by some places."""
    return tuple(axes[(axis + places) % len(axes)] for axis in range(len(axes)))


PAIRS = [
    mi.LawPair(
        "a pad of nothing",
        sizes="N",
        inputs=lambda s: {"x": s.N},
        program=lambda g, s, x: padded(g, x, s.N - s.N, s.N - s.N),
        candidate=lambda g, s, x: g.scale(x, 1),
        twin=lambda g, s, x: g.fill(x, VALUE),
    ),
    mi.LawPair(
        "the distance of elements on an axis of one element",
        sizes="N P>=0 Q>=0 p>=0 q>=0",
        ranks=(1, 2, 3),
        inputs=lambda s: {"x": (1, *s.N)},
        program=lambda g, s, x: g.patch(
            g.full((s.p + 1 + s.q, *(s.P + s.N + s.Q)), VALUE, "float32"), [x], [(s.p, *s.P)], [(3, *(1 for _ in s.N))]
        ),
        candidate=lambda g, s, x: padded(g, x, (s.p, *s.P), (s.q, *s.Q)),
        twin=lambda g, s, x: padded(g, x, (s.p, *s.P), (s.q, *s.Q), VALUE + 1),
        note="interior padding is a patch with steps",
    ),
    mi.LawPair(
        "a pad of a broadcast along axes that it leaves alone",
        sizes="N M P>=0 Q>=0",
        ranks=(1, 2, 3),
        inputs=lambda s: {"x": s.N},
        program=lambda g, s, x: padded(g, g.broadcast(x, (*s.M, *s.N)), (*(s.P - s.P), *s.P), (*(s.Q - s.Q), *s.Q)),
        candidate=lambda g, s, x: g.broadcast(padded(g, x, s.P, s.Q), (*s.M, *(s.P + s.N + s.Q))),
        twin=lambda g, s, x: g.broadcast(padded(g, x, s.P, s.Q, VALUE + 1), (*s.M, *(s.P + s.N + s.Q))),
    ),
    mi.LawPair(
        "a pad of a pad",
        sizes="N P>=0 Q>=0 R>=0 S>=0",
        inputs=lambda s: {"x": s.N},
        program=lambda g, s, x: padded(g, padded(g, x, s.P, s.Q), s.R, s.S),
        candidate=lambda g, s, x: padded(g, x, s.P + s.R, s.Q + s.S),
        twin=lambda g, s, x: padded(g, x, s.P + s.S, s.Q + s.R),
    ),
    mi.LawPair(
        "a sum with an update of zeros",
        sizes="N P>=0 Q>=0",
        inputs=lambda s: {"x": s.P + s.N + s.Q, "y": s.N},
        program=lambda g, s, x, y: g.add(x, g.patch(g.full(s.P + s.N + s.Q, 0, "float32"), [y], [s.P])),
        candidate=lambda g, s, x, y: g.patch(x, [g.add(y, cut(g, x, s.P, s.P + s.N))], [s.P]),
        twin=lambda g, s, x, y: g.patch(x, [y], [s.P]),
    ),
    mi.LawPair(
        "an update of a constant is a pad",
        sizes="N P>=0 Q>=0",
        inputs=lambda s: {"x": s.N},
        program=lambda g, s, x: g.patch(g.full(s.P + s.N + s.Q, VALUE, "float32"), [x], [s.P]),
        candidate=lambda g, s, x: padded(g, x, s.P, s.Q),
        twin=lambda g, s, x: padded(g, x, s.Q, s.P),
    ),
    mi.LawPair(
        "an update of everything",
        sizes="N",
        inputs=lambda s: {"x": s.N, "y": s.N},
        program=lambda g, s, x, y: g.patch(x, [y], [s.N - s.N]),
        candidate=lambda g, s, x, y: g.scale(y, 1),
        twin=lambda g, s, x, y: g.scale(x, 1),
    ),
    mi.LawPair(
        "an update of a part of a part",
        sizes="N P>=0 Q>=0 R>=0 S>=0",
        inputs=lambda s: {"x": s.P + s.Q + s.N + s.R + s.S, "y": s.N},
        program=lambda g, s, x, y: g.patch(x, [g.patch(cut(g, x, s.P, s.P + s.Q + s.N + s.R), [y], [s.Q])], [s.P]),
        candidate=lambda g, s, x, y: g.patch(x, [y], [s.P + s.Q]),
        twin=lambda g, s, x, y: g.patch(x, [y], [s.P + s.R]),
    ),
    mi.LawPair(
        "a reversal of axes of one element",
        sizes="n",
        inputs=lambda s: {"x": (1, s.n, 1)},
        program=lambda g, s, x: g.flip(x, (0, 2)),
        candidate=lambda g, s, x: g.scale(x, 1),
        twin=lambda g, s, x: g.flip(x, 1),
        note="an axis of each kind",
    ),
    mi.LawPair(
        "a reversal of a reversal",
        sizes="N",
        inputs=lambda s: {"x": s.N},
        program=lambda g, s, x: g.flip(g.flip(x, s.axes), s.axes),
        candidate=lambda g, s, x: g.scale(x, 1),
        twin=lambda g, s, x: g.flip(x, s.axes),
    ),
    mi.LawPair(
        "reversals of different axes",
        sizes="N M",
        ranks=(1, 2),
        inputs=lambda s: {"x": (*s.N, *s.M)},
        program=lambda g, s, x: g.flip(g.flip(x, s.axes), tuple(s.rank + axis for axis in s.axes)),
        candidate=lambda g, s, x: g.flip(x, range(2 * s.rank)),
        twin=lambda g, s, x: g.flip(x, s.axes),
    ),
    mi.LawPair(
        "a reversal of a sum with a constant",
        sizes="N",
        inputs=lambda s: {"x": s.N, "c": (1,)},
        program=lambda g, s, x, c: g.flip(g.add(x, c), s.axes),
        candidate=lambda g, s, x, c: g.add(g.flip(x, s.axes), c),
        twin=lambda g, s, x, c: g.add(x, c),
    ),
    mi.LawPair(
        "a transpose of a transpose",
        sizes="N",
        ranks=(2, 3, 4),
        inputs=lambda s: {"x": s.N},
        program=lambda g, s, x: g.transpose(g.transpose(x, turned(s.axes, 1)), turned(s.axes, 1)),
        candidate=lambda g, s, x: g.transpose(x, turned(s.axes, 2)),
        twin=lambda g, s, x: g.scale(g.transpose(x, turned(s.axes, 2)), 2),
    ),
    mi.LawPair(
        "a transpose that leaves all axes in place",
        sizes="N",
        inputs=lambda s: {"x": s.N},
        program=lambda g, s, x: g.transpose(x, s.axes),
        candidate=lambda g, s, x: g.scale(x, 1),
        twin=lambda g, s, x: g.flip(x, s.axes),
    ),
]
