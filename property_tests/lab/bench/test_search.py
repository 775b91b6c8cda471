"""`mirage-eg bench search` prints what the search costs, in a table or in JSON lines, and refuses what it cannot measure."""

import json

import pytest

from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.workloads import STANDARD, WORKLOADS
from mirage_eg.lab.bench.search import guided
from mirage_eg.lab.bench.search_programs import search_programs
from mirage_eg.pipeline.run.peak_memory import peak_bytes, reset_peak
from mirage_eg.search.structure_search import SearchLimits
from property_tests.support.command import run_command, start_command

WANTED = {"workload", "domain", "max_block_ops", "nodes", "classes", "visited", "structures", "seconds", "peak_bytes"}

# nodes, classes, visited at 16 ops, of a throwaway prototype
PROTOTYPE = {
    "rmsnorm": (63, 25, 279),
    "gated_mlp": (36, 18, 20),
    "lora": (63, 28, 545),
    "gqa": (59, 31, 169),
    "qknorm": (163, 68, 4591),
    "ntrans": (97, 37, 37_412),
}


@pytest.mark.slow
@pytest.mark.parametrize("domain", ["indexed", "abstract"])
def test_json_is_a_line_for_each_workload_and_limit_on_block_ops(domain: str) -> None:
    arguments = ("rmsnorm", "gated_mlp", "--domain", domain, "--json")
    code, out, err = start_command("bench", "search", *arguments)
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["workload"], row["max_block_ops"]) for row in rows] == [
        (workload, ops) for workload in ("rmsnorm", "gated_mlp") for ops in range(5, 17)
    ]
    assert all(set(row) >= WANTED and row["domain"] == domain for row in rows)
    assert all(row["structures"] == row["one_kernel"] + row["split_reduction"] for row in rows)
    for workload in ("rmsnorm", "gated_mlp"):
        found = [row["structures"] for row in rows if row["workload"] == workload]
        assert found == sorted(found) and found[-1] > 0


@pytest.mark.slow
def test_the_table_has_the_published_figures_and_says_how_ops_are_counted() -> None:
    code, out, err = start_command("bench", "search", "rmsnorm")
    assert (code, err) == (0, "")
    assert all(text in out for text in ("published s, many threads", "loads are counted", "19,934"))


@pytest.mark.parametrize("workload", STANDARD)
def test_sizes_and_states_are_within_a_factor_of_three_of_the_prototype(workload: str) -> None:
    reset_peak()
    before = peak_bytes()
    [part] = search_programs(workload, WORKLOADS[workload](1))
    row = guided(part, load_rules("indexed"), SearchLimits(16))
    assert row.complete and row.one_kernel > 0
    assert row.peak_bytes - before < 200 * 2**20  # of the 300 MiB with the process itself
    nodes, classes, visited = PROTOTYPE.get(workload, PROTOTYPE["gqa"])
    assert row.nodes <= 3 * nodes and row.classes <= 3 * classes and row.visited <= 3 * visited


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing",), "no program 'nothing': the workloads are rmsnorm"),
        (("rmsnorm", "--max-block-ops", "0"), "got 0"),
        (("rmsnorm", "--domain", "other"), "wanted one of indexed, abstract"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_command(capsys, "bench", "search", *arguments)
    assert (code, out) == (2, "") and err.count("\n") == 1 and said in err
