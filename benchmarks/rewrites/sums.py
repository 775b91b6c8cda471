"""Sums over axes, products of matrices with batches B, and convolutions."""

import mirage_eg as mi


def total(g, x, axes):
    """The sum over some axes, whose extents become 1."""
    for axis in axes:
        x = g.sum(x, axis)
    return x


def image(s):
    """An image [n, c, h, w] and a kernel [o, c, 3, 2] that fits into it."""
    return {"x": (s.n, s.c, s.h + 3, s.w + 2), "w": (s.o, s.c, 3, 2)}


def of_both_axes(g, s, combine, x, y):
    """The sum over batches b and k of the combined elements of x [b, m, k] and y [b, k, n]."""
    joint = combine(g.reshape(x, (s.b, s.m, s.k, 1)), g.reshape(y, (s.b, 1, s.k, s.n)))
    return g.reshape(g.sum(g.sum(joint, 0), 2), (1, s.m, s.n))


def as_matrix(g, x):
    """[n, c, 1, 1] as a matrix."""
    return g.reshape(x, x.shape[:2])


PAIRS = [
    mi.LawPair(
        "a product of sums",
        sizes="N M",
        ranks=(1, 2),
        inputs=lambda s: {"x": (*(1 for _ in s.M), *s.N), "y": (*s.M, *(1 for _ in s.N))},
        program=lambda g, s, x, y: g.mul(total(g, x, range(s.rank, 2 * s.rank)), total(g, y, s.axes)),
        candidate=lambda g, s, x, y: total(g, g.mul(x, y), range(2 * s.rank)),
        twin=lambda g, s, x, y: total(g, g.add(x, y), range(2 * s.rank)),
    ),
    mi.LawPair(
        "a sum of joined sums",
        sizes="a b N",
        ranks=(1, 2, 3),
        inputs=lambda s: {"x": (s.a, *s.N), "y": (s.b, *s.N)},
        program=lambda g, s, x, y: g.sum(g.concat([g.sum(x, 0), g.sum(y, 0)], 0), 0),
        candidate=lambda g, s, x, y: g.sum(g.concat([x, y], 0), 0),
        twin=lambda g, s, x, y: g.sum(g.concat([x, x], 0), 0),
    ),
    mi.LawPair(
        "a constant times a sum",
        sizes="N M",
        ranks=(1, 2),
        inputs=lambda s: {"x": (*s.N, *s.M), "c": (1,)},
        program=lambda g, s, x, c: g.mul(c, total(g, x, s.axes)),
        candidate=lambda g, s, x, c: total(g, g.mul(c, x), s.axes),
        twin=lambda g, s, x, c: total(g, g.add(c, x), s.axes),
    ),
    mi.LawPair(
        "a sum of a transposed tensor",
        sizes="N M",
        ranks=(1, 2),
        inputs=lambda s: {"x": (*s.N, *s.M)},
        program=lambda g, s, x: total(
            g, g.transpose(x, (*(s.rank + it for it in s.axes), *s.axes)), (s.rank + it for it in s.axes)
        ),
        candidate=lambda g, s, x: g.transpose(total(g, x, s.axes), (*(s.rank + it for it in s.axes), *s.axes)),
        twin=lambda g, s, x: g.scale(g.transpose(total(g, x, s.axes), (*(s.rank + it for it in s.axes), *s.axes)), 2),
    ),
    mi.LawPair(
        "a sum of a sum",
        sizes="N M",
        ranks=(1, 2),
        inputs=lambda s: {"x": (*s.N, *s.M)},
        program=lambda g, s, x: total(g, total(g, x, s.axes), range(s.rank, 2 * s.rank)),
        candidate=lambda g, s, x: total(g, x, reversed(range(2 * s.rank))),
        twin=lambda g, s, x: g.neg(total(g, x, range(2 * s.rank))),
    ),
    mi.LawPair(
        "a sum of products of batches is one product",
        sizes="b k m n",
        inputs=lambda s: {"x": (s.b, s.m, s.k), "y": (s.b, s.k, s.n)},
        program=lambda g, s, x, y: g.sum(g.matmul(x, y), 0),
        candidate=lambda g, s, x, y: of_both_axes(g, s, g.mul, x, y),
        twin=lambda g, s, x, y: of_both_axes(g, s, g.add, x, y),
        note="an axis of each kind; the product over both axes is written as a sum of products of elements",
    ),
    mi.LawPair(
        "a sum over axes of one element",
        sizes="n",
        inputs=lambda s: {"x": (1, s.n)},
        program=lambda g, s, x: g.reshape(g.sum(x, 0), (s.n,)),
        candidate=lambda g, s, x: g.reshape(x, (s.n,)),
        twin=lambda g, s, x: g.flip(g.reshape(x, (s.n,)), 0),
        note="an axis of each kind",
    ),
    mi.LawPair(
        "a sum over axes of one element of a transposed tensor",
        sizes="n",
        inputs=lambda s: {"x": (1, s.n)},
        program=lambda g, s, x: g.reshape(g.sum(g.transpose(x, (1, 0)), 1), (s.n,)),
        candidate=lambda g, s, x: g.reshape(x, (s.n,)),
        twin=lambda g, s, x: g.scale(g.reshape(x, (s.n,)), 2),
        note="an axis of each kind",
    ),
    mi.LawPair(
        "a product of joined matrices",
        sizes="a b m n",
        inputs=lambda s: {"x": (s.m, s.a), "y": (s.m, s.b), "c": (s.a, s.n), "d": (s.b, s.n)},
        program=lambda g, s, x, y, c, d: g.matmul(g.concat([x, y], 1), g.concat([c, d], 0)),
        candidate=lambda g, s, x, y, c, d: g.reshape(
            g.sum(
                g.concat(
                    [g.reshape(g.matmul(x, c), (1, s.m, s.n)), g.reshape(g.matmul(y, d), (1, s.m, s.n))],
                    0,
                ),
                0,
            ),
            (s.m, s.n),
        ),
        twin=lambda g, s, x, y, c, d: g.mul(g.matmul(x, c), g.matmul(y, d)),
        note="an axis of each kind",
    ),
    mi.LawPair(
        "a product in the other order",
        sizes="B m k n",
        ranks=(1, 2),
        inputs=lambda s: {"x": (*s.B, s.m, s.k), "y": (*s.B, s.k, s.n)},
        program=lambda g, s, x, y: g.matmul(x, y),
        candidate=lambda g, s, x, y: swapped(g, s, g.matmul(swapped(g, s, y), swapped(g, s, x))),
        twin=lambda g, s, x, y: g.scale(g.matmul(x, y), 2),
    ),
    mi.LawPair(
        "a product of three matrices",
        sizes="a b c d",
        inputs=lambda s: {"x": (s.a, s.b), "y": (s.b, s.c), "z": (s.c, s.d)},
        program=lambda g, s, x, y, z: g.matmul(x, g.matmul(y, z)),
        candidate=lambda g, s, x, y, z: g.matmul(g.matmul(x, y), z),
        twin=lambda g, s, x, y, z: g.matmul(g.matmul(x, g.flip(y, 0)), z),
        note="an axis of each kind",
    ),
    mi.LawPair(
        "a product without a summed axis",
        sizes="B m n",
        ranks=(1, 2),
        inputs=lambda s: {"x": (*s.B, s.m, 1), "y": (*s.B, 1, s.n)},
        program=lambda g, s, x, y: g.matmul(x, y),
        candidate=lambda g, s, x, y: g.mul(g.broadcast(x, (*s.B, s.m, s.n)), g.broadcast(y, (*s.B, s.m, s.n))),
        twin=lambda g, s, x, y: g.add(g.broadcast(x, (*s.B, s.m, s.n)), g.broadcast(y, (*s.B, s.m, s.n))),
    ),
    mi.LawPair(
        "a product with a vector is a sum of products",
        sizes="B m k",
        ranks=(1, 2),
        inputs=lambda s: {"x": (*s.B, s.m, s.k), "y": (*s.B, s.k, 1)},
        program=lambda g, s, x, y: g.matmul(x, y),
        candidate=lambda g, s, x, y: g.sum(g.mul(x, swapped(g, s, y)), s.rank + 1),
        twin=lambda g, s, x, y: g.sum(g.add(x, swapped(g, s, y)), s.rank + 1),
    ),
    mi.LawPair(
        "a convolution of a padded image",
        sizes="n c o h>=0 w>=0 p>=0 q>=0 r>=0 t>=0",
        inputs=image,
        program=lambda g, s, x, w: g.conv2d(g.pad(x, [(0, 0), (0, 0), (s.p, s.q), (s.r, s.t)]), w, pads=(1, 0, 0, 2)),
        candidate=lambda g, s, x, w: g.conv2d(x, w, pads=(s.p + 1, s.r, s.q, s.t + 2)),
        twin=lambda g, s, x, w: g.scale(g.conv2d(x, w, pads=(s.p + 1, s.r, s.q, s.t + 2)), 2),
        note="two spatial axes, a kernel of 3 × 2, without interior padding",
    ),
    mi.LawPair(
        "a convolution with every second tap",
        sizes="n c o h>=0 w>=0",
        inputs=lambda s: {"x": (s.n, s.c, s.h + 5, s.w + 5), "w": (s.o, s.c, 3, 3)},
        program=lambda g, s, x, w: g.conv2d(
            x, g.patch(g.full((s.o, s.c, 5, 5), 0, "float32"), [w], [(0, 0, 0, 0)], [(1, 1, 2, 2)])
        ),
        candidate=lambda g, s, x, w: g.conv2d(x, w, dilations=2),
        twin=lambda g, s, x, w: g.conv2d(x, g.flip(w, 2), dilations=2),
        note="a kernel of 3 × 3, with interior padding of 1 as a patch with steps",
    ),
    mi.LawPair(
        "image and kernel change places",
        sizes="n c o",
        inputs=lambda s: {"x": (s.n, s.c, 4, 5), "w": (s.o, s.c, 3, 2)},
        program=lambda g, s, x, w: g.conv2d(x, w, pads=(2, 1)),
        candidate=lambda g, s, x, w: g.transpose(g.conv2d(g.flip(w, (2, 3)), g.flip(x, (2, 3)), pads=(3, 4)), (1, 0, 2, 3)),
        twin=lambda g, s, x, w: g.transpose(g.conv2d(w, g.flip(x, (2, 3)), pads=(3, 4)), (1, 0, 2, 3)),
        note="an image of 4 × 5 and a kernel of 3 × 2: the two sums are over different elements",
    ),
    mi.LawPair(
        "a convolution of images of one element is a product",
        sizes="n c o",
        inputs=lambda s: {"x": (s.n, s.c, 1, 1), "w": (s.o, s.c, 1, 1)},
        program=lambda g, s, x, w: as_matrix(g, g.conv2d(x, w)),
        candidate=lambda g, s, x, w: g.matmul(as_matrix(g, x), g.transpose(as_matrix(g, w), (1, 0))),
        twin=lambda g, s, x, w: g.matmul(as_matrix(g, x), g.transpose(as_matrix(g, g.scale(w, 2)), (1, 0))),
        note="two spatial axes",
    ),
    mi.LawPair(
        "a convolution of an image padded twice",
        sizes="n c o h>=0 w>=0 p>=0 q>=0 r>=0",
        inputs=image,
        program=lambda g, s, x, w: g.conv2d(
            g.pad(g.pad(x, [(0, 0), (0, 0), (s.p, 0), (0, s.q)]), [(0, 0), (0, 0), (s.r, s.r), (0, 0)]), w
        ),
        candidate=lambda g, s, x, w: g.conv2d(x, w, pads=(s.p + s.r, 0, s.r, s.q)),
        twin=lambda g, s, x, w: g.neg(g.conv2d(x, w, pads=(s.p + s.r, 0, s.r, s.q))),
        note="two spatial axes, a kernel of 3 × 2, without interior padding",
    ),
]


def swapped(g, s, x):
    """A tensor with batches B and its last two axes transposed."""
    return g.transpose(x, (*s.axes, s.rank + 1, s.rank))
