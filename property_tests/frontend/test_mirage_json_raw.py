"""Checkpoints written operator by operator, without our µGraphs: odd but legal maps, each right one with a wrong twin."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest

from mirage_eg.frontend.mirage_json import read_published
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph
from mirage_eg.verify.proof import Prover
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Equality

Operator = dict[str, Any]
Shape = tuple[int, ...]
Map = tuple[int, int, int]


class Checkpoint:
    """The operators of one µGraph, and of the block graph that is being written."""

    def __init__(self, *shapes: Shape) -> None:
        self._guids = count(10_000_341)
        self.kernel: list[Operator] = []
        self.inputs = [self.library("input", shape) for shape in shapes]

    def library(self, name: str, shape: Shape, *operands: Operator) -> Operator:
        return self._operator(self.kernel, f"kn_{name}_op", operands, shape)

    def block(self, grid: Map, loop: int, columns: int = 64) -> None:
        self.loaded: list[Operator] = []
        self.stored: list[Operator] = []
        self.tiles: list[Operator] = []
        self.grid, self.loop, self.columns = grid, loop, columns

    def load(self, tensor: Operator, imap: Map, fmap: int, shape: Shape) -> Operator:
        if tensor not in self.loaded:
            self.loaded.append(tensor)
        fields = {"dtensor": tensor, "input_map": dict(zip("xyz", imap, strict=True)), "forloop_dim": fmap}
        return self._operator(self.tiles, "tb_input_op", (), shape, fields)

    def tile(self, name: str, shape: Shape, *operands: Operator) -> Operator:
        return self._operator(self.tiles, f"tb_{name}_op", operands, shape)

    def store(self, tile: Operator, omap: Map, shape: Shape) -> None:
        self.stored.append(self._tensor(shape))
        fields = {"dtensor": self.stored[-1], "output_map": dict(zip("xyz", omap, strict=True))}
        self.tiles.append({"op_type": "tb_output_op", "input_tensors": [tile], "output_tensors": []} | fields)

    def launch(self) -> list[Operator]:
        grid = dict(zip("xyz", self.grid, strict=True))
        graph = {"grid_dim": grid, "forloop_range": self.loop, "reduction_dimx": self.columns, "operators": self.tiles}
        fields = {"input_tensors": self.loaded, "output_tensors": self.stored, "bgraph": graph}
        self.kernel.append({"op_type": "kn_customized_op"} | fields)
        return self.stored

    def finish(self, *outputs: Operator) -> list[Operator]:
        return [*self.kernel, *({"op_type": "kn_output_op", "input_tensors": [x], "output_tensors": []} for x in outputs)]

    def _tensor(self, shape: Shape) -> Operator:
        return {"guid": next(self._guids), "num_dims": len(shape), "dim": [*shape, *[0] * (4 - len(shape))]}

    def _operator(
        self, operators: list[Operator], name: str, operands: Sequence[Operator], shape: Shape, fields: Operator | None = None
    ) -> Operator:
        tensor = self._tensor(shape)
        record = {"op_type": name, "input_tensors": list(operands), "output_tensors": [tensor]}
        operators.append(record | (fields or {}))
        return tensor


def split_keys(right: bool) -> list[Operator]:
    """Attention: partial sums side by side in the last dim, added in groups by a second kernel."""
    file = Checkpoint((2, 24, 16), (2, 16, 128), (2, 128, 16))
    q, k, v = file.inputs
    file.block((2, 8, 3), 4)
    rows = file.load(q, (0, -1, 1), -1, (1, 8, 16))
    scores = file.tile("matmul", (1, 8, 4), rows, file.load(k, (0, 2, -1), 2, (1, 16, 4)))
    weights = file.tile("exp", (1, 8, 4), scores)
    products = file.tile("matmul", (1, 8, 16), weights, file.load(v, (0, 1, -1), 1, (1, 4, 16)))
    file.store(file.tile("forloop_accum_nored", (1, 8, 16), products), (0, 2, 1), (2, 24, 128))
    file.store(file.tile("accum_red_ld_sum", (1, 8, 1), weights), (0, 2, 1), (2, 24, 8))  # older spelling
    numerators, denominators = file.launch()
    file.block((2, 12, 1), 1, columns=16)
    total = file.tile("forloop_accum_redtox_ld_sum", (1, 2, 16), file.load(numerators, (0, 1, -1), -1, (1, 2, 128)))
    kind = "sum" if right else "mean"
    divisor = file.tile(f"forloop_accum_red_ld_{kind}", (1, 2, 1), file.load(denominators, (0, 1, -1), -1, (1, 2, 8)))
    file.store(file.tile("div", (1, 2, 16), total, divisor), (0, 1, -1), (2, 24, 16))
    return file.finish(*file.launch())


def nested_norms(right: bool) -> list[Operator]:
    """rms(x + rms(h)), both norms inside the block."""
    file = Checkpoint((12, 96), (12, 96))
    file.block((6, 1, 1), 1)
    h, x = (file.load(tensor, (0, -1, -1), -1, (2, 96)) for tensor in file.inputs)
    inner, outer = (h, x) if right else (x, h)
    total = file.tile("add", (2, 96), outer, file.tile("rms_norm", (2, 96), inner))
    file.store(file.tile("forloop_accum_nored", (2, 96), file.tile("rms_norm", (2, 96), total)), (0, -1, -1), (12, 96))
    return file.finish(*file.launch())


def loaded_twice(right: bool) -> list[Operator]:
    """rms(x) W: x whole for its mean square, looped for the product; the kernel names it once."""
    file = Checkpoint((12, 64), (64, 40))
    x, w = file.inputs
    file.block((4, 5, 1), 8)
    whole, part = file.load(x, (0, -1, -1), -1, (3, 64)), file.load(x, (0, -1, -1), 1, (3, 8))
    product = file.tile("matmul", (3, 8), part, file.load(w, (-1, 1, -1), 0, (8, 8)))
    if right:
        root = file.tile("forloop_accum_red_ld_rms", (3, 1), part)
    else:  # the root of the sum of squares
        root = file.tile("sqrt", (3, 1), file.tile("reduction_1", (3, 1), file.tile("square", (3, 64), whole)))
    file.store(file.tile("div", (3, 8), file.tile("accum_nored", (3, 8), product), root), (0, 1, -1), (12, 40))
    return file.finish(*file.launch())


def mixed_radix(right: bool) -> list[Operator]:
    """exp(h) · x: two grid dims share the rows, the third has the columns."""
    file = Checkpoint((24, 16), (24, 16))
    file.block((2, 3, 4), 1)
    h, x = (file.load(tensor, (0, 0, 1), -1, (4, 4)) for tensor in file.inputs)
    powers, factors = (h, x) if right else (x, h)
    result = file.tile("mul", (4, 4), file.tile("exp", (4, 4), powers), factors)
    file.store(result, (0, 0, 1), (24, 16))
    return file.finish(*file.launch())


def counted(right: bool) -> list[Operator]:
    """4 x + y: what does not vary over the loop counts once for each of its iterations."""
    file = Checkpoint((8, 32), (8, 32))
    x, y = file.inputs
    file.block((2, 4, 1), 4 if right else 2)
    file.store(file.tile("forloop_accum_nored", (4, 8), file.load(x, (0, 1, -1), -1, (4, 8))), (0, 1, -1), (8, 32))
    return file.finish(file.library("add", (8, 32), *file.launch(), y))


def of_rank_four(right: bool) -> list[Operator]:
    """exp of a product, split over the columns by the third grid dim and looped over what is contracted."""
    file = Checkpoint((2, 3, 8, 16), (2, 3, 16, 24))
    x, y = file.inputs
    file.block((2, 3, 4), 4)
    left, rights = file.load(x, (0, 1, -1), 3, (1, 1, 8, 4)), file.load(y, (0, 1, 3), 2, (1, 1, 4, 6))
    result = file.tile("matmul", (1, 1, 8, 6), left, rights)
    for name in ("forloop_accum_nored", "exp") if right else ("exp", "forloop_accum_nored"):
        result = file.tile(name, (1, 1, 8, 6), result)
    file.store(result, (0, 1, 3), (2, 3, 8, 24))
    return file.finish(*file.launch())


PROGRAMS: dict[Callable[[bool], list[Operator]], tuple[list[Shape], Callable[..., Tensor]]] = {
    split_keys: ([(2, 24, 16), (2, 16, 128), (2, 128, 16)], lambda g, q, k, v: g.matmul(g.softmax(g.matmul(q, k), 2), v)),
    nested_norms: ([(12, 96)] * 2, lambda g, h, x: g.rms_norm(g.add(x, g.rms_norm(h, 96)), 96)),
    loaded_twice: ([(12, 64), (64, 40)], lambda g, x, w: g.matmul(g.rms_norm(x, 64), w)),
    mixed_radix: ([(24, 16)] * 2, lambda g, h, x: g.mul(g.exp(h), x)),
    counted: ([(8, 32)] * 2, lambda g, x, y: g.add(g.scale(x, 4), y)),
    of_rank_four: ([(2, 3, 8, 16), (2, 3, 16, 24)], lambda g, x, y: g.exp(g.matmul(x, y))),
}


@pytest.mark.parametrize("written", PROGRAMS, ids=lambda written: written.__name__)
def test_a_right_checkpoint_is_equal_and_proved_and_its_wrong_twin_is_not(written: Callable[[bool], list[Operator]]) -> None:
    shapes, compute = PROGRAMS[written]
    builder = KernelGraph()
    builder.mark_output(compute(builder, *map(builder.new_input, shapes)))
    program = builder.graph()
    graphs = read_published([written(True), written(False)])
    reference, prover = Reference(program), Prover(program)
    for graph, equal in zip(graphs, (True, False), strict=True):
        assert isinstance(graph, Graph)
        assert reference.check(graph).verdict is (Equality.EQUAL if equal else Equality.NOT_EQUAL)
        assert prover.prove(graph).proved is equal
