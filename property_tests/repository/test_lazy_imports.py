"""What loads what: the package's names are imported when they are used, and small questions load small parts."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mirage_eg as mi
from mirage_eg import _DTYPES, _HOMES, _MODULES


def loaded(code: str) -> set[str]:
    """The modules that a fresh interpreter has after `code`."""
    script = f"import sys\n{code}\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split("\n")[-2].split())


def heavy(modules: set[str]) -> set[str]:
    return modules & {"egglog", "mpmath", "triton", "torch", "numpy", "ortools", "hypothesis", "cupy"}


@pytest.mark.parametrize(
    ("module", "few"),
    [("mirage_eg", 5), ("mirage_eg.ir.graph", 36), ("mirage_eg.ir.builder", 42), ("mirage_eg.ir.serialize", 38)],
)
def test_the_graph_types_load_no_egglog_and_few_of_our_modules(module: str, few: int) -> None:
    modules = loaded(f"import {module}")
    assert heavy(modules) == set()
    assert len([name for name in modules if name.startswith("mirage_eg")]) < few


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["optimize", "--help"], ["show", "missing.json"]])
def test_a_small_command_loads_no_egglog(arguments: list[str]) -> None:
    modules = loaded(
        f"from mirage_eg.cli.main import main; sys.argv = ['mirage-eg', *{arguments}]\ntry: main()\nexcept SystemExit: pass"
    )
    assert heavy(modules) == set()


def test_the_version_is_printed_without_most_of_our_modules() -> None:
    modules = loaded(
        "from mirage_eg.cli.main import main; sys.argv = ['mirage-eg', '--version']\ntry: main()\nexcept SystemExit: pass"
    )
    assert len([name for name in modules if name.startswith("mirage_eg")]) < 150


def test_users_load_nothing_of_the_lab() -> None:
    used = "api", "egraph_api", "cli.main", "torch_compile.backend", "testing", "report.notebook"
    modules = loaded("import " + ", ".join(f"mirage_eg.{module}" for module in used))
    assert not any(name.startswith("mirage_eg.lab") for name in modules)


def test_a_graph_that_the_caches_have_loads_no_importer_and_no_gate() -> None:
    asked = "import mirage_eg.torch_compile.backend as backend\nbackend.Settings().inductor"
    ours = {name.removeprefix("mirage_eg.") for name in loaded(asked)}
    assert not ours & {"torch_compile.compile_graph", "torch_compile.gate", "frontend.aten_ops", "frontend.coverage", "onnx"}
    assert not ours & {"search.partition.segments", "pipeline.ranking", "backends.cost.roofline_model", "egraph.rulebook"}


def test_a_run_loads_what_few_runs_need_only_there() -> None:
    modules = loaded("import mirage_eg.cli.main, mirage_eg.pipeline.stages, mirage_eg.report.page")
    assert not {"mirage_eg.pipeline.diagnosis", "mirage_eg.frontend.custom_op_check"} & modules
    assert not any(name.startswith("mirage_eg.partial_equivalence") for name in modules)


def test_the_compiler_of_graphs_loads_no_search_no_proof_and_no_onnx() -> None:
    """Of kernels in the cache a second process needs none of them; onnx is optional."""
    modules = loaded("import mirage_eg.torch_compile.compile_graph")
    ours = {f"mirage_eg.{name}" for name in ("egraph.rulebook", "verify.proof", "verify.reference", "pipeline.stages")}
    assert not modules & {"egglog", "onnx", "ortools", "triton", *ours}


def test_every_public_name_is_there_and_no_other() -> None:
    assert all(getattr(mi, name) is not None for name in mi.__all__)
    assert set(mi.__all__) <= set(dir(mi))
    assert mi.float16 is mi.DType.float16
    with pytest.raises(AttributeError, match="module 'mirage_eg' has no attribute 'kernel_graph'"):
        _ = mi.kernel_graph  # type: ignore[attr-defined]


def test_the_names_for_type_checkers_are_those_that_are_loaded() -> None:
    tree = ast.parse(Path(mi.__file__).read_text(encoding="utf-8"))
    [block] = [item for item in tree.body if isinstance(item, ast.If) and ast.unparse(item.test) == "TYPE_CHECKING"]
    imports = [(item.module, name) for item in block.body if isinstance(item, ast.ImportFrom) for name in item.names]
    modules = {
        name.asname or name.name: f"{home}.{name.name}" for home, name in imports if (name.asname or name.name) in _MODULES
    }
    assert modules == {name: f"mirage_eg.{home}" for name, home in _MODULES.items()}
    shown: dict[str | None, tuple[str, ...]] = {}
    for home, name in imports:
        if f"{home}.{name.name}" not in modules.values():
            shown[home] = (*shown.get(home, ()), name.name)
    assert shown == {f"mirage_eg.{module}": names for module, names in _HOMES.items()}
    names = [name for names in _HOMES.values() for name in names]
    assert sorted([*names, *_DTYPES, *_MODULES, "__version__"]) == sorted(mi.__all__)


def test_the_importer_of_torch_loads_no_torch() -> None:
    assert heavy(loaded("import mirage_eg as mi\nmi.torch.import_program")) <= {"numpy"}


def test_the_importer_of_onnx_says_which_package_is_missing() -> None:
    code = """
import mirage_eg as mi
export = mi.onnx.export_model
assert not {"torch", "onnx"} & set(sys.modules)
sys.modules["torch"] = None
try:
    mi.onnx.import_model
except mi.MirageError as error:
    assert str(error) == "torch is not installed; try: pip install 'mirage-eg[onnx]'", error
    print("refused")
print()
"""
    done = subprocess.run([sys.executable, "-c", f"import sys\n{code}"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "refused"


def test_ipython_shows_graphs_and_loads_no_egglog() -> None:
    code = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
from mirage_eg.ir.builder import new_kernel_graph
graph = new_kernel_graph()
graph.mark_output(graph.exp(graph.new_input((2, 2))))
assert shell.display_formatter.format(graph)[0]["image/svg+xml"].startswith("<svg")
"""
    assert "egglog" not in loaded(code)
    assert "IPython" not in loaded("import mirage_eg")
