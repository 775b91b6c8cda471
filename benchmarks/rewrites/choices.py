"""Comparisons, logic, selections, minima and maxima. A logical tensor is one of zeros and ones: here an indicator of u < v."""

import mirage_eg as mi

LOW, HIGH = -1, 2  # of a clamp, whose bounds are numbers


def shapes(*names: str):
    """Inputs of shape N."""
    return lambda s: dict.fromkeys(names, s.N)


def one_minus(g, x):
    """The negation of a logical tensor."""
    return g.shift(g.scale(x, -1), 1)


PAIRS = [
    mi.LawPair(
        "nothing is above itself",
        sizes="N",
        inputs=shapes("x"),
        program=lambda g, s, x: g.less(x, x),
        candidate=lambda g, s, x: g.fill(x, 0),
        twin=lambda g, s, x: g.fill(x, 1),
    ),
    mi.LawPair(
        "nothing is below itself",
        sizes="N",
        inputs=shapes("x"),
        program=lambda g, s, x: g.less(g.scale(x, 1), x),
        candidate=lambda g, s, x: g.full(s.N, 0, "float32"),
        twin=lambda g, s, x: g.less_equal(x, x),
    ),
    mi.LawPair(
        "nothing is unequal to itself",
        sizes="N",
        inputs=shapes("x"),
        program=lambda g, s, x: one_minus(g, g.equal(x, x)),
        candidate=lambda g, s, x: g.fill(x, 0),
        twin=lambda g, s, x: g.equal(x, x),
    ),
    mi.LawPair(
        "everything is at least itself",
        sizes="N",
        inputs=shapes("x"),
        program=lambda g, s, x: g.less_equal(x, x),
        candidate=lambda g, s, x: g.fill(x, 1),
        twin=lambda g, s, x: g.less(x, x),
    ),
    mi.LawPair(
        "everything is at most itself",
        sizes="N",
        inputs=shapes("x"),
        program=lambda g, s, x: g.less_equal(x, g.scale(x, 1)),
        candidate=lambda g, s, x: g.full(s.N, 1, "float32"),
        twin=lambda g, s, x: g.full(s.N, 0, "float32"),
    ),
    mi.LawPair(
        "everything equals itself",
        sizes="N",
        inputs=shapes("x"),
        program=lambda g, s, x: g.equal(x, x),
        candidate=lambda g, s, x: g.fill(x, 1),
        twin=lambda g, s, x: g.equal(x, g.scale(x, 2)),
    ),
    mi.LawPair(
        "or with true on the right",
        sizes="N",
        inputs=shapes("u", "v"),
        program=lambda g, s, u, v: g.maximum(g.less(u, v), g.fill(u, 1)),
        candidate=lambda g, s, u, v: g.fill(u, 1),
        twin=lambda g, s, u, v: g.less(u, v),
    ),
    mi.LawPair(
        "or with true on the left",
        sizes="N",
        inputs=shapes("u", "v"),
        program=lambda g, s, u, v: g.maximum(g.fill(u, 1), g.less(u, v)),
        candidate=lambda g, s, u, v: g.full(s.N, 1, "float32"),
        twin=lambda g, s, u, v: g.full(s.N, 0, "float32"),
    ),
    mi.LawPair(
        "or with false on the right",
        sizes="N",
        inputs=shapes("u", "v"),
        program=lambda g, s, u, v: g.maximum(g.less(u, v), g.full(s.N, 0, "float32")),
        candidate=lambda g, s, u, v: g.less(u, v),
        twin=lambda g, s, u, v: g.less(v, u),
    ),
    mi.LawPair(
        "or with false on the left",
        sizes="N",
        inputs=shapes("u", "v"),
        program=lambda g, s, u, v: g.maximum(g.full(s.N, 0, "float32"), g.less(u, v)),
        candidate=lambda g, s, u, v: g.less(u, v),
        twin=lambda g, s, u, v: g.less_equal(u, v),
    ),
    mi.LawPair(
        "and with true on the right",
        sizes="N",
        inputs=shapes("u", "v"),
        program=lambda g, s, u, v: g.mul(g.less(u, v), g.fill(u, 1)),
        candidate=lambda g, s, u, v: g.less(u, v),
        twin=lambda g, s, u, v: g.fill(u, 1),
    ),
    mi.LawPair(
        "and with true on the left",
        sizes="N",
        inputs=shapes("u", "v"),
        program=lambda g, s, u, v: g.mul(g.fill(u, 1), g.less(u, v)),
        candidate=lambda g, s, u, v: g.less(u, v),
        twin=lambda g, s, u, v: one_minus(g, g.less(u, v)),
    ),
    mi.LawPair(
        "and with false on the right",
        sizes="N",
        inputs=shapes("u", "v"),
        program=lambda g, s, u, v: g.mul(g.less(u, v), g.fill(u, 0)),
        candidate=lambda g, s, u, v: g.fill(u, 0),
        twin=lambda g, s, u, v: g.less(u, v),
    ),
    mi.LawPair(
        "and with false on the left",
        sizes="N",
        inputs=shapes("u", "v"),
        program=lambda g, s, u, v: g.mul(g.fill(u, 0), g.less(u, v)),
        candidate=lambda g, s, u, v: g.full(s.N, 0, "float32"),
        twin=lambda g, s, u, v: g.full(s.N, 1, "float32"),
    ),
    mi.LawPair(
        "below two constants is below the smaller one",
        sizes="N",
        inputs=lambda s: {"x": s.N, "c": (1,), "d": (1,)},
        program=lambda g, s, x, c, d: g.mul(g.less(x, c), g.less(x, d)),
        candidate=lambda g, s, x, c, d: g.less(x, g.minimum(c, d)),
        twin=lambda g, s, x, c, d: g.less(x, g.maximum(c, d)),
    ),
    mi.LawPair(
        "a maximum above its second operand",
        sizes="N",
        inputs=shapes("x", "y"),
        program=lambda g, s, x, y: g.less(y, g.maximum(x, y)),
        candidate=lambda g, s, x, y: g.less(y, x),
        twin=lambda g, s, x, y: g.less_equal(y, x),
    ),
    mi.LawPair(
        "a maximum above its first operand",
        sizes="N",
        inputs=shapes("x", "y"),
        program=lambda g, s, x, y: g.less(x, g.maximum(x, y)),
        candidate=lambda g, s, x, y: g.less(x, y),
        twin=lambda g, s, x, y: g.less(y, x),
    ),
    mi.LawPair(
        "not of not",
        sizes="N",
        inputs=shapes("u", "v"),
        program=lambda g, s, u, v: one_minus(g, one_minus(g, g.less(u, v))),
        candidate=lambda g, s, u, v: g.less(u, v),
        twin=lambda g, s, u, v: one_minus(g, g.less(u, v)),
    ),
    mi.LawPair(
        "a selection of equal values",
        sizes="N",
        inputs=shapes("u", "v", "x"),
        program=lambda g, s, u, v, x: g.where(g.less(u, v), x, x),
        candidate=lambda g, s, u, v, x: g.scale(x, 1),
        twin=lambda g, s, u, v, x: g.mul(g.less(u, v), x),
    ),
    mi.LawPair(
        "a selection by true",
        sizes="N",
        inputs=shapes("x", "y"),
        program=lambda g, s, x, y: g.where(g.fill(x, 1), x, y),
        candidate=lambda g, s, x, y: g.scale(x, 1),
        twin=lambda g, s, x, y: g.scale(y, 1),
    ),
    mi.LawPair(
        "a selection by false",
        sizes="N",
        inputs=shapes("x", "y"),
        program=lambda g, s, x, y: g.where(g.fill(x, 0), x, y),
        candidate=lambda g, s, x, y: g.scale(y, 1),
        twin=lambda g, s, x, y: g.scale(x, 1),
    ),
    mi.LawPair(
        "a selection by a negation",
        sizes="N",
        inputs=shapes("u", "v", "x", "y"),
        program=lambda g, s, u, v, x, y: g.where(one_minus(g, g.less(u, v)), x, y),
        candidate=lambda g, s, u, v, x, y: g.where(g.less(u, v), y, x),
        twin=lambda g, s, u, v, x, y: g.where(g.less(u, v), x, y),
    ),
    mi.LawPair(
        "a clamp of a clamp",
        sizes="N",
        inputs=shapes("x"),
        program=lambda g, s, x: g.clamp(g.clamp(x, LOW, HIGH), LOW, HIGH),
        candidate=lambda g, s, x: g.clamp(x, LOW, HIGH),
        twin=lambda g, s, x: g.clamp(x, LOW, HIGH + 1),
        note="the bounds are numbers",
    ),
    mi.LawPair(
        "a maximum of a minimum is a clamp",
        sizes="N",
        inputs=shapes("x"),
        program=lambda g, s, x: g.maximum(LOW, g.minimum(x, HIGH)),
        candidate=lambda g, s, x: g.clamp(x, LOW, HIGH),
        twin=lambda g, s, x: g.clamp(x, LOW, HIGH + 1),
        note="the bounds are numbers",
    ),
    mi.LawPair(
        "a minimum of a maximum is a clamp",
        sizes="N",
        inputs=shapes("x"),
        program=lambda g, s, x: g.minimum(HIGH, g.maximum(x, LOW)),
        candidate=lambda g, s, x: g.clamp(x, LOW, HIGH),
        twin=lambda g, s, x: g.clamp(x, LOW - 1, HIGH),
        note="the bounds are numbers",
    ),
]
