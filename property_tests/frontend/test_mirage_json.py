"""Other people's µGraphs get the right verdict, and files that contradict themselves one clear line."""

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from mirage_eg.frontend.load import load_program
from mirage_eg.frontend.mirage_json import DTYPES, Unsupported, read_published
from mirage_eg.ir import serialize
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.threadblock_graph import ThreadblockGraph
from mirage_eg.verify.evidence import verify_candidates
from mirage_eg.verify.reference import Reference
from mirage_eg.verify.verdict import Equality
from property_tests.support.command import run_command, start_command
from property_tests.support.mirage_json_writer import write
from property_tests.support.parameters import few

FOLDER = Path(os.environ.get("MIRAGE_EG_PUBLISHED", Path(__file__).parents[3] / "shared" / "data" / "mirage"))
PROGRAMS = Path(__file__).parents[1] / "published"
CHECKPOINTS = [
    ("rmsnorm", 1, "rmsnorm_bs1", 18, Equality.EQUAL),
    ("gqa", 8, "gqa_bs8", 10, Equality.EQUAL),
    ("lora", 1, "lora_bs1", 4, Equality.EQUAL),
    ("qknorm", 1, "qknorm_gqa_bs1_first10", 10, Equality.NOT_EQUAL),
]
published = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no checkpoints in {FOLDER} (MIRAGE_EG_PUBLISHED names the folder)")


@published
@pytest.mark.parametrize(
    ("name", "batch", "file", "count", "verdict"), few([CHECKPOINTS[2], *CHECKPOINTS[:2], CHECKPOINTS[3]], 1)
)
def test_published_graphs_get_the_right_verdict_and_the_equal_ones_a_proof(
    name: str, batch: int, file: str, count: int, verdict: Equality
) -> None:
    _, program = load_program(str(PROGRAMS / f"{name}.py"), batch)
    graphs = serialize.read(FOLDER / f"{file}.json", read_published)
    named = {str(i): graph for i, graph in enumerate(graphs) if isinstance(graph, Graph)}
    results = [result for result, _ in verify_candidates(program, named)]
    assert [result.verdict for result in results] == [verdict] * count
    assert all(("proved" in result.evidence) == (verdict is Equality.EQUAL) for result in results)


@published
@pytest.mark.slow
@pytest.mark.skipif(settings().max_examples < 200, reason="every seed with HYPOTHESIS_PROFILE=nightly")
@pytest.mark.parametrize("seed", range(1, 10))  # 0 is what `verify_candidates` above draws by
@pytest.mark.parametrize(("name", "batch", "file", "count", "verdict"), CHECKPOINTS)
def test_published_graphs_get_the_same_verdict_with_every_seed(
    name: str, batch: int, file: str, count: int, verdict: Equality, seed: int
) -> None:
    _, program = load_program(str(PROGRAMS / f"{name}.py"), batch)
    graphs = [graph for graph in serialize.read(FOLDER / f"{file}.json", read_published) if isinstance(graph, Graph)]
    tested = Reference(program, 1, seed).check_all(graphs)  # a single draw tells
    assert [result.verdict for result, _ in tested] == [verdict] * count


def gated(block: bool, outputs: int, wrong: bool = False) -> Graph:
    """silu(X W1) · (X W2), or the two factors; as library kernels or as one block graph."""
    program = KernelGraph()
    x, u, v = program.new_input((8, 32)), program.new_input((32, 48)), program.new_input((32, 48))
    if not block:
        left, right = program.silu(program.matmul(x, u)), program.matmul(x, v)
        results = [left, right] if outputs == 2 else [program.mul(left, right)]
    else:
        tiles = ThreadblockGraph((6, 1, 1), forloop_range=4)
        a, b, c = tiles.new_input(x, (-1, -1, -1), 1), tiles.new_input(u, (1, -1, -1), 0), tiles.new_input(v, (1, -1, -1), 0)
        left = tiles.forloop_accum(tiles.matmul(a, b))
        left = left if wrong else tiles.silu(left)
        right = tiles.forloop_accum(tiles.matmul(a, c))
        for result in [left, right] if outputs == 2 else [tiles.mul(left, right)]:
            tiles.new_output(result, (1, -1, -1))
        results = program.customized([x, u, v], tiles)
    for result in results:
        program.mark_output(result)
    return program.graph()


def attention_inputs(program: KernelGraph, rows: int, heads: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    return program.new_input((heads, rows, 8)), program.new_input((heads, 8, 64)), program.new_input((heads, 64, 8))


def attention(rows: int, heads: int = 4) -> Graph:
    program = KernelGraph()
    q, k, v = attention_inputs(program, rows, heads)
    program.mark_output(program.matmul(program.softmax(program.matmul(q, k), 2), v))
    return program.graph()


def three_kernels(rows: int, wrong: bool = False) -> Graph:
    """Library product, one block graph for the softmax, library product: multi-head and multi-query attention."""
    program = KernelGraph()
    q, k, v = attention_inputs(program, rows)
    scores = program.matmul(q, k)
    tiles = ThreadblockGraph((4, 2, 1), forloop_range=1)
    tile = tiles.new_input(scores, (0, 1, -1), -1)
    exponentials = tiles.exp(tile)
    total = tiles.forloop_accum(tile if wrong else exponentials, "sum", 2)
    tiles.new_output(tiles.div(tiles.forloop_accum(exponentials), total), (0, 1, -1))
    [weights] = program.customized([scores], tiles)
    program.mark_output(program.matmul(weights, v))
    return program.graph()


def split_keys(rows: int, contiguous: bool = False) -> Graph:
    """Keys split over the grid, partial results side by side in the last dim, summed by a strided group sum."""
    program = KernelGraph()
    q, k, v = attention_inputs(program, rows)
    tiles = ThreadblockGraph((4, 4, 1), forloop_range=2)
    a, b, c = tiles.new_input(q, (0, -1, -1)), tiles.new_input(k, (0, 2, -1), 2), tiles.new_input(v, (0, 1, -1), 1)
    exponentials = tiles.exp(tiles.matmul(a, b))
    tiles.new_output(tiles.forloop_accum(tiles.matmul(exponentials, c)), (0, 2, -1))
    tiles.new_output(tiles.forloop_accum(exponentials, "sum", 2), (0, 2, -1))
    over, under = program.customized([q, k, v], tiles)
    combine = ThreadblockGraph((4, 1, 1), forloop_range=1)
    x, y = combine.new_input(over, (0, -1, -1), -1), combine.new_input(under, (0, -1, -1), -1)
    total = combine.forloop_accum_strided(x, 16 if contiguous else 8, 2)
    sums = combine.forloop_accum(y, "sum", 2)
    if contiguous:  # two of the four partial results only
        total = combine.split(total, 2, 2)[0]
    combine.new_output(combine.div(total, sums), (0, -1, -1))
    [result] = program.customized([over, under], combine)
    program.mark_output(result)
    return program.graph()


def residual_norm(block: bool, wrong: bool = False) -> Graph:
    """rms(x + h), with the norm inside the block."""
    program = KernelGraph()
    h, x = program.new_input((8, 32)), program.new_input((8, 32))
    if not block:
        program.mark_output(program.rms_norm(program.add(h, x), 32))
        return program.graph()
    tiles = ThreadblockGraph((1, 1, 1) if wrong else (4, 2, 1), forloop_range=1)
    maps = (-1, -1, -1) if wrong else (0, 0, -1)
    a, b = tiles.new_input(h, maps, -1), tiles.new_input(x, maps, -1)
    total = tiles.forloop_accum(tiles.add(tiles.op("rms_norm", a, dims=1) if wrong else a, b))
    tiles.new_output(total if wrong else tiles.op("rms_norm", total, dims=1), maps)
    [result] = program.customized([h, x], tiles)
    program.mark_output(result)
    return program.graph()


UNSEEN: list[tuple[str, Graph, Callable[[], Graph], bool]] = [
    ("gated MLP, one output", gated(False, 1), lambda: gated(True, 1), True),
    ("gated MLP without silu", gated(False, 1), lambda: gated(True, 1, wrong=True), False),
    ("gated MLP, two outputs", gated(False, 2), lambda: gated(True, 2), True),
    ("gated MLP, one wrong output of two", gated(False, 2), lambda: gated(True, 2, wrong=True), False),
    ("multi-head attention, three kernels", attention(2), lambda: three_kernels(2), True),
    ("multi-query attention, three kernels", attention(16), lambda: three_kernels(16), True),
    ("attention that sums scores", attention(16), lambda: three_kernels(16, wrong=True), False),
    ("attention, keys split over the grid", attention(16), lambda: split_keys(16), True),
    ("attention that drops partial results", attention(16), lambda: split_keys(16, contiguous=True), False),
    ("h + x with the norm inside", residual_norm(False), lambda: residual_norm(True), True),
    ("the norm before the addition", residual_norm(False), lambda: residual_norm(True, wrong=True), False),
]


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize(("program", "candidate", "equal"), [case[1:] for case in UNSEEN], ids=[case[0] for case in UNSEEN])
def test_unseen_files_are_read_as_written_and_get_the_right_verdict(
    program: Graph, candidate: Callable[[], Graph], equal: bool, older: bool
) -> None:
    graph = candidate()
    if any(item.op == "split" for entry in graph.nodes for item in getattr(entry.get("graph"), "nodes", ())):
        read: Any = graph  # the format has no split
    else:
        [read] = read_published(json.loads(json.dumps(write(graph, older=older))))
    assert isinstance(read, Graph)
    [(verdict, _)] = verify_candidates(program, {"0": read})
    assert verdict.verdict is (Equality.EQUAL if equal else Equality.NOT_EQUAL)
    assert ("proved" in verdict.evidence) == equal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.json").write_text(serialize.to_json(gated(False, 1)))
    return tmp_path


def test_an_unknown_op_is_unsupported_and_its_neighbours_keep_their_verdicts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(gated(True, 1), gated(True, 1), gated(True, 1, wrong=True))
    [block] = [operator for operator in data[1] if "bgraph" in operator]
    block["bgraph"]["operators"][5]["op_type"] = "tb_wavelet_op"
    (folder / "graphs.json").write_text(json.dumps(data))
    code, out, err = run_command(capsys, "verify", folder / "program.json", folder / "graphs.json", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (2, "")
    assert [line["verdict"] for line in lines] == ["equal", "unsupported", "not equal"]
    assert [line["index"] for line in lines] == [0, 1, 2]
    assert lines[1]["op"] == "tb_wavelet_op"
    assert all({"evidence", "bound", "seconds"} <= set(line) for line in lines)
    code, out, err = run_command(capsys, "verify", folder / "program.json", folder / "graphs.json")
    assert (code, err) == (2, "")
    assert out.splitlines()[-1].endswith("3 µGraphs: 1 equal, 1 not equal, 0 undecided, 1 unsupported")
    assert "tb_wavelet_op" in out and "first difference at" in out


def broken(name: str) -> bytes:
    """A hostile file."""
    data = write(gated(True, 1))
    [block] = [operator for operator in data[0] if "bgraph" in operator]
    match name:
        case "cut":
            return json.dumps(data).encode()[:2000]
        case "empty":
            return b""
        case "no graphs":
            return b"[]"
        case "noise":
            return random.Random(0).randbytes(100_000_000)
        case "deep":
            return b"[" * 1_000_000
        case "shape":
            block["bgraph"]["operators"][3]["output_tensors"][0]["dim"][1] = 7
        case "indivisible":
            block["bgraph"]["forloop_range"] = 5
        case "dangling":
            block["bgraph"]["operators"][3]["input_tensors"][0]["guid"] = 77
        case "missing":
            del block["bgraph"]["operators"][0]["input_map"]
        case "types":
            block["bgraph"]["grid_dim"] = [6, 1, 1]
        case "other inputs":
            data = write(three_kernels(2))
    return json.dumps(data).encode()


HOSTILE = {
    "cut": "not JSON",
    "empty": "not JSON",
    "no graphs": "got an empty list",
    "noise": "MiB",
    "deep": "nested too deeply",
    "shape": "µGraph 0: operator 3: kn_customized_op: operator 3: tb_matmul_op: got shape",
    "indivisible": "not divisible by 5",
    "dangling": "got input tensor 77, which no operator before it makes",
    "missing": "field `input_map` is missing",
    "types": "wanted an object for `grid_dim`",
    "other inputs": "µGraph 0: got a candidate that takes",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_gets_one_line_and_exit_code_2(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "hostile.json"
    path.write_bytes(broken(name))
    start = time.perf_counter()
    arguments = ("verify", folder / "program.json", path)
    code, out, err = start_command(*arguments) if name == "deep" else run_command(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and str(path) in err and HOSTILE[name] in err and "Traceback" not in err
    assert time.perf_counter() - start < 15  # on a busy machine


def test_every_single_edit_of_a_file_is_read_or_refused_in_one_line() -> None:
    text = json.dumps(write(gated(True, 1)))
    outcomes: Counter[str] = Counter()
    generator = random.Random(1)
    for _ in range(300):
        data = json.loads(text)
        _damage(data, generator)
        try:
            [graph] = read_published(data)
        except GraphError as error:
            assert "\n" not in str(error) and "µGraph" in str(error)
            outcomes["refused"] += 1
        else:
            outcomes["unsupported" if isinstance(graph, Unsupported) else "read"] += 1
    assert outcomes["refused"] > 100


def _damage(data: Any, generator: random.Random) -> None:
    """Delete or replace one entry somewhere."""
    while True:
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        key = generator.choice(keys)
        if isinstance(data[key], dict | list) and data[key] and generator.random() < 0.9:
            data = data[key]
        elif generator.random() < 0.5 and not (isinstance(data, list) and len(data) == 1):
            del data[key]
            return
        else:
            data[key] = generator.choice([None, -1, 3, 10**30, "x", [], {}, 1.5, True])
            return


def renumbered(data: Any, numbers: dict[int, int]) -> Any:
    """A checkpoint with other numbers for its element types."""
    match data:
        case list():
            return [renumbered(entry, numbers) for entry in data]
        case dict():
            return {
                name: numbers.get(entry, entry) if name == "data_type" else renumbered(entry, numbers)
                for name, entry in data.items()
            }
        case _:
            return data


def mixed(dtype: str) -> Graph:
    """A product with operands of two element types."""
    program = KernelGraph()
    x, y = program.new_input((8, 32), dtype), program.new_input((8, 32), "float32")
    program.mark_output(program.add(program.silu(x), y))
    return program.graph()


OLDER = {940: 920, 941: 921, 950: 930}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_files_from_before_the_renumbering_of_types_say_the_same(dtype: str) -> None:
    data = write(mixed(dtype), gated(True, 1), mixed(dtype))
    assert read_published(renumbered(data, OLDER)) == read_published(data)


@pytest.mark.parametrize("older", [False, True])
def test_an_unknown_type_makes_its_own_graph_unsupported_in_either_numbering(older: bool) -> None:
    data = renumbered(write(mixed("float16"), mixed("float16")), OLDER if older else {})
    data[1] = renumbered(data[1], {930: 910, 950: 910})
    first, second = read_published(data)
    assert isinstance(first, Graph) and second == Unsupported("data_type 910")


@pytest.mark.parametrize("number", sorted(DTYPES))
def test_a_file_of_both_numberings_is_read_by_the_current_one(number: int) -> None:
    """940 was float64 before it became bfloat16: what older numbers mean beside current ones is not known."""
    data = renumbered(write(mixed("float16")), {941: 921, 950: number})
    assert read_published(data) == (Unsupported("data_type 921"),)
