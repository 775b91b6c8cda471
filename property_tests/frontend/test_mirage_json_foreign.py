"""Checkpoints that the published ones do not show: other workloads, batch sizes, spellings, types, and faults in the middle."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirage_eg.ir import serialize
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.threadblock_graph import ThreadblockGraph
from property_tests.support.command import run_command
from property_tests.support.mirage_json_writer import write

Block = Callable[[ThreadblockGraph, list[Tensor]], list[Tensor]]
Maps = tuple[tuple[int, int, int], int]  # imap, fmap
NO = (-1, -1, -1)


def kernel(
    program: KernelGraph,
    inputs: list[Tensor],
    grid: tuple[int, int, int],
    loop: int,
    maps: list[Maps],
    omaps: list[tuple[int, int, int]],
    body: Block,
) -> list[Tensor]:
    """A customized kernel."""
    tiles = ThreadblockGraph(grid, forloop_range=loop)
    loaded = [tiles.new_input(x, imap, fmap) for x, (imap, fmap) in zip(inputs, maps, strict=True)]
    for result, omap in zip(body(tiles, loaded), omaps, strict=True):
        tiles.new_output(result, omap)
    return program.customized(inputs, tiles)


def finish(program: KernelGraph, *outputs: Tensor) -> Graph:
    for output in outputs:
        program.mark_output(output)
    return program.graph()


def foreign(data: list[Any], seed: int = 0) -> list[Any]:
    """Guids of another process, fields that mean nothing here, keys in another order."""
    generator = random.Random(seed)
    known: dict[int, int] = {}

    def changed(x: Any) -> Any:
        if isinstance(x, list):
            return [changed(item) for item in x]
        if not isinstance(x, dict):
            return x
        fields = {key: changed(value) for key, value in x.items()}
        if "guid" in fields:
            fields["guid"] = known.setdefault(fields["guid"], 10_000_000 + generator.randrange(10**6) * 100 + len(known))
            fields |= {"smem_offset": 128 * len(known), "after_accum": False}
        if "op_type" in fields:
            fields |= {"input_strides": [0, 0], "num_inputs": len(fields["input_tensors"])}
        keys = list(fields)
        generator.shuffle(keys)
        return {key: fields[key] for key in keys}

    graphs = []
    for graph in data:
        known.clear()
        graphs.append(changed(graph))
    return graphs


def gated(rows: int, width: int, outputs: int, form: str) -> Graph:
    """silu(X U) · (X V), or both factors."""
    program = KernelGraph()
    x, u, v = program.new_input((rows, width)), program.new_input((width, width)), program.new_input((width, width))
    if form == "program":
        left, right = program.silu(program.matmul(x, u)), program.matmul(x, v)
        return finish(program, *([left, right] if outputs == 2 else [program.mul(left, right)]))
    if form in ("one kernel", "silu in the loop"):

        def body(tiles: ThreadblockGraph, loaded: list[Tensor]) -> list[Tensor]:
            a, b, c = loaded
            product = tiles.matmul(a, b)
            if form == "silu in the loop":
                left = tiles.forloop_accum(tiles.silu(product))
            else:
                left = tiles.silu(tiles.forloop_accum(product))
            right = tiles.forloop_accum(tiles.matmul(a, c))
            return [left, right] if outputs == 2 else [tiles.mul(left, right)]

        maps: list[Maps] = [((0, -1, -1), 1), ((-1, 1, -1), 0), ((-1, 1, -1), 0)]
        return finish(program, *kernel(program, [x, u, v], (2, 8, 1), 4, maps, [(0, 1, -1)] * outputs, body))
    # library products, the factors in a kernel of their own
    y, z = program.matmul(x, u), program.matmul(x, v)
    if form == "swapped":
        y, z = z, y

    def factors(tiles: ThreadblockGraph, loaded: list[Tensor]) -> list[Tensor]:
        a, b = (tiles.forloop_accum(tile) for tile in loaded)
        return [tiles.silu(a), b] if outputs == 2 else [tiles.mul(tiles.silu(a), b)]

    return finish(program, *kernel(program, [y, z], (2, 8, 1), 1, [((0, 1, -1), -1)] * 2, [(0, 1, -1)] * outputs, factors))


def attention(shape: tuple[int, int, int, int], form: str) -> Graph:
    """softmax(Q K) V for heads, rows, width, keys."""
    heads, rows, width, keys = shape
    program = KernelGraph()
    q, k = program.new_input((heads, rows, width)), program.new_input((heads, width, keys))
    v = program.new_input((heads, keys, width))
    scores = program.matmul(q, k)
    if form == "program":
        return finish(program, program.matmul(program.softmax(scores, 2), v))
    if form == "library":
        exponentials = program.exp(scores)
        return finish(program, program.matmul(program.div(exponentials, program.reduction(exponentials, 2)), v))

    def weights(tiles: ThreadblockGraph, loaded: list[Tensor]) -> list[Tensor]:
        exponentials = tiles.exp(loaded[0])
        total = tiles.forloop_accum(exponentials, "sum", 1 if form == "columns" else 2)
        return [tiles.div(tiles.forloop_accum(exponentials), total)]

    if form == "columns":  # sums over the queries
        tiles = ThreadblockGraph((heads, 1, 1), forloop_range=1)
        exponentials = tiles.exp(tiles.new_input(scores, (0, -1, -1)))
        tiles.new_output(
            tiles.div(tiles.forloop_accum(exponentials), tiles.forloop_accum(tiles.sum(exponentials, 1))), (0, -1, -1)
        )
        [normal] = program.customized([scores], tiles)
    else:
        [normal] = kernel(program, [scores], (heads, 2, 1), 1, [((0, 1, -1), -1)], [(0, 1, -1)], weights)
    return finish(program, program.matmul(normal, v))


def residual(rows: int, width: int, form: str) -> Graph:
    """rms(h + x), the norm inside the block."""
    program = KernelGraph()
    h, x = program.new_input((rows, width)), program.new_input((rows, width))
    if form == "program":
        return finish(program, program.rms_norm(program.add(h, x), width))

    def body(tiles: ThreadblockGraph, loaded: list[Tensor]) -> list[Tensor]:
        total = tiles.add(*loaded)
        if form == "norm in the block":
            return [tiles.forloop_accum(tiles.op("rms_norm", total, dims=1))]
        root = tiles.forloop_accum(total, "rms", 1)  # over the loop
        return [tiles.div(tiles.forloop_accum(total), root)]

    split = form == "norm of a part"
    body = (lambda tiles, loaded: [tiles.forloop_accum(tiles.op("rms_norm", tiles.add(*loaded), dims=1))]) if split else body
    maps: list[Maps] = [((0, 1 if split else -1, -1), -1)] * 2
    return finish(program, *kernel(program, [h, x], (4, 2 if split else 1, 1), 1, maps, [(0, 1 if split else -1, -1)], body))


CASES: dict[str, tuple[Graph, list[Graph], list[bool]]] = {
    "gated MLP": (
        gated(16, 64, 1, "program"),
        [gated(16, 64, 1, form) for form in ("one kernel", "three kernels", "silu in the loop", "swapped")],
        [True, True, False, False],
    ),
    "gated MLP, two outputs, another batch": (
        gated(64, 64, 2, "program"),
        [gated(64, 64, 2, form) for form in ("swapped", "one kernel", "three kernels", "silu in the loop")],
        [False, True, True, False],
    ),
    "multi-head attention with library products": (
        attention((8, 16, 16, 64), "program"),
        [attention((8, 16, 16, 64), form) for form in ("three kernels", "library", "columns")],
        [True, True, False],
    ),
    "multi-query attention with library products": (
        attention((1, 128, 16, 64), "program"),
        [attention((1, 128, 16, 64), form) for form in ("columns", "three kernels", "library")],
        [False, True, True],
    ),
    "h + x with the norm inside": (
        residual(8, 64, "program"),
        [residual(8, 64, form) for form in ("norm in the block", "accumulated root", "norm of a part")],
        [True, True, False],
    ),
}


def run(
    folder: Path, program: Graph, data: Any, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, list[str], str]:
    (folder / "program.json").write_text(serialize.to_json(program))
    (folder / "graphs.json").write_text(data if isinstance(data, str) else json.dumps(data))
    code, out, err = run_command(capsys, "verify", folder / "program.json", folder / "graphs.json", *options)
    return code, out.splitlines(), err


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_foreign_file_gets_a_verdict_for_each_graph_and_proofs_if_right(
    name: str, older: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, graphs, right = CASES[name]
    code, lines, err = run(tmp_path, program, foreign(write(*graphs, older=older)), capsys, "--json")
    verdicts = [json.loads(line) for line in lines]
    assert (code, err) == (1, "")
    assert [line["verdict"] for line in verdicts] == ["equal" if equal else "not equal" for equal in right]
    assert ["proved" in line["evidence"] for line in verdicts] == right


def test_unknown_operators_and_types_in_the_middle_leave_the_other_verdicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, graphs, _ = CASES["gated MLP"]
    data = foreign(write(*graphs[:2], *graphs[:2], graphs[2]))
    next(item for item in data[1] if item["op_type"] == "kn_matmul_op")["op_type"] = "kn_all_reduce_op"
    block = next(item for item in data[2] if "bgraph" in item)["bgraph"]
    block["operators"][4]["op_type"] = "tb_forloop_accum_nored_rescale_op"
    data[3][0]["output_tensors"][0]["data_type"] = 926
    code, lines, err = run(tmp_path, program, data, capsys)
    assert (code, err) == (2, "")
    assert [line.split(": ")[2].split(" (")[0] for line in lines if "µGraph " in line] == [
        "equal",
        "unsupported",
        "unsupported",
        "unsupported",
        "not equal",
    ]
    said = "\n".join(lines)
    assert all(name in said for name in ("kn_all_reduce_op", "tb_forloop_accum_nored_rescale_op", "data_type 926"))
    assert lines[-1].endswith("5 µGraphs: 1 equal, 1 not equal, 0 undecided, 3 unsupported")


def spoil(data: list[Any], how: str) -> Any:
    """A fault in the second µGraph of a good file."""
    block = next(item for item in data[1] if "bgraph" in item)
    tiles = block["bgraph"]["operators"]
    match how:
        case "cut in the middle":
            text = json.dumps(data)
            return text[: len(text) // 2]
        case "loop over an extent that it does not divide":
            block["bgraph"]["forloop_range"] = 3
        case "grid over an extent that it does not divide":
            block["bgraph"]["grid_dim"]["y"] = 7
        case "map to a dim that is not there":
            tiles[0]["input_map"]["x"] = 2
        case "two shapes for one tensor":
            block["output_tensors"][0]["dim"][0] *= 2
        case "tile of another shape":
            tiles[3]["output_tensors"][0]["dim"][0] += 1
        case "operand of nobody":
            tiles[3]["input_tensors"][0]["guid"] += 1
        case "other inputs than the program":
            data[1] = foreign(write(CASES["h + x with the norm inside"][1][0]))[0]
        case "no outputs":
            data[1] = data[1][:-1]
    return data


FAULTS = {
    "cut in the middle": "not JSON",
    "loop over an extent that it does not divide": "not divisible by 3",
    "grid over an extent that it does not divide": "not divisible by 7",
    "map to a dim that is not there": "µGraph 1",
    "two shapes for one tensor": "got shape",
    "tile of another shape": "got shape",
    "operand of nobody": "which no operator before it makes",
    "other inputs than the program": "got a candidate that takes",
    "no outputs": "µGraph 1",
}


@pytest.mark.parametrize("how", FAULTS)
def test_a_fault_inside_a_good_file_is_one_line_that_names_the_graph(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, graphs, _ = CASES["gated MLP"]
    code, lines, err = run(tmp_path, program, spoil(foreign(write(*graphs[:1], *graphs[:1], graphs[1])), how), capsys)
    assert (code, lines) == (2, [])
    assert err.count("\n") == 1 and FAULTS[how] in err and "graphs.json" in err
    assert how == "cut in the middle" or "µGraph 1" in err


def test_an_attention_whose_exponentials_overflow_is_equal_and_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = (8, 16, 64, 64)
    program = attention(shape, "program")
    forms = [attention(shape, form) for form in ("library", "three kernels")]  # our own kernel shifts its exponentials
    code, lines, err = run(tmp_path, program, write(*forms), capsys, "--floats", "--json")
    verdicts = list(map(json.loads, lines))
    assert (code, err, [verdict["verdict"] for verdict in verdicts]) == (1, "", ["equal", "equal"])
    assert [verdict["float_check"]["ok"] for verdict in verdicts] == [False, True]
    assert [verdict["float_check"]["overflows"] for verdict in verdicts] == [True, False]
    safe = KernelGraph()
    q, k, v = (safe.new_input(kind.shape) for kind in program.input_types)
    scores = safe.matmul(q, k)
    weights = safe.softmax(safe.sub(scores, safe.max(scores, 2)), 2)
    code, lines, err = run(tmp_path, program, serialize.to_json(finish(safe, safe.matmul(weights, v))), capsys, "--floats")
    assert (code, err) == (0, "") and "as kernels compute: right (" in lines[-1]
