"""Results on disk: what was found is found again, whole and for the same question only, and nothing there can break a run."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mirage_eg as mi
from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import node
from mirage_eg.optimizer.tune import Tuning
from mirage_eg.pipeline.optimize import Candidate, Result, optimize
from mirage_eg.pipeline.run import cache as cache_module
from mirage_eg.pipeline.run.cache import ResultCache, chosen_cache, key_of
from mirage_eg.pipeline.run.json_codec import decode, dumps
from mirage_eg.pipeline.run.options import Options
from property_tests.support.command import run_command
from property_tests.support.parameters import few
from property_tests.support.programs import product, rms_linear

CHEAP: dict[str, Any] = {"device": "cpu", "jobs": 1, "top": 2, "max_block_ops": 9}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIRAGE_EG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(program: Graph | None = None, name: str = "program", resume: bool = False, **options: Any) -> Result:
    return optimize(name, rms_linear() if program is None else program, Options(**(CHEAP | options)), resume=resume)


def without_status(result: Result) -> str:
    """The whole result as text, but for what the report says of the cache."""
    return dumps(replace(result, report=replace(result.report, cache="off")))


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


@cache
def found(program: Graph) -> tuple[Result, str, bytes]:
    """The result of a run, and the name and text of its entry."""
    with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRAGE_EG_CACHE", place)
        result = run(program)
        [path] = entries(Path(place))
        return result, path.name, path.read_bytes()


def keep(folder: Path, program: Graph | None = None) -> tuple[Result, Path]:
    """As after a run: its result, and the path of its entry."""
    result, name, text = found(rms_linear() if program is None else program)
    folder.mkdir()
    (folder / name).write_bytes(text)
    return result, folder / name


def test_a_hit_is_the_same_result_to_the_byte_and_says_so(folder: Path) -> None:
    first, second = run(), run()
    assert (first.report.data()["cache"], second.report.data()["cache"]) == ("miss", "hit")
    assert without_status(first) == without_status(second)  # times too: it is the same run
    assert second.report.data()["computed"] == first.report.data()["computed"]
    assert [candidate.source for candidate in first.candidates] == [candidate.source for candidate in second.candidates]
    assert len(entries(folder)) == 1


def test_the_name_of_the_program_does_not_matter_and_is_the_callers(folder: Path) -> None:
    keep(folder)
    report = run(name="other").report.data()
    assert (report["cache"], report["program"]) == ("hit", "other")


def test_processes_jobs_and_executor_do_not_matter(folder: Path) -> None:
    keep(folder)
    assert run(jobs=2).report.data()["cache"] == "hit"


OTHER_QUESTIONS: dict[str, dict[str, Any]] = {
    "seed": {"seed": 1},
    "top": {"top": 1},
    "target": {"target": "sm_80"},
    "domain": {"domain": "abstract"},
    "trials": {"trials": 3},
    "grid": {"griddims": [(2,)]},
    "shape": {"program": rms_linear(n=64)},
    "laws": {"without": ("rules/indexed/26_squares.egg",)},
    "budget": {"budget": 100},
}


@pytest.mark.parametrize("what", few(OTHER_QUESTIONS, 4))
def test_another_question_is_no_hit(what: str, folder: Path) -> None:
    from mirage_eg.egraph.rule_files import packaged_names

    keep(folder)
    change = dict(OTHER_QUESTIONS[what])
    if what == "laws":
        change = {"without": (next(name for name in packaged_names("indexed") if "squares" in name),)}
    assert run(**change).report.data()["cache"] == "miss"


@pytest.mark.slow
def test_a_rule_file_counts_by_its_text(folder: Path, tmp_path: Path) -> None:
    rules = tmp_path / "my.egg"
    states = []
    for law in (
        "x (Sub y z)) (Sub (Mul x y) (Mul x z",
        "x (Add y z)) (Add (Mul x z) (Mul x y",
        "x (Sub y z)) (Sub (Mul x y) (Mul x z",
    ):
        rules.write_text(f'; domain: indexed\n(rewrite (Mul {law})) :name "mine")\n')
        states.append(run(rules=(str(rules),)).report.data()["cache"])
    assert states == ["miss", "miss", "hit"]


@pytest.mark.parametrize("part", ["code", "torch", "device", "versions", "theories", "graph", "options"])
def test_every_part_of_the_key_counts(part: str, tmp_path: Path) -> None:
    identity = {"program": "p", "graph": "g", "options": {}, "theories": {}, "versions": {"triton": "3.9"}}
    key = key_of(identity, on_gpu=False, budget=None)
    assert part in key and "program" not in key
    cache = ResultCache(tmp_path)
    assert cache.path(key) != cache.path(key | {part: "other"})
    assert cache.path(key) == cache.path(dict(reversed(list(key.items()))))


@pytest.mark.parametrize("off", [{"cache": False}, {"variable": "off"}])
def test_off_means_that_nothing_is_read_or_written(
    off: Mapping[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(folder)
    before = [path.stat() for path in entries(folder)]
    if "variable" in off:
        monkeypatch.setenv("MIRAGE_EG_CACHE", "off")
    assert run(**({} if "variable" in off else off)).report.data()["cache"] == "off"
    assert [path.stat() for path in entries(folder)] == before


def test_a_tuning_of_ones_own_is_not_cached(folder: Path) -> None:
    assert optimize("program", rms_linear(), Options(**CHEAP), tuning=Tuning()).report.data()["cache"] == "off"
    assert not entries(folder)


def test_a_resumed_run_runs_and_its_result_is_kept(folder: Path) -> None:
    keep(folder)
    assert run(resume=True).report.data()["cache"] == "miss"
    assert run().report.data()["cache"] == "hit"


# --- What is no entry -----------------------------------------------------------------------------------------------------


def spoiled(text: bytes) -> dict[str, bytes]:
    head, _, body = text.partition(b"\n")
    header = json.loads(head)
    return {
        "empty": b"",
        "torn": text[: len(text) // 2],
        "one bit flipped": text[:-40] + bytes([text[-40] ^ 1]) + text[-39:],
        "not text": b"\xff\x00" + text,
        "JSON of another kind": b"[1, 2]\n3",
        "a pickle": b"\x80\x04}\x94.",
        "another format": json.dumps(header | {"format": "theirs"}).encode() + b"\n" + body,
        "a later version": json.dumps(header | {"version": 2}).encode() + b"\n" + body,
        "another key": json.dumps(header | {"key": {}}).encode() + b"\n" + body,
        "no time": json.dumps({name: header[name] for name in header if name != "computed"}).encode() + b"\n" + body,
    }


@pytest.mark.parametrize("kind", few(list(spoiled(b'{"computed": ""}\n{"tuple": []}' + b" " * 99)), 4))
def test_an_entry_that_is_not_ours_is_ignored_with_a_warning_and_replaced(
    kind: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, path = keep(folder, product())
    path.write_bytes(spoiled(path.read_bytes())[kind])
    again = run(product())
    assert again.report.data()["cache"] == "miss"
    assert [record for record in caplog.records if "cache entry ignored" in record.message and str(path) in record.message]
    assert [candidate.source for candidate in again.candidates] == [candidate.source for candidate in first.candidates]
    assert run(product()).report.data()["cache"] == "hit"


@given(data=st.binary(max_size=200))
def test_no_bytes_whatever_break_a_look_up(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = ResultCache(tmp_path_factory.mktemp("cache"))
    cache.path({"a": 1}).write_bytes(data)
    assert cache.find({"a": 1}, product()) is None


def test_a_checksum_does_not_make_a_foreign_record_a_result(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, path = keep(folder, product())
    header = json.loads(path.read_bytes().partition(b"\n")[0])
    for body in ('{"record":["os:system","true"]}', '{"record":["mirage_eg.pipeline.run.result:Result"]}', "7"):
        header["sha256"] = cache_module.sha256(body.encode()).hexdigest()
        path.write_text(f"{json.dumps(header)}\n{body}")
        assert ResultCache(folder).find(header["key"], product()) is None
    assert len(caplog.records) == 3


def changed(first: Candidate, second: Candidate, how: str) -> tuple[Candidate, ...]:
    """The candidates with a mistake in the first."""
    body = first.source.replace("tl.store(", "tl.store( ", 1)
    return {
        "the other's source": (replace(first, source=second.source), second),
        "another kernel": (replace(first, source=body), second),
        "another schedule": (replace(first, schedule=(replace(first.schedule[0], num_stages=1), *first.schedule[1:])), second),
        "no schedule": (replace(first, schedule=None), second),
        "nothing written": (replace(first, source="# not written: nothing\n", schedule=None), second),
        "no mistake": (first, second),
    }[how]


@pytest.mark.parametrize(
    "how", ["the other's source", "another kernel", "another schedule", "no schedule", "nothing written", "no mistake"]
)
def test_an_entry_whose_source_is_not_its_graph_s_is_refused(how: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With a checksum that fits."""
    result, path = keep(folder, product())
    header = json.loads(path.read_bytes().partition(b"\n")[0])
    first, second = result.candidates[:2]
    body = dumps(replace(result, candidates=changed(first, second, how)))
    header["sha256"] = cache_module.sha256(body.encode()).hexdigest()
    path.write_text(f"{json.dumps(header)}\n{body}")
    is_found = ResultCache(folder).find(header["key"], product()) is not None
    assert is_found == (how == "no mistake")
    assert is_found or "has a source that is not that of its graph: number 1" in caplog.text


def other_ops(graph: Graph, change: Mapping[str, str]) -> Graph:
    """The graph with other ops in place of these."""
    nodes = []
    for item in graph.nodes:
        attributes = {
            name: other_ops(value, change) if isinstance(value, Graph) else value for name, value in item.mapping.items()
        }
        nodes.append(node(change.get(item.op, item.op), *item.operands, **attributes))
    return replace(graph, nodes=tuple(nodes))


def two_weights() -> Graph:
    graph = mi.new_kernel_graph()
    x, w, v = (graph.new_input((16, 16), name=name) for name in "xwv")
    graph.mark_output(graph.add(graph.exp(graph.scale(x, 2) @ w), v))
    return graph.graph()


def scaled(graph: Graph, factor: Fraction) -> Graph:
    """The graph with another factor in place of 2."""
    nodes = []
    for item in graph.nodes:
        attributes = {
            name: scaled(value, factor) if isinstance(value, Graph) else value for name, value in item.mapping.items()
        }
        nodes.append(node(item.op, *item.operands, **attributes | ({"factor": factor} if item.op == "scale" else {})))
    return replace(graph, nodes=tuple(nodes))


def swapped(graph: Graph, positions: bool) -> Graph:
    """The graph with its last two inputs in the other's place, or with the other's name."""
    nodes = [*graph.nodes]
    first, second = [place for place, item in enumerate(nodes) if item.op == "input"][1:]
    if positions:
        nodes[first], nodes[second] = nodes[second], nodes[first]
    else:
        names = [nodes[place]["name"] for place in (second, first)]
        for place, name in zip((first, second), names, strict=True):
            nodes[place] = node("input", **nodes[place].mapping | {"name": name})
    return replace(graph, nodes=tuple(nodes))


FORGED: dict[str, Callable[[Graph], Graph]] = {
    "another op": lambda graph: other_ops(graph, {"exp": "square"}),
    "another sign": lambda graph: other_ops(graph, {"add": "sub"}),
    "another constant": lambda graph: scaled(graph, Fraction(3)),
    "a constant that is close": lambda graph: scaled(graph, Fraction(2_000_001, 1_000_000)),
    "weights in another order": lambda graph: swapped(graph, positions=True),
    "weights of other names": lambda graph: swapped(graph, positions=False),
    "nothing": lambda graph: graph,
}


def forge(path: Path, program: Graph, rank: int, change: Callable[[Graph], Graph]) -> None:
    """Put another µGraph into an entry, with the source that is its, and with a checksum that is right."""
    head, _, body = path.read_text().partition("\n")
    result = decode(json.loads(body))
    candidates = [*result.candidates]
    graph, schedule = change(candidates[rank].graph), candidates[rank].schedule
    candidates[rank] = replace(candidates[rank], graph=graph, source=emit(graph, program=program, schedule=schedule))
    body = dumps(replace(result, candidates=tuple(candidates)))
    header = json.loads(head) | {"sha256": cache_module.sha256(body.encode()).hexdigest(), "computed": "2000"}
    path.write_text(f"{json.dumps(header)}\n{body}")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("how", FORGED)
def test_a_forged_entry_is_refused(how: str, rank: int, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whose graph and source agree with each other."""
    program = two_weights()
    _, path = keep(folder, program)
    forge(path, program, rank, FORGED[how])
    is_found = ResultCache(folder).find(json.loads(path.read_bytes().partition(b"\n")[0])["key"], program) is not None
    said = [record.message for record in caplog.records if "cache entry ignored" in record.message]
    assert is_found == (how == "nothing")
    assert not said if is_found else len(said) == 1 and f"is wrong: number {rank + 1} " in said[0]


def test_what_was_refused_is_searched_again(folder: Path) -> None:
    program = two_weights()
    first, path = keep(folder, program)
    forge(path, program, 0, FORGED["nothing"])
    assert run(program).report.data()["computed"] == "2000"
    forge(path, program, 1, FORGED["another op"])
    again = run(program)
    assert again.report.data()["cache"] == "miss"
    assert [candidate.source for candidate in again.candidates] == [candidate.source for candidate in first.candidates]
    assert run(program).report.data()["cache"] == "hit"


def test_an_entry_is_checked_once_and_after_each_change_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, checks = two_weights(), list[int]()
    run(program)
    [path] = entries(folder)
    for name in ("is_as_written", "fault_of"):
        kept = getattr(cache_module, name)
        monkeypatch.setattr(cache_module, name, lambda *given, kept=kept: (checks.append(1), kept(*given))[1])
    run(program)
    assert len(checks) == 0  # it was made here
    forge(path, program, 0, FORGED["nothing"])
    run(program)
    once = len(checks)
    run(program)
    assert len(checks) == once > 1  # sources and graphs
    forge(path, program, 0, FORGED["another op"])
    run(program)
    assert len(checks) == 2 * once


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"tuple":[' * 50_000, '{"record":["a"],"record":["b"]}', "1e999999", "9" * 9_999]
)
def test_a_body_that_no_decoder_reads_is_a_warning(text: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, path = keep(folder, product())
    header = json.loads(path.read_bytes().partition(b"\n")[0])
    for head, body in ((json.dumps(header | {"sha256": cache_module.sha256(text.encode()).hexdigest()}), text), (text, "")):
        path.write_text(f"{head}\n{body}")
        assert ResultCache(folder).find(header["key"], product()) is None
    assert len(caplog.records) == 2 and not any("\n" in record.message for record in caplog.records)


def test_a_hit_loads_nothing_that_searches_or_compiles(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.py").write_text(
        "from property_tests.support.programs import product\ndef program():\n    return product()\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))
    command = ["optimize", "small.py", "--top", "2", "--device", "cpu", "--jobs", "1", "--json"]
    status, out, _ = run_command(capsys, *command)
    assert (status, json.loads(out)["cache"]) == (0, "miss") and "mirage_eg.pipeline.stages" in sys.modules
    code = (
        f"import sys; sys.argv = {['mirage-eg', *command]}\n"
        "from mirage_eg.cli.main import main\ntry: main()\nexcept SystemExit: pass\n"
        "print(*sys.modules.keys() & {'egglog', 'mpmath', 'triton', 'torch', 'ortools', 'mirage_eg.pipeline.stages'}, 'end')"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    record, loaded = done.stdout.splitlines()
    assert json.loads(record)["cache"] == "hit" and loaded == "end"


def test_a_cache_below_a_file_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MIRAGE_EG_CACHE", str(tmp_path / "file" / "below"))
    assert run(product()).report.data()["cache"] == "miss"
    assert "the result is not kept" in caplog.text


def test_a_file_where_the_folder_should_be_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MIRAGE_EG_CACHE", str(tmp_path / "file"))
    with pytest.raises(OptionError, match=r"MIRAGE_EG_CACHE: got .*, which is no folder; wanted a folder or off"):
        chosen_cache()


def test_the_folder_is_the_users_unless_the_variable_says_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MIRAGE_EG_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = chosen_cache()
    assert found is not None and found.folder == tmp_path / "mirage_eg" / "results"


# --- Processes ------------------------------------------------------------------------------------------------------------

WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from mirage_eg.ir.json_text import parse_json
from mirage_eg.pipeline.run.cache import ResultCache
from mirage_eg.pipeline.run.json_codec import decode
from mirage_eg.pipeline.run.result import Result
from property_tests.support.programs import product
cache, key, PROGRAM = ResultCache(Path(sys.argv[1])), {"a": 1}, product()
report = decode(parse_json(sys.stdin.read(), infinities=True)).report
seen = set()
for i in range(50):
    cache.keep(key, Result((), replace(report, program=sys.argv[2], source=sys.argv[2] * 50000)), str(i))
    found = cache.find(key, PROGRAM)
    assert found is not None and found.result.report.source == found.result.report.program * 50000
    seen.add(found.result.report.program)
print(",".join(sorted(seen)))
"""


def test_two_processes_that_write_one_entry_never_see_a_part(tmp_path: Path) -> None:
    given, pipe = dumps(found(product())[0]), subprocess.PIPE
    commands = [[sys.executable, "-c", WRITER, str(tmp_path), letter] for letter in "ab"]
    running = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for command in commands]
    for process in running:
        assert process.stdin is not None
        process.stdin.write(given)
        process.stdin.close()
        process.stdin = None
    for process in running:
        out, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
        assert out.strip() in ("a", "b", "a,b")
    assert len(entries(tmp_path)) == 1  # nothing half-written is left


@pytest.mark.slow
def test_two_processes_optimize_one_program_and_agree(folder: Path) -> None:
    words = ["optimize", "ntrans", "--json", "--jobs", "1", "--device", "cpu", "--top", "1"]
    command = [sys.executable, "-m", "mirage_eg", *words]
    running = [
        subprocess.Popen([*command, "--out", str(folder.parent / name)], stdout=subprocess.PIPE, text=True) for name in "ab"
    ]
    reports = [json.loads(process.communicate(timeout=200)[0]) for process in running]
    assert all(process.returncode == 0 for process in running)
    assert {report["cache"] for report in reports} <= {"hit", "miss"}
    again = json.loads(
        subprocess.run([*command, "--out", str(folder.parent / "c")], capture_output=True, text=True, check=True).stdout
    )
    assert again["cache"] == "hit"
    sources = [(folder.parent / name / "ntrans" / "best.py").read_text() for name in "abc"]
    assert len(set(sources)) == 1
    uncached = subprocess.run(
        [*command, "--no-cache", "--out", str(folder.parent / "d")], capture_output=True, text=True, check=True
    )
    assert json.loads(uncached.stdout)["cache"] == "off"


def test_superoptimize_takes_cache(folder: Path) -> None:
    states = [mi.superoptimize(product(), **CHEAP, cache=cache).report["cache"] for cache in (True, True, False)]
    assert states == ["miss", "hit", "off"]
    with pytest.raises(OptionError, match="cache: got 'no', wanted True or False"):
        mi.superoptimize(product(), cache="no")
