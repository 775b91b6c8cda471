"""Concatenations along one axis of tensors with further axes N."""

import mirage_eg as mi

VALUE = 7


def joined(*names: str):
    """Inputs of extents a, b, c along the first axis."""
    return lambda s: {name: (extent, *s.N) for name, extent in zip(names, (s.a, s.b, s.c)[: len(names)], strict=True)}


def around(widths, rest):
    """The widths of a pad of the first axis."""
    return [widths, *((0, 0) for _ in rest)]


PAIRS = [
    mi.LawPair(
        "a list of two tensors, one of them a list of one",
        sizes="a b c N",
        ranks=(1, 2, 3),
        inputs=joined("x", "y"),
        program=lambda g, s, x, y: g.concat([g.concat([x], 0), y], 0),
        candidate=lambda g, s, x, y: g.concat([x, y], 0),
        twin=lambda g, s, x, y: g.concat([g.flip(x, 0), y], 0),
    ),
    mi.LawPair(
        "concatenation is associative",
        sizes="a b c N",
        ranks=(1, 2, 3),
        inputs=joined("x", "y", "z"),
        program=lambda g, s, x, y, z: g.concat([x, g.concat([y, z], 0)], 0),
        candidate=lambda g, s, x, y, z: g.concat([g.concat([x, y], 0), z], 0),
        twin=lambda g, s, x, y, z: g.concat([g.concat([y, x], 0), z], 0),
    ),
    mi.LawPair(
        "a list of three tensors",
        sizes="a b c N",
        ranks=(1, 2, 3),
        inputs=joined("x", "y", "z"),
        program=lambda g, s, x, y, z: g.concat([x, y, z], 0),
        candidate=lambda g, s, x, y, z: g.concat([x, g.concat([y, z], 0)], 0),
        twin=lambda g, s, x, y, z: g.concat([x, g.concat([z, y], 0)], 0),
    ),
    mi.LawPair(
        "neighbouring slices",
        sizes="a b p>=0 q>=0 N P>=0 Q>=0",
        ranks=(1, 2, 3),
        inputs=lambda s: {"x": (s.p + s.a + s.b + s.q, *(s.P + s.N + s.Q))},
        program=lambda g, s, x: g.concat([part(g, s, x, s.p, s.p + s.a), part(g, s, x, s.p + s.a, s.p + s.a + s.b)], 0),
        candidate=lambda g, s, x: part(g, s, x, s.p, s.p + s.a + s.b),
        twin=lambda g, s, x: g.flip(part(g, s, x, s.p, s.p + s.a + s.b), 0),
    ),
    mi.LawPair(
        "a constant before a tensor is a pad",
        sizes="a b c N",
        ranks=(1, 2, 3),
        inputs=joined("x"),
        program=lambda g, s, x: g.concat([g.full((s.b, *s.N), VALUE, "float32"), x], 0),
        candidate=lambda g, s, x: g.pad(x, around((s.b, 0), s.N), VALUE),
        twin=lambda g, s, x: g.pad(x, around((0, s.b), s.N), VALUE),
    ),
    mi.LawPair(
        "a constant after a tensor is a pad",
        sizes="a b c N",
        ranks=(1, 2, 3),
        inputs=joined("x"),
        program=lambda g, s, x: g.concat([x, g.full((s.b, *s.N), VALUE, "float32")], 0),
        candidate=lambda g, s, x: g.pad(x, around((0, s.b), s.N), VALUE),
        twin=lambda g, s, x: g.pad(x, around((0, s.b), s.N), VALUE + 1),
    ),
    mi.LawPair(
        "a nested concatenation is a list",
        sizes="a b c N",
        ranks=(1, 2, 3),
        inputs=joined("x", "y", "z"),
        program=lambda g, s, x, y, z: g.concat([x, g.concat([y, z], 0)], 0),
        candidate=lambda g, s, x, y, z: g.concat([x, y, z], 0),
        twin=lambda g, s, x, y, z: g.concat([z, y, x], 0),
    ),
]


def part(g, s, x, first, last):
    """A slice of all axes: from first to last of the first one, and N elements after P of the others."""
    x = g.slice(x, 0, first, last)
    for axis, (start, extent) in enumerate(zip(s.P, s.N, strict=True), 1):
        x = g.slice(x, axis, start, start + extent)
    return x
