"""docs/ and README: every command and block of a page is run or marked, and gives what the page says."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mirage_eg.backends.cost import devices
from mirage_eg.backends.cost.devices import DEVICES, Device
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.backends.triton import compile as compiling
from mirage_eg.backends.triton.targets import Target
from mirage_eg.frontend import load, workloads
from mirage_eg.lab.baselines import baselines
from mirage_eg.pipeline import optimize
from mirage_eg.pipeline.run.options import Options
from property_tests.support.command import run_command
from property_tests.support.pages import GIVEN, NAMES, ROOT, blocks, read
from property_tests.support.programs import rms_linear

GPU = "needs a GPU"

# Commands that other tests run, or that run where they are said to.
ELSEWHERE = {
    "README.md": {
        "mirage-eg optimize rmsnorm": ".ci/run",
        ".venv/bin/pytest": ".ci/run",
        ". .venv/bin/activate": ".ci/run",
        "property_tests/published/rmsnorm.py mirage/benchmark/saved_mugraphs/": "property_tests/frontend/test_mirage_json.py",
    },
    "docs/tutorials/getting_started.md": dict.fromkeys(
        ("pip install -q .", ". .venv/bin/activate", "python -m", "pip install dist/"), ".ci/run"
    ),
    "docs/measurements/rewrites.md": {"mirage-eg bench laws": "property_tests/verify/test_pairs.py"},
    "docs/how_to/rules.md": {
        "mirage-eg bench laws": "property_tests/verify/test_pairs.py",
        "mirage-eg rules": "property_tests/repository/test_rules_docs.py",
        "mirage-eg optimize": "property_tests/repository/test_rules_docs.py",
    },
    "docs/how_to/synthesis.md": {
        "--domain tensor": "property_tests/lab/synthesis/tensor/test_synthesize_tensor_laws.py",
        "mirage-eg rules": "property_tests/repository/test_synthesis_docs.py",
    },
    "docs/how_to/partial_equivalence.md": {"mirage-eg mutants": "property_tests/cli/test_mutants.py"},
    "rules/README.md": {"mirage-eg": "property_tests/repository/test_rules_readme.py"},
    "docs/how_to/rewrite.md": {"mirage-eg": "property_tests/graph_optimizer/test_page.py"},
    "docs/how_to/onnx.md": {
        "mirage-eg rewrite": "property_tests/frontend/test_onnx_export.py",
        "mirage-eg optimize": "property_tests/frontend/test_onnx_export.py",
    },
    "docs/how_to/torch_compile.md": {"mirage-eg cache": "property_tests/cli/test_cache.py"},
    "CONTRIBUTING.md": {
        "python docs/build.py": "property_tests/repository/test_docs.py",
        "python notebooks/build.py": "property_tests/repository/test_notebooks.py",
        "mkdocs build": "property_tests/repository/test_site.py",
        **dict.fromkeys(("pytest", "ruff", "mypy", ".ci/run"), ".ci/run"),
    },
}
SLOW = (
    "docs/how_to/missing_kernels.md",
    "docs/how_to/measuring_laws.md",
    "docs/tutorials/getting_started.md",
    "docs/tutorials/compiler.md",
    "docs/tutorials/egraph.md",
    "docs/how_to/dynamic_sizes.md",
    "docs/how_to/workloads_and_devices.md",
)
HERE = ("README.md", *SLOW)


def commands(name: str) -> Iterator[str]:
    """The command lines of a page, in sh blocks and indented; `needs a GPU` marks its line, or on the first line the block."""
    text = read(name)
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        yield from _marked(block.splitlines())
    bare = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for block in re.findall(r"(?:^    \S.*\n)+", bare, re.MULTILINE):
        lines = [line.strip() for line in block.splitlines()]
        if any(re.match(r"(mirage-eg|python|pip|#)", line) for line in lines):
            yield from _marked(lines)


def _marked(lines: list[str]) -> Iterator[str]:
    whole = bool(lines) and lines[0].startswith("#") and GPU in lines[0]
    yield from (f"{line}  # {GPU}" if whole else line for line in lines if line and not line.startswith("#"))


def disposed(name: str, command: str) -> str:
    """`gpu`, `here`, or the file that runs the command."""
    if GPU in command:
        return "gpu"
    for part, place in ELSEWHERE.get(name, {}).items():
        if part in command:
            return place
    return "here" if name in HERE else "nowhere"


@pytest.mark.parametrize("name", NAMES)
def test_every_command_of_a_page_is_run_by_a_test_or_marked_as_needing_a_gpu(name: str) -> None:
    for command in commands(name):
        place = disposed(name, command)
        assert place in ("gpu", "here") or (ROOT / place).exists(), f"{name}: nothing runs {command!r}"


def test_a_page_with_commands_is_not_overlooked() -> None:
    assert len(list(commands("docs/tutorials/getting_started.md"))) == 11
    assert len(list(commands("docs/how_to/rules.md"))) == 9
    assert all(disposed("docs/how_to/benchmark.md", command) == "gpu" for command in commands("docs/how_to/benchmark.md"))
    assert disposed("docs/how_to/faq.md", "mirage-eg optimize rmsnorm") == "nowhere"


@pytest.mark.parametrize("name", NAMES)
def test_a_page_that_creates_an_environment_activates_it_first(name: str) -> None:
    """Otherwise the shell finds no mirage-eg; where a page installs nothing, its reader comes from one that does."""
    lines = [*commands(name)]
    installs = next((at for at, line in enumerate(lines) if "-m venv .venv" in line), None)
    bare = [at for at, line in enumerate(lines) if re.match(r"(mirage-eg|python|pip) ", line)]
    if installs is not None and bare:
        active = next((at for at, line in enumerate(lines) if ". .venv/bin/activate" in line), len(lines))
        assert active <= min(bare), f"{name}: {lines[min(bare)]!r} is not on the path"


@pytest.mark.parametrize("name", NAMES)
def test_each_file_in_a_command_exists_or_the_page_says_its_origin(name: str) -> None:
    text = read(name)
    written = {word for command in commands(name) for word in re.findall(r"--(?:out|trace) (\S+)", command)}
    for command in commands(name):
        for file in re.findall(r"(?<!--out )(?<!--trace )\b[\w./]+\.(?:json|py|egg)\b", command):
            known = (ROOT / file).exists() or file in written or file in GIVEN or file.startswith("mirage_out/")
            assert known or f"`{file}`" in text or f"`{Path(file).parent}`" in text, f"{name}: {file} is nowhere"


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in HERE])
def test_the_commands_of_a_page_end_well_in_its_order(name: str, tmp_path: Path) -> None:
    text = read(name)
    shown = re.findall(r"`(\w+\.(?:egg|py))`[^`]*?:[^`]*?\n\n```\w+\n(.*?)```", text, re.DOTALL)
    for file, content in [*GIVEN.items(), *shown]:
        (tmp_path / file).write_text(content, encoding="utf-8")
    lines = [command for command in commands(name) if disposed(name, command) == "here"]
    assert lines
    for command in lines:
        # As installed: `mirage-eg` is this interpreter's.
        here = shlex.quote(sys.executable)
        script = f'set -euo pipefail; mirage-eg() {{ {here} -m mirage_eg "$@"; }}; python() {{ {here} "$@"; }}; {command}'
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, timeout=300, cwd=tmp_path, env=dict(os.environ)
        )
        assert (done.returncode, done.stderr) == (0, ""), command


@pytest.mark.parametrize("name", NAMES)
def test_every_block_of_a_page_says_what_it_is_and_only_sh_has_commands(name: str) -> None:
    for language, text in blocks(name):
        assert language in ("sh", "python", "egg", "text"), f"{name}: a block of {language!r}"
        commands_in_it = re.findall(r"(?m)^(?:\$ ?)?(?:mirage-eg|pip|python3?|bash|\.venv/bin) .*", text)
        assert language == "sh" or not commands_in_it, f"{name}: {commands_in_it}"


SNIPPETS = {  # python blocks that are not files for the commands of their page: what runs them
    ("README.md", "graph = mi.new_kernel_graph()"): "test_the_example_of_the_readme_writes_what_it_says",
    ("CONTRIBUTING.md", "ElementwiseOp("): "property_tests/repository/test_contributing.py",
    ("docs/how_to/workloads_and_devices.md", "biased_gelu("): "test_a_workload_built_in_as_the_page_says_is_found",
    ("docs/how_to/workloads_and_devices.md", "Device("): "test_a_device_that_is_added_as_the_page_says_ranks_and_compiles",
    ("docs/tutorials/compiler.md", "mi.new_threadblock_graph("): "test_the_commands_of_a_page_end_well_in_its_order",
    ("docs/tutorials/egraph.md", "mi.egraph(graph)"): "test_the_commands_of_a_page_end_well_in_its_order",
    ("docs/how_to/rules.md", "from mirage_eg.egraph.explain import explain"): "property_tests/repository/test_rules_docs.py",
    ("docs/explanation/oracle.md", 'e = mi.egraph("rmsnorm")'): "test_the_example_of_the_oracle_page_prints_what_it_says",
    ("docs/how_to/rewrite.md", "mi.optimize_graph("): "property_tests/graph_optimizer/test_page.py",
    ("docs/how_to/rules.md", "mi.LawPair("): "property_tests/verify/test_pairs.py",
    ("docs/how_to/rules.md", "mi.register_op("): "property_tests/repository/test_rules_docs.py",
    ("docs/how_to/synthesis.md", "mi.synthesize("): "property_tests/repository/test_synthesis_docs.py",
    ("docs/how_to/partial_equivalence.md", "mi."): "property_tests/cli/test_mutants.py",
    ("docs/how_to/running.md", "def cost(kernel)"): "property_tests/backends/cost/test_user_cost.py",
    ("docs/how_to/runtime.md", "# needs a GPU"): GPU,
    ("docs/how_to/dynamic_sizes.md", "mi.superoptimize(graph, sizes="): "test_the_example_of_the_sizes_page_runs",
    ("docs/how_to/models.md", "mi.torch.explain(model, x)"): "test_the_example_of_the_models_page_runs",
    ("docs/how_to/testing.md", "def "): "property_tests/api/test_testing_page.py",
    ("docs/tutorials/pytorch.md", 'backend="mirage_eg"'): "property_tests/torch_compile/test_page.py",
}


@pytest.mark.parametrize("name", NAMES)
def test_every_python_block_of_a_page_is_run_or_marked_as_needing_a_gpu(name: str) -> None:
    for language, text in blocks(name):
        if language == "python" and not ("def program(" in text and disposed(name, "mirage-eg optimize") != "nowhere"):
            assert any(name == page and part in text for page, part in SNIPPETS), f"{name}: nothing runs\n{text}"


def test_the_example_of_the_readme_writes_what_it_says(tmp_path: Path) -> None:
    [snippet] = [text for language, text in blocks("README.md") if language == "python"]
    done = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    written = sorted(path.name for path in tmp_path.glob("generated_program_*.py"))
    assert written and written == sorted(f"generated_program_{i}.py" for i in range(len(written)))
    assert all("@triton.jit" in (tmp_path / name).read_text(encoding="utf-8") for name in written[:1])


@pytest.mark.slow
def test_the_example_of_the_sizes_page_runs() -> None:
    _, snippet = [text for language, text in blocks("docs/how_to/dynamic_sizes.md") if language == "python"]
    done = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert "n 17–64: " in done.stdout and "{'n': (2, 64)}" in done.stdout and "[17, 48] float16" in done.stdout


def test_the_example_of_the_models_page_runs() -> None:
    [snippet] = [text for language, text in blocks("docs/how_to/models.md") if language == "python"]
    done = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "covered" in done.stdout and "kernel graph" in done.stdout


SPOKEN: dict[str, str | list[str]] = {  # whole commands within sentences: where they are run, or what is run of them here
    "mirage-eg optimize rmsnorm": ".ci/run",
    "mirage-eg tune": "property_tests/cli/test_tune.py",
    "mkdocs build": "property_tests/repository/test_site.py",
    "mirage-eg optimize biased_gelu": "property_tests/repository/test_docs.py",
    "mirage-eg bench models": "property_tests/cli/test_bench_models.py",
    "mirage-eg bench": "property_tests/lab/bench/test_search.py",
    "mirage-eg bench search": "property_tests/lab/bench/test_search.py",
    "mirage-eg bench search rmsnorm": "property_tests/lab/bench/test_search.py",
    "mirage-eg bench gpu": GPU,
    "mirage-eg bench models --suite quantized --modes default,ours --tune 15 --once": GPU,
    "mirage-eg bench models --tune 25": GPU,
    "mirage-eg bench gpu --report": "property_tests/lab/bench/test_gpu.py",
    "mirage-eg verify": "property_tests/frontend/test_mirage_json.py",
    "mirage-eg optimize": "property_tests/cli/test_main.py",
    "mirage-eg egraph": "property_tests/cli/test_main.py",
    "mirage-eg rewrite": "property_tests/cli/test_rewrite_parts.py",
    "mirage-eg why": "property_tests/pipeline/test_why.py",
    "mirage-eg rules check": "property_tests/egraph/soundness/test_check_file.py",
    "mirage-eg optimize --help": ["-m", "mirage_eg", "optimize", "--help"],
    "mirage-eg rules list --laws": ["-m", "mirage_eg", "rules", "list", "--laws"],
    "mirage-eg optimize decoder_layer --device cuda": GPU,
    "python benchmarks/on_gpu.py": GPU,
    "python benchmarks/mutants.py": GPU,
    "python benchmarks/sizes.py --gpu": GPU,
    "python benchmarks/llama_layers.py": "property_tests/lab/bench/test_llama_layers.py",
    "python benchmarks/backtracking.py": "property_tests/graph_optimizer/test_backtracking.py",
    "python benchmarks/onnx_suite.py": "property_tests/frontend/test_onnx_suite.py",
    "python benchmarks/op_suite.py --tenth": "property_tests/frontend/test_op_samples.py",
    "python benchmarks/op_suite.py": "property_tests/frontend/test_op_samples.py",
    "python benchmarks/prism_programs.py": ["benchmarks/prism_programs.py", "RMSNorm", "--jobs", "1"],
    "python benchmarks/verification.py": ["benchmarks/verification.py", "ragged_mlp", "--budget", "2", "--count", "1"],
    "python benchmarks/models.py": "property_tests/frontend/test_torch_import.py",
    "python benchmarks/launch.py --library torch": ["benchmarks/launch.py", "--library", "none", "--calls", "20"],
    "python benchmarks/ablation.py docs/measurements": "property_tests/lab/bench/test_rule_experiments.py",
    "python benchmarks/search.py docs/measurements": ["benchmarks/search.py", "OUT", "--picture"],
}


def spoken(name: str) -> list[str]:
    """Commands within the sentences of a page, without those with a place for something: GRAPH.json, my.egg."""
    text = re.sub(r"(?s)```.*?```", "", read(name))
    found = [" ".join(words.split()) for words in re.findall(r"`((?:mirage-eg|python|mkdocs) [^`]+)`", text)]
    return [words for words in found if words in SPOKEN or not re.search(r"[A-Z]{4}|…|my\.egg", words)]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "docs/reference/command_line.md"])
def test_every_whole_command_within_a_sentence_is_run_too_or_needs_a_gpu(name: str) -> None:
    for words in spoken(name):
        place = SPOKEN.get(words)
        assert place is not None, f"{name}: nothing runs {words!r}"
        assert place == GPU or isinstance(place, list) or (ROOT / place).exists()


@pytest.mark.parametrize(
    "words",
    [  # of the benchmarks one runs by default
        pytest.param(words, marks=[pytest.mark.slow] * ("benchmarks/" in words and "verification" not in words))
        for words, place in SPOKEN.items()
        if isinstance(place, list)
    ],
)
def test_what_is_said_to_run_runs(words: str, tmp_path: Path) -> None:
    arguments = SPOKEN[words]
    assert isinstance(arguments, list)
    if "--picture" in arguments:
        pytest.importorskip("matplotlib", reason="matplotlib is not installed (group bench)")
        (tmp_path / "search.jsonl").write_text(read("docs/measurements/search.jsonl"), encoding="utf-8")
    call = [sys.executable, *(str(tmp_path) if it == "OUT" else it for it in arguments)]
    done = subprocess.run(call, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_device_that_is_added_as_the_page_says_ranks_and_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    page = read("docs/how_to/workloads_and_devices.md")
    [record] = re.findall(r"```python\n(Device\(.*?)```", page, re.DOTALL)
    [line] = re.findall(r'`("sm_89": Target\(.*?\))`', page)
    device = eval(record, {"Device": Device})
    monkeypatch.setattr(devices, "DEVICES", DEVICES | {device.name: device})
    for target, value in eval("{" + line + "}", {"Target": Target}).items():
        monkeypatch.setitem(compiling.TARGETS, target, value)
    result = optimize.optimize("p", rms_linear(), Options(target=device.target, device="cpu", jobs=1, top=1, cache=False))
    assert result.report.data()["target"] == "sm_89" and result.candidates[0].compile.ok


def test_a_workload_built_in_as_the_page_says_is_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (group test)")
    page = blocks("docs/how_to/workloads_and_devices.md")
    _, workload, baseline, _ = [text for language, text in page if language == "python"]
    for code, module in ((workload, workloads), (baseline, baselines)):
        exec(code, vars(module))
    made, eager = (vars(module).pop(name) for module, name in ((workloads, "biased_gelu"), (baselines, "_biased_gelu")))
    monkeypatch.setattr(load, "BUILT_IN", {**load.BUILT_IN, made.__name__: made})
    monkeypatch.setitem(baselines.EAGER, made.__name__, eager)
    assert {"eager", "torch.compile"} <= {baseline.name for baseline in baselines.baselines("biased_gelu")}
    arrays = [np.random.default_rng(i).standard_normal(kind.shape) for i, kind in enumerate(made(2).input_types)]
    [want] = evaluate(made(2), arrays, FloatAlgebra())
    assert np.allclose(eager(*map(torch.tensor, arrays)).numpy(), want)
    monkeypatch.chdir(tmp_path)
    assert run_command(capsys, *["optimize", "biased_gelu", "--top", "1", "--jobs", "1", "--device", "cpu"])[0] == 0
    assert (tmp_path / "mirage_out" / "biased_gelu" / "best.py").exists()
