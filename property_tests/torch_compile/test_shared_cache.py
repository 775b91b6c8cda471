"""Found kernels in a second process, on a second machine, and with several writers."""

import json
import logging
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir.errors import MirageError, OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.node import node
from mirage_eg.ir.serialize import from_json
from mirage_eg.pipeline.run.json_codec import decode, dumps
from mirage_eg.torch_compile import gate_errors, segment_store
from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.calls import forget_calls
from mirage_eg.torch_compile.operator import segment_op
from mirage_eg.torch_compile.records import Decision, graph_records
from mirage_eg.torch_compile.shared_cache import export_cache, import_cache
from property_tests.support.parameters import AMPLE
from property_tests.support.torch_cases import WIDTH, projected

ROOT = Path(__file__).parents[2]
SECOND = """
import sys, time, torch
from mirage_eg.torch_compile.backend import backend
from mirage_eg.torch_compile.compile_graph import compile_graph
from mirage_eg.torch_compile.records import graph_records
from mirage_eg.torch_compile.segment_store import store_of
from mirage_eg.torch_compile.settings import Settings
from property_tests.support.torch_cases import projected
x = torch.randn(8, 16)
with torch.no_grad():
    start = time.process_time()
    torch.compile(projected, backend="eager")(x)
    plain, start = time.process_time() - start, time.process_time()
    torch.compile(projected, backend=backend, options={"rest": "eager", "gate": "cost"})(x)
    ours = time.process_time() - start
print(store_of(Settings()).searches, graph_records()[0].used, ours - plain < 3, "egglog" in sys.modules)
"""


def find() -> str:
    """The key of the kernel of the one segment, compiled here."""
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(projected, backend=backend, options={"budget": AMPLE, "rest": "eager", "gate": "cost"})(
            torch.zeros(8, WIDTH)
        )
    [segment] = graph_records()[-1].segments
    assert segment.decision is Decision.USED
    return segment.key


@pytest.mark.slow  # by default the whole graph's: `test_whole_graph`
def test_a_second_process_searches_nothing_and_starts_soon(cache: Path) -> None:
    find()
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SECOND], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout.split() == ["0", "1", "True", "False"], done.stderr[-2000:]


def test_an_exported_cache_serves_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = find()
    assert export_cache(tmp_path / "kernels.zip") >= 1
    monkeypatch.setenv("MIRAGE_EG_CACHE", str(tmp_path / "other"))
    segment_store.forget()
    forget_calls()
    with pytest.raises(MirageError, match=r"no kernel .* try: mirage-eg cache import FILE"):
        segment_op()([torch.zeros(8, WIDTH), torch.zeros(WIDTH, WIDTH)], key)
    done = import_cache(tmp_path / "kernels.zip")
    assert done.added >= 1 and done.refused == () and import_cache(tmp_path / "kernels.zip").known == done.added
    x, weight = torch.randn(8, WIDTH), torch.randn(WIDTH, WIDTH)
    [got] = segment_op()([x, weight], key)
    torch.testing.assert_close(got, torch.nn.functional.rms_norm(x, (WIDTH,), eps=1e-6) @ weight, atol=1e-5, rtol=1e-5)


def changed(cache: Path, key: str, old: str, new: str) -> str:
    """The entry of a key with another body, and the checksum of that body."""
    head, body = (cache / f"{key}.jsonl").read_text().split("\n", 1)
    assert old in body
    body = body.replace(old, new)
    return json.dumps(json.loads(head) | {"sha256": sha256(body.encode()).hexdigest()}) + "\n" + body


def test_entries_that_were_changed_are_refused_and_run_nothing(cache: Path, tmp_path: Path) -> None:
    key = find()
    trap = tmp_path / "trap"
    code = changed(cache, key, "import triton\\n", f"open('{trap}', 'w')\\nimport triton\\n")
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr(f"{key}.jsonl", code)
        archive.writestr("../../escaped.jsonl", code)
        archive.writestr("0" * 64 + ".jsonl", code)
        archive.writestr("x.pickle", b"cos\nsystem\n")
        archive.writestr(f"{key[:-1]}z.jsonl", code.replace("float32", "float16", 1))
    other = tmp_path / "other"
    done = import_cache(tmp_path / "bad.zip", other)
    assert len(done.refused) == 5 and not other.exists()
    other.mkdir()
    (other / f"{key}.jsonl").write_text(code)
    store = segment_store.SegmentStore(segment_store.ResultCache(other))
    with pytest.raises(MirageError, match="cannot be used here"):  # its source is not that of its graph
        store.by_key(key)
    assert not trap.exists()
    for content in (b"", b"PK no zip"):
        (tmp_path / "bad.zip").write_bytes(content)
        with pytest.raises(OptionError, match="wanted a file of mirage-eg cache export"):
            import_cache(tmp_path / "bad.zip", other)


def flipped(graph: Graph) -> Graph:
    """The graph with each rsqrt a sqrt."""
    nodes = []
    for item in graph.nodes:
        attributes = {name: flipped(value) if isinstance(value, Graph) else value for name, value in item.mapping.items()}
        nodes.append(node("sqrt" if item.op == "rsqrt" else item.op, *item.operands, **attributes))
    return replace(graph, nodes=tuple(nodes))


def forged(cache: Path, key: str) -> str:
    """The entry of a key whose kernel has one op flipped: graph, source and checksum agree with each other."""
    head, body = (cache / f"{key}.jsonl").read_text().split("\n", 1)
    result = decode(json.loads(body))
    good = next(each for each in result.candidates if each.fused)
    graph = flipped(good.graph)
    source = emit(graph, program=from_json(json.loads(head)["key"]["segment"]), schedule=good.schedule)
    assert source != good.source
    wrong = replace(good, graph=graph, source=source)
    body = dumps(replace(result, candidates=tuple(wrong if each is good else each for each in result.candidates)))
    return json.dumps(json.loads(head) | {"sha256": sha256(body.encode()).hexdigest()}) + "\n" + body


def test_a_wrong_kernel_is_refused_by_the_import_and_at_its_first_use(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key, other = find(), tmp_path / "other"
    entry = forged(cache, key)
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr(f"{key}.jsonl", entry)
    done = import_cache(tmp_path / "bad.zip", other)
    assert done.added == 0 and len(done.refused) == 1 and "is wrong: number 1 does not compute the program" in done.refused[0]
    other.mkdir()
    (other / f"{key}.jsonl").write_text(entry)  # a folder that others write
    monkeypatch.setenv("MIRAGE_EG_CACHE", str(other))
    segment_store.forget()
    forget_calls()
    with pytest.raises(MirageError, match="cannot be used here"):
        segment_op()([torch.zeros(8, WIDTH), torch.zeros(WIDTH, WIDTH)], key)
    x = torch.randn(8, WIDTH)
    torch._dynamo.reset()
    with torch.no_grad():
        got = torch.compile(projected, backend=backend, options={"budget": AMPLE, "rest": "eager", "gate": "off"})(x)
    [segment] = graph_records()[-1].segments
    assert not segment.from_cache and "is wrong: number 1 does not compute the program" in caplog.text
    torch.testing.assert_close(got, projected(x), atol=1e-5, rtol=1e-5)


WRONG_KEYS = [{"verify": "no"}, {"largest": {"n": [1]}}, {"bucket": {"n": [1, 2, 1]}}, {"bucket": [1]}, {"segment": "{}"}]


@pytest.mark.parametrize("change", WRONG_KEYS)
def test_an_entry_of_a_key_that_is_none_is_refused(change: dict[str, object], cache: Path, tmp_path: Path) -> None:
    head, body = (cache / f"{find()}.jsonl").read_text().split("\n", 1)
    header = json.loads(head)
    header["key"] |= change
    name = f"{segment_store.hash_of(header['key'])}.jsonl"
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr(name, json.dumps(header) + "\n" + body)
    done = import_cache(tmp_path / "bad.zip", tmp_path / "other")
    assert done.added == 0 and len(done.refused) == 1 and "\n" not in done.refused[0]
    (tmp_path / name).write_text(json.dumps(header) + "\n" + body)
    with pytest.raises(MirageError):
        segment_store.SegmentStore(segment_store.ResultCache(tmp_path)).by_key(name.removesuffix(".jsonl"))


def test_a_kernel_is_read_alone(cache: Path) -> None:
    key, folder = find(), segment_store.ResultCache(cache)
    store = segment_store.SegmentStore(folder)
    alone, whole = store.by_key(key, alone=True), store.by_key(key)
    assert whole.candidate is not None and alone.candidate == whole.candidate
    assert alone.result.candidates == (whole.candidate,) and not alone.result.known
    worse = replace(whole.candidate, fused=False)
    entry_key = json.loads((cache / f"{key}.jsonl").read_text().split("\n", 1)[0])["key"]
    before = (cache / f"{key}.jsonl").read_text()
    try:
        folder.keep(entry_key, replace(whole.result, candidates=(worse, whole.candidate, whole.candidate)), "now")
        assert store.by_key(key) is whole and store.by_key(key, alone=True) is whole
        again = segment_store.SegmentStore(folder)
        assert again.by_key(key, alone=True).result.candidates == (whole.candidate,)
        assert len(again.by_key(key).result.candidates) == 3
        folder.keep(entry_key, replace(whole.result, candidates=(worse,)), "now")
        with pytest.raises(MirageError):
            segment_store.SegmentStore(folder).by_key(key, alone=True)
    finally:
        (cache / f"{key}.jsonl").write_text(before)


def test_structures_of_an_imported_search_serve_other_sizes(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find()
    export_cache(tmp_path / "kernels.zip")
    monkeypatch.setenv("MIRAGE_EG_CACHE", str(tmp_path / "other"))
    import_cache(tmp_path / "kernels.zip")
    segment_store.forget()
    forget_calls()
    torch._dynamo.reset()
    x = torch.randn(24, WIDTH)
    with torch.no_grad():
        options = {"search": "offline", "rest": "eager", "gate": "cost"}
        got = torch.compile(projected, backend=backend, options=options, dynamic=False)(x)
    [segment] = graph_records()[-1].segments
    assert segment.decision is Decision.USED
    torch.testing.assert_close(got, projected(x), atol=1e-5, rtol=1e-5)


@contextmanager
def wrong_kernel(cache: Path) -> Iterator[str]:
    """The key of the segment, whose kernel in the cache has one op flipped: graph and source agree with each other."""
    key = find()
    path = cache / f"{key}.jsonl"
    before = path.read_text()
    folder = segment_store.ResultCache(cache)
    found = segment_store.SegmentStore(folder).by_key(key)
    assert found.candidate is not None
    graph = flipped(found.candidate.graph)
    source = emit(graph, program=found.program, schedule=found.candidate.schedule or ())
    assert source != found.candidate.source
    wrong = replace(found.candidate, graph=graph, source=source)
    folder.keep(json.loads(before.split("\n", 1)[0])["key"], replace(found.result, candidates=(wrong,)), "now")
    segment_store.forget()
    forget_calls()
    try:
        yield key
    finally:
        path.write_text(before)
        segment_store.forget()
        forget_calls()


def test_a_wrong_kernel_in_the_cache_is_refused_by_the_gate(cache: Path) -> None:
    x = torch.randn(8, WIDTH)
    with wrong_kernel(cache), torch.no_grad():
        for gate in ("cost", "off"):
            torch._dynamo.reset()
            got = torch.compile(projected, backend=backend, options={"budget": AMPLE, "rest": "eager", "gate": gate})(x)
            [segment] = graph_records()[-1].segments
            assert segment.from_cache
            assert segment.decision is (Decision.USED if gate == "off" else Decision.WRONG)
            assert bool((got - projected(x)).abs().max() > 0.1) is (gate == "off")


def test_a_wrong_kernel_of_a_saved_model_is_not_used(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    x, weight = torch.randn(8, WIDTH), torch.randn(WIDTH, WIDTH)
    wanted = torch.nn.functional.rms_norm(x, (WIDTH,), eps=1e-6) @ weight
    with wrong_kernel(cache) as key, caplog.at_level(logging.WARNING, "mirage_eg.torch"):
        for _ in range(2):
            [got] = segment_op()([x, weight], key)
            torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gate_errors, "times_allowed", lambda *_: 0.0)
            forget_calls()
            [got] = segment_op()([x, weight], key)
    assert (got - wanted).abs().max() > 0.1  # without the test the kernel in the cache runs
    assert len([line for line in caplog.messages if "times the allowed error" in line]) == 1


@pytest.mark.slow
def test_writers_at_once_leave_whole_entries(tmp_path: Path) -> None:
    code = "import os; os.environ['MIRAGE_EG_CACHE'] = " + repr(str(tmp_path)) + SECOND
    running = [
        subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
        for _ in range(2)
    ]
    searches, used = zip(*(map(int, process.communicate()[0].split()[:2]) for process in running), strict=True)
    assert sorted(searches) == [0, 1] and used == (1, 1)  # one waits for the other
    [entry] = tmp_path.glob("*.jsonl")
    store = segment_store.SegmentStore(segment_store.ResultCache(tmp_path))
    assert store.by_key(entry.stem).candidate is not None
