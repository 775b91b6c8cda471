"""A checkpoint gives back what was put in, whatever happened to the process; a resumed run ends like an undisturbed one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_eg.egraph.expression import Split
from mirage_eg.ir.errors import JsonError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.json_text import parse_json
from mirage_eg.ir.node import Phase
from mirage_eg.pipeline.run.checkpoint import NAME, Checkpoint, CheckpointError
from mirage_eg.pipeline.run.executors import Workers
from mirage_eg.pipeline.run.json_codec import CodecError, conforms, decode, dumps, encode
from mirage_eg.pipeline.run.work_items import Work
from mirage_eg.search.structure import Load, Step
from mirage_eg.testing import programs
from mirage_eg.verify.verdict import Equality
from property_tests.pipeline.run.test_executors import timeless
from property_tests.support.programs import rms_linear
from property_tests.support.workers import marked

HEADER = {"program": "p", "options": {"top": 3, "franges": (2, 4)}}

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.fractions()
    | st.sampled_from([*Equality, *Phase])
    | st.builds(Split, st.none() | st.integers(0, 5))
    | st.builds(Load, st.integers(0, 3), st.booleans())
    | st.builds(Step, st.text(max_size=3), st.tuples(st.integers()), st.tuples(st.fractions() | st.text(max_size=2)))
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.frozensets(leaves, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(a: Any, b: Any) -> bool:
    """Equal, and of equal types all the way down."""
    return bool(a == b) and dumps(a) == dumps(b) and type(a) is type(b)


@given(values)
def test_what_is_encoded_comes_back(value: Any) -> None:
    assert same(decode(json.loads(dumps(value))), value)


@given(programs())
def test_a_graph_comes_back(graph: Graph) -> None:
    assert decode(json.loads(dumps(graph))) == graph


def test_equal_numbers_of_different_types_stay_apart() -> None:
    assert len({dumps(1), dumps(True), dumps(1.0), dumps(Fraction(1)), dumps("1"), dumps(Phase.LOOP)}) == 6


@pytest.mark.parametrize(
    "data",
    [
        {"record": ["os:stat_result"]},
        {"record": ["mirage_eg.search.structure:Load", 1]},
        {"record": ["mirage_eg.nowhere:Load", 1, True]},
        {"record": ["mirage_eg.cli.main:main"]},
        {"enum": ["mirage_eg.verify.verdict:Equality", "so so"]},
        {"fraction": [1, 0]},
        {"tuple": [1], "list": [2]},
        {"who": "knows"},
        {"record": ["mirage_eg.__main__:main"]},
        {"record": ["mirage_eg.nowhere.at.all:Load", 1, True]},
        {"record": ["mirage_eg.search.structure:Load", "1", True]},
        {"record": ["mirage_eg.search.structure:Load", 1, 0]},
        {"record": ["mirage_eg.egraph.expression:Split", {"dict": [["a", 1]]}]},
        {"set": [[1]]},
        {"dict": [[{"tuple": [[1]]}, 1]]},
        {"graph": [1]},
        {"graph": {"level": "kernel", "nodes": [{"op": "output", "operands": [3], "results": [], "name": None}]}},
        {"enum": ["mirage_eg.verify.verdict:Equality", [1]]},
    ],
)
def test_what_was_never_encoded_is_refused(data: Any) -> None:
    with pytest.raises(CodecError):
        decode(data)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"tuple":[' * 100_000, '{"a":' * 100_000, "[" * 400 + "]" * 400 + "[", '{"a":1,"a":2}']
)
def test_json_that_is_nested_deeply_or_names_twice_is_refused(text: str) -> None:
    with pytest.raises(JsonError):
        parse_json(text)


@pytest.mark.parametrize("depth", [900, 5_000])
def test_values_that_are_nested_deeply_are_refused(depth: int) -> None:
    data: Any = 1
    for _ in range(depth):
        data = {"tuple": [data]}
    with pytest.raises(CodecError, match="nested too deeply"):
        decode(data)


def items_file(path: Path) -> bytes:
    """A checkpoint with a graph and other records."""
    with closing(Checkpoint(path, HEADER)) as checkpoint:
        checkpoint.put("graph", rms_linear())
        checkpoint.put("other", (Step("exp", (0, 12), (Fraction(1, 8),)), Split(3), {"a": 1.5}))
    return path.read_bytes()


@given(place=st.integers(0), changed=st.binary(min_size=1, max_size=2), cut=st.integers(0, 3))
def test_no_changed_byte_of_an_item_goes_unseen(
    place: int, changed: bytes, cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("changed") / NAME
    before = items_file(path)
    start = before.index(b"\n") + 1
    place = start + place % (len(before) - 1 - start)
    after = before[:place] + changed + before[place + cut :]
    path.write_bytes(after)
    try:
        with closing(Checkpoint(path, HEADER, resume=True)) as checkpoint:
            assert after == before or after[-1:] != b"\n"  # a torn line is dropped
            for key in ("graph", "other"):
                if key in checkpoint:
                    checkpoint.get(key)
    except CheckpointError as error:
        assert "run without --resume" in str(error) and "\n" not in str(error)
        assert path.read_bytes() == after


@pytest.mark.parametrize("space", [b" ", b"\t", b"\r", b"\n"])
def test_white_space_that_json_allows_does_not_go_unseen(space: bytes, tmp_path: Path) -> None:
    path = tmp_path / NAME
    before = items_file(path)
    start = before.index(b"\n") + 1
    for place in (start, start + 1, before.index(b":", start) + 1, before.index(b"\n", start), len(before) - 1, len(before)):
        path.write_bytes(before[:place] + space + before[place:].rstrip(b"\n") + b"\n")
        with pytest.raises(CheckpointError, match="run without --resume"):
            Checkpoint(path, HEADER, resume=True)


def test_only_records_of_this_package_are_encoded() -> None:
    with pytest.raises(TypeError, match="wanted"):
        encode(object())


@settings(max_examples=50)
@given(items=st.dictionaries(st.text("abc ", min_size=1, max_size=4), values, max_size=5), cut=st.integers(0, 2000))
def test_a_file_cut_anywhere_gives_the_items_that_are_whole(
    tmp_path_factory: pytest.TempPathFactory, items: dict[str, Any], cut: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / NAME
    with closing(Checkpoint(path, HEADER)) as checkpoint:
        for key, value in items.items():
            checkpoint.put(key, value)
    data = path.read_bytes()[:cut]
    path.write_bytes(data)
    whole = max(0, data.count(b"\n") - 1)
    with closing(Checkpoint(path, HEADER, resume=True)) as checkpoint:
        assert [key in checkpoint for key in items] == [place < whole for place in range(len(items))]
        for key, value in list(items.items())[:whole]:
            assert same(checkpoint.get(key), value)
        for key, value in list(items.items())[whole:]:
            checkpoint.put(key, value)
    with closing(Checkpoint(path, HEADER, resume=True)) as checkpoint:
        assert all(same(checkpoint.get(key), value) for key, value in items.items())


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (HEADER | {"program": "other"}, "program was p, is now other"),
        ({"program": "p", "options": {"top": 4, "franges": (2, 4)}}, "options top was 3, is now 4"),
        ({"program": "p", "options": {"top": 3, "franges": None}}, r"options franges was \[2, 4\], is now None"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_and_left_as_it_is(tmp_path: Path, header: dict[str, Any], words: str) -> None:
    path = tmp_path / NAME
    with closing(Checkpoint(path, HEADER)) as checkpoint:
        checkpoint.put("a", 1)
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=words):
        Checkpoint(path, header, resume=True)
    assert path.read_bytes() == before
    with closing(Checkpoint(path, header)) as fresh:  # without --resume it is replaced
        assert "a" not in fresh


@pytest.mark.parametrize("text", ["[]\n", "{}\n", "hello\n", '{"format": "mirage_eg checkpoint", "version": 3}\n'])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(CheckpointError, match=str(tmp_path / NAME)):
        Checkpoint(tmp_path / NAME, HEADER, resume=True)


def test_two_runs_do_not_share_a_checkpoint(tmp_path: Path) -> None:
    with closing(Checkpoint(tmp_path / NAME, HEADER)), pytest.raises(CheckpointError, match="another run"):
        Checkpoint(tmp_path / NAME, HEADER, resume=True)


def test_a_finished_item_is_never_done_again(tmp_path: Path) -> None:
    path = tmp_path / NAME
    for items in ([3, 1], [1, 2, 3]):
        with closing(Checkpoint(path, HEADER, resume=True)) as checkpoint, Workers(jobs=1) as workers:
            assert Work(workers, checkpoint).run("stage", marked, str(tmp_path), items) == items
    assert sorted(file.name for file in tmp_path.glob("*-*")) == ["1-0", "2-0", "3-0"]


def two_kinds(common: None, items: Sequence[str]) -> Iterator[Split]:
    """Work items whose results are records of one type."""
    for item in items:
        yield Split(len(item))


@pytest.mark.parametrize("other", [True, 3, Fraction(1, 2), (Split(1),), Step("exp", (0,), ()), None])
def test_a_record_of_another_type_is_refused_with_its_place(tmp_path: Path, other: Any) -> None:
    path = tmp_path / NAME
    with closing(Checkpoint(path, HEADER)) as checkpoint, Workers(jobs=1) as workers:
        Work(workers, checkpoint).run("stage", two_kinds, None, ["item"])
        checkpoint.put(json.loads(path.read_text().splitlines()[1])["item"], other)
    said = r"stage [0-9a-f]{24}: got a record of type .*, wanted Split; run without --resume"
    with closing(Checkpoint(path, HEADER, resume=True)) as again, Workers(jobs=1) as workers:
        work = Work(workers, again)
        with pytest.raises(CheckpointError, match=said):
            work.run("stage", two_kinds, None, ["item"])


CONFORM: list[tuple[Any, Any, bool]] = [
    ((1, "a"), tuple[int, str], True),
    ((1, 2), tuple[int, str], False),
    ((1, 2, 3), tuple[int, ...], True),
    ((1, "2"), tuple[int, ...], False),
    ([(1, None)], list[tuple[int, str | None]], True),
    ([(1, 2)], list[tuple[int, str | None]], False),
    (Split(), Split | None, True),
    (Step("exp", (0,), ()), Split | None, False),
    ({"a": 1}, dict[str, int], True),
    ([1], dict[str, int], False),
    (object(), Any, True),
]


@pytest.mark.parametrize(("value", "hint", "expected"), CONFORM)
def test_values_conform_to_annotations_down_to_entries(value: Any, hint: Any, expected: bool) -> None:
    assert conforms(value, hint) == expected


def test_what_is_not_final_is_done_again(tmp_path: Path) -> None:
    for _ in range(2):
        with closing(Checkpoint(tmp_path / NAME, HEADER, resume=True)) as checkpoint, Workers(jobs=1) as workers:
            Work(workers, checkpoint).run("stage", marked, str(tmp_path), [1, 2], keep=lambda result: bool(result == 2))
    assert sorted(file.name for file in tmp_path.glob("*-*")) == ["1-0", "1-1", "2-0"]


PROGRAM = """
import mirage_eg

def program():
    graph = mirage_eg.new_kernel_graph()
    q = graph.new_input((2, 64, 64), name="q")
    k = graph.new_input((2, 64, 128), name="k")
    v = graph.new_input((2, 128, 64), name="v")
    graph.matmul(graph.softmax(graph.matmul(q, k), 2), v)
    return graph
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("runs")
    (made / "small.py").write_text(PROGRAM)
    return made


def command(*more: str) -> list[str]:
    return [sys.executable, "-m", "mirage_eg", "optimize", "small.py", "--top", "3", "--device", "cpu", "--json", *more]


def report(folder: Path, *more: str) -> Any:
    done = subprocess.run(command(*more), cwd=folder, capture_output=True, text=True, check=True, timeout=300)
    return timeless(json.loads(done.stdout))


def stopped(folder: Path, number: signal.Signals, lines: int, *more: str) -> tuple[int, str, int]:
    """Start a run, send it a signal once its checkpoint has so many lines; its exit code, stderr, and the lines at the end."""
    (folder / "mirage_out/small" / NAME).unlink(missing_ok=True)
    pipe = subprocess.PIPE
    with subprocess.Popen(command(*more), cwd=folder, stdout=pipe, stderr=pipe, text=True, preexec_fn=hear_sigint) as process:
        deadline = monotonic() + 120
        while count_lines(folder) < lines and process.poll() is None and monotonic() < deadline:
            sleep(0.005)
        assert process.poll() is None, "the run was over too early"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert out == ""
    return process.returncode, err, count_lines(folder)


def hear_sigint() -> None:
    """A shell ignores SIGINT for its background jobs, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def count_lines(folder: Path) -> int:
    path = folder / "mirage_out/small" / NAME
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.fixture(scope="module")
def alone(folder: Path) -> Iterator[tuple[Any, int]]:
    """The report of a run that nobody disturbs, and the lines of its checkpoint."""
    yield report(folder, "--jobs", "1"), count_lines(folder)


@pytest.mark.parametrize(("share", "jobs"), [(0.5, "1"), pytest.param(0.9, "2", marks=pytest.mark.slow)])
def test_a_run_killed_in_the_middle_and_resumed_gives_the_same_report(
    folder: Path, alone: tuple[Any, int], share: float, jobs: str
) -> None:
    wanted, lines = alone
    code, _, kept = stopped(folder, signal.SIGKILL, max(2, int(share * lines)), "--jobs", jobs)
    assert (code, kept < lines) == (-signal.SIGKILL, True)
    assert report(folder, "--resume") == wanted
    assert count_lines(folder) == lines


@pytest.mark.parametrize(
    ("number", "code", "jobs", "share"),
    [
        (signal.SIGINT, 130, "1", 0.1),
        pytest.param(signal.SIGTERM, 143, "1", 0.1, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 130, "2", 0.9, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_in_one_line_that_says_how_to_go_on(
    folder: Path, alone: tuple[Any, int], number: signal.Signals, code: int, jobs: str, share: float
) -> None:
    """Also while processes work, after the constraint solver ran: nothing of them is left to write to stderr or to wait for."""
    wanted, lines = alone
    got, err, kept = stopped(folder, number, max(3, int(share * lines)), "--jobs", jobs)
    assert (got, err.count("\n")) == (code, 1)
    assert err.startswith("mirage-eg: ") and f"mirage_out/small/{NAME}" in err and "--resume" in err
    assert 3 <= kept < lines
    assert report(folder, "--resume") == wanted


@pytest.mark.slow
def test_options_that_change_the_result_are_refused_on_resume(folder: Path, alone: tuple[Any, int]) -> None:
    report(folder, "--resume")
    before = (folder / "mirage_out/small" / NAME).read_bytes()
    done = subprocess.run(command("--resume", "--seed", "7"), cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "options seed was 0, is now 7" in done.stderr
    assert (folder / "mirage_out/small" / NAME).read_bytes() == before
    assert os.path.exists(folder / "mirage_out/small/report.json")
