"""Random tensor programs of everyday shape for end-to-end tests: any kernel-level op, extents 1 to 64 with primes, three types.

A program grows op by op. The second operand of a binary op is an earlier value that fits, or a new input: most tries are legal.
The same seed gives the same program.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from random import Random
from typing import Any

from mirage_eg.ir.checker import Checker
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import Node, TensorType, node
from mirage_eg.ir.op.elementwise import COMPARISONS
from mirage_eg.ir.ops import OPS, Kind, Level
from mirage_eg.ir.shapes import Shape
from mirage_eg.testing import OF_A_TYPE

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 17, 24, 31, 32, 37, 48, 49, 53, 61, 64)
DTYPES = ("float16", "bfloat16", "float32")
CONSTANTS = tuple(map(Fraction, ("1/8", "-3/4", "2", "0.1", "1/768", "0.044715", "3", "1e-5")))
EXPONENTS = tuple(map(Fraction, ("2", "3", "-1", "1/2", "3/5")))
MOST_ELEMENTS = 1 << 16  # of one value
MOST_INPUTS = 6

# A rounding turns a comparison of almost equal values; library ops need indices (`test_library_ops.py`).
OF_IMAGES = frozenset({"batch_norm", "enlarge", "take"})  # each wants a rank or places; their tests are those of images
LEFT_OUT = (Kind.BOUNDARY, Kind.GRAPH, Kind.LIBRARY)
OP_NAMES = tuple(
    sorted(
        name
        for name, op in OPS.items()
        if Level.KERNEL in op.levels and op.kind not in LEFT_OUT and name not in COMPARISONS | OF_IMAGES | OF_A_TYPE
    )
)
# A third of all ops are products, reductions and norms: everyday programs consist of these.
WEIGHTS = tuple(4 if OPS[name].kind in (Kind.MATMUL, Kind.DERIVED, Kind.REDUCTION) else 2 for name in OP_NAMES)


def random_program(random: Random, least: int = 3, most: int = 16) -> Graph:
    """A program of `least` to `most` ops over one to six inputs; every value without a use is an output."""
    dtype, extents = random.choice(DTYPES), random.sample(EXTENTS, random.randint(2, 4))
    nodes = [_input(_shape(random, extents, random.randint(2, 3)), dtype)]
    wanted = random.randint(least, most)
    while wanted:
        types = _types(nodes)
        grown = [*nodes, *_step(random, types, sum(item.op == "input" for item in nodes) < MOST_INPUTS, extents, dtype)]
        try:
            *_, last = _types(grown)
        except GraphError:
            continue
        if prod(last.shape) <= MOST_ELEMENTS:
            nodes, wanted = grown, wanted - 1
    used = {operand for item in nodes for operand in item.operands}
    return Graph((*nodes, *(node("output", value) for value in range(len(nodes)) if value not in used)))


def _types(nodes: Sequence[Node]) -> list[TensorType]:
    checker = Checker(Level.KERNEL)
    for item in nodes:
        checker.append(item)
    return checker.types


def _input(shape: Shape, dtype: str) -> Node:
    return node("input", shape=shape, dtype=dtype)


def _shape(random: Random, extents: Sequence[int], rank: int) -> Shape:
    return tuple(random.choice(extents) for _ in range(rank))


def _step(random: Random, types: Sequence[TensorType], may_add: bool, extents: Sequence[int], dtype: str) -> list[Node]:
    """One more op, perhaps after an input of its own; it may be illegal."""
    name = random.choices(OP_NAMES, WEIGHTS)[0]
    first = max(random.randrange(len(types)) for _ in range(2))  # late values are more likely: programs become deep
    shape = types[first].shape
    least, most = OPS[name].arity
    operands = [first]
    added: list[Node] = []
    conditions = OPS[name].conditions
    if conditions and may_add:
        added.append(_input(_partner(random, name, shape, extents), "bool"))
        operands.insert(0, len(types))
    for _ in range(random.randint(least, min(most, 3)) - 1 - conditions):
        wanted = _partner(random, name, shape, extents)
        fitting = [value for value, kind in enumerate(types) if kind.shape == wanted]
        if fitting and random.random() < 0.6:
            operands.append(random.choice(fitting))
        elif may_add:
            operands.append(len(types) + len(added))
            added.append(_input(wanted, dtype))
        else:
            operands.append(random.randrange(len(types)))
    if len(operands) == 2 and OPS[name].kind is Kind.ELEMENTWISE and random.random() < 0.5:
        operands.reverse()
    return [*added, node(name, *operands, **_attributes(random, name, shape))]


def _partner(random: Random, name: str, shape: Shape, extents: Sequence[int]) -> Shape:
    """A shape that the other operand of `name` may have."""
    match name:
        case "matmul":
            batch = shape[:-2] if random.random() < 0.5 else ()
            return (*batch, shape[-1], random.choice(extents))
        case "rms_norm" | "layer_norm":
            return shape[-1:]
        case "concat":
            return shape
        case _:  # elementwise: broadcast some dims
            kept = tuple(extent if random.random() < 0.7 else 1 for extent in shape)
            return kept if random.random() < 0.8 else kept[random.randrange(len(kept)) :]


def _attributes(random: Random, name: str, shape: Shape) -> dict[str, Any]:
    dim = random.randrange(len(shape))
    match name:
        case "sum" | "mean" | "max" | "softmax" | "concat":
            return {"dim": dim}
        case "rms_norm" | "layer_norm":
            return {"dims": 1, "eps": random.choice([None, Fraction(1, 10**5), Fraction(1, 100)])}
        case "reshape":
            return {
                "shape": random.choice(
                    [(prod(shape),), (prod(shape[:-1]), shape[-1]), (1, *shape), (*shape[:-1], 1, shape[-1])]
                )
            }
        case "transpose":
            return {"permutation": tuple(random.sample(range(len(shape)), len(shape)))}
        case "split":
            parts = random.choice([count for count in (1, 2, 3, 4) if shape[dim] % count == 0])
            return {"dim": dim, "parts": parts, "index": random.randrange(parts)}
        case "slice":
            start = random.randrange(shape[dim])
            return {"dim": dim, "start": start, "stop": random.randint(start + 1, shape[dim]), "step": random.randint(1, 2)}
        case "broadcast":
            return {"shape": tuple(random.choice(EXTENTS) if extent == 1 else extent for extent in shape)}
        case "repeat":
            return {"dim": dim, "times": random.randint(2, 3)}
        case "pow":
            return {"exponent": random.choice(EXPONENTS)}
        case "clamp":
            low = random.choice(CONSTANTS)
            return {"low": low - 1, "high": low + 1}
        case "scale":
            return {"factor": random.choice(CONSTANTS)}
        case "cast":
            return {"dtype": random.choice(DTYPES)}
        case "leaky_relu":
            return {"slope": random.choice(CONSTANTS)}
        case "elu":
            return {"alpha": random.choice(CONSTANTS)}
        case "fill":
            return {"value": random.choice(CONSTANTS)}
        case "shift":
            return {"offset": random.choice(CONSTANTS)}
        case _:
            return {}
