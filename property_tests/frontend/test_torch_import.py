"""Models of `transformers` as imported programs: what is in segments, the numbers, and the record."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
import torch.nn.functional as f

import mirage_eg as mi
from mirage_eg.frontend import torch_export
from mirage_eg.frontend.imported import Imported, InputKind
from mirage_eg.frontend.load import import_file
from mirage_eg.ir.errors import ProgramError
from mirage_eg.report.notebook import HTML_FORMATTERS
from property_tests.support.command import run_command
from property_tests.support.layers import ROOT
from property_tests.support.model_zoo import DESIGNED, MODELS, covered, in_float64, make
from property_tests.support.parameters import few
from property_tests.support.torch_import import AsModule, exported, imported, relative_error

FAST = ("bert", "falcon", "gemma", "gpt2", "llama_sdpa", "phi3", "swin", "t5", "vit", "wav2vec2", "whisper")  # one of each kind
CASES = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in MODELS]
ROUTING = {
    "transformers.grouped_mm_fallback.default",
    "aten.div.Tensor_mode",
    *(f"aten.{name}.default" for name in ("topk", "sort", "histc", "cumsum", "index_put", "view", "_to_copy", "clamp")),
    *(f"aten.{name}.Tensor" for name in ("index", "slice")),
}
ROWS = {
    row["model"]: row for row in map(json.loads, (ROOT / "docs" / "measurements" / "models.jsonl").read_text().splitlines())
}


@pytest.mark.parametrize("name", few(CASES, 3))
def test_a_model_is_imported_as_the_table_of_models_says(name: str) -> None:
    found, error = covered(MODELS[name])
    outside = [{"op": it.name, "ops": it.ops, "reason": it.note} for it in found.outside if it.ops]
    assert error <= 1e-6
    hint = f"docs/measurements/models.jsonl is old: python benchmarks/models.py {name}"
    assert ([it.ops for it in found.segments], outside) == (ROWS[name]["segments"], ROWS[name]["outside"]), hint


def test_every_op_behind_embeddings_is_in_a_segment() -> None:
    for name in DESIGNED:
        row = ROWS[name]
        assert {it["op"] for it in row["outside"]} <= (ROUTING if name == "mixtral" else set()), name
        assert name == "mixtral" or len(row["segments"]) == 1, name
    assert set(ROWS) == set(MODELS) and all(row["error"] <= 1e-6 for row in ROWS.values())


META = """
import json, resource, sys, time
import torch, transformers
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
import mirage_eg as mi
sizes = dict(hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8)
config = transformers.LlamaConfig(**sizes, attn_implementation="sdpa")
records = []
for length in (1, 128):
    with torch.device("meta"), torch.no_grad():
        layer = LlamaDecoderLayer(config, 0).eval()
        x, cos = torch.empty(1, length, 4096), torch.empty(1, length, 128)
        program = torch.export.export(layer, (x,), {"position_embeddings": (cos, cos)}, strict=False)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    it = mi.torch.import_program(program)
    seconds = time.process_time() - start
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    weights = sum(graph.input_types[i].nbytes for graph, part in zip(it.programs, it.segments)
                  for i, kind in enumerate(part.kinds) if kind == "parameter")
    records.append((seconds, grown << 10, weights, len(it.segments), len(it.outside)))
print(json.dumps(records))
"""


@pytest.mark.slow
def test_a_layer_of_eight_billion_weights_is_imported_without_them() -> None:
    done = subprocess.run([sys.executable, "-c", META], capture_output=True, text=True, check=True, timeout=300)
    for seconds, grown, weights, segments, outside in json.loads(done.stdout.splitlines()[-1]):
        assert seconds <= 5 and grown < 100 << 20
        assert weights == 4 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096)
        assert (segments, outside) == (1, 0)


def import_model(name: str) -> tuple[Any, dict[str, Any], Imported]:
    """A model of the zoo, its arguments, and its programs."""
    model, arguments = make(DESIGNED[name])
    return model, arguments, mi.torch.import_program(exported(model, **arguments))


def test_weights_are_parameters_and_masks_are_constants() -> None:
    model, _, it = import_model("llama_sdpa")
    [segment] = it.segments
    assert set(it.parameters.values()) == {name for name, _ in model.named_parameters()} - {"embed_tokens.weight"}
    assert segment.inputs_of(InputKind.ACTIVATION) == ("inputs_embeds",)
    assert set(segment.inputs_of(InputKind.CONSTANT)) == set(it.constants)
    [mask] = [name for name in it.constants if it.array(name).dtype == bool]
    assert (it.array(mask) == np.tril(np.ones((10, 10), bool))).all()
    with pytest.raises(ProgramError, match="got the input 'x', wanted a parameter or a constant"):
        it.array("x")
    name, target = next(iter(it.parameters.items()))
    assert (it.array(name) == dict(model.named_parameters())[target].detach().numpy()).all()


def test_weights_that_change_in_place_change_the_results() -> None:
    model, arguments, it = import_model("t5")
    first = it.run(**arguments)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    [table] = it.constants["embedding"].depends_on
    assert table.endswith("relative_attention_bias_weight")
    assert relative_error(it.run(**arguments), in_float64(model, arguments)) <= 1e-6
    assert relative_error(it.run(**arguments), first) > 1e-2


@pytest.mark.filterwarnings("error::FutureWarning")  # as torch gives where it makes a program functional
def test_in_place_ops_and_buffers_behave_as_in_the_model() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.count.add_(1)
            y = x * 1
            y[:, 0] = 7
            y.mul_(self.count)
            return y.exp_()

    x = torch.randn(4, 3)
    program = exported(Counting(), x)
    it = mi.torch.import_program(program)
    model = Counting()
    for _ in range(2):
        assert relative_error(it.run(x), model(x)) <= 1e-6


@pytest.mark.parametrize("name", few(["llama_sdpa", "gpt2"], 1))
def test_a_graph_of_aot_autograd_is_imported_by_its_own_ops(name: str) -> None:
    from torch._functorch.aot_autograd import aot_export_module

    model, arguments = make(DESIGNED[name])
    [x] = arguments.values()
    last = AsModule(lambda x: (model(inputs_embeds=x).last_hidden_state,))
    last.model = model
    flat = exported(last, x).module()  # without the checks of its arguments' values, which AOTAutograd cannot trace
    with torch.no_grad():
        graph, signature = aot_export_module(flat, (x,), trace_joint=False)
    state = dict(flat.named_parameters()) | dict(flat.named_buffers())
    parameters = {name: state[target] for name, target in signature.inputs_to_parameters.items()}
    buffers = {name: state[target] for name, target in signature.inputs_to_buffers.items()}
    ops = {str(node.target) for node in graph.graph.nodes}
    assert {"llama_sdpa": "aten._scaled_dot_product_flash_attention_for_cpu.default", "gpt2": "aten.addmm.default"}[name] in ops
    it = mi.torch.import_graph(graph, parameters, buffers)
    assert it.outside == () and len(it.segments) == 1
    [got] = it.run(*parameters.values(), *buffers.values(), x)
    assert relative_error(got, in_float64(model, arguments).last_hidden_state) <= 1e-6


def test_segments_and_outside_nodes_take_turns() -> None:
    def function(x: Any) -> Any:
        y = torch.atan(x.exp()).tanh()
        return torch.atan(y * x.exp()).sigmoid() + y

    x = torch.randn(4, 6)
    it = imported(function, x)
    assert Counter(node.op for node in it.outside) == {"aten.atan.default": 2}
    assert [len(part.nodes) for part in it.segments] == [2, 2, 2]
    assert relative_error(it.run(x), function(x.double())) <= 1e-6


def test_unconnected_parts_are_programs_of_their_own() -> None:
    it = imported(lambda x, y: (x.exp() + x, y.tanh()), torch.randn(3), torch.randn(3))
    assert [graph.input_names for graph in it.programs] == [("args_0",), ("args_1",)]


class Atan(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.atan(x)


@pytest.mark.parametrize("strict", [False, True])
def test_a_node_outside_has_the_path_of_its_module(strict: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.ReLU(), Atan()))
    found = mi.torch.import_program(torch.export.export(model, (torch.zeros(2, 4),), strict=strict))
    assert [(it.op, it.module) for it in found.outside] == [("aten.atan.default", "1.1")]


def test_symbolic_extents_stay_outside_with_the_reason() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.exp()

    x = torch.randn(4, 6)
    program = torch.export.export(Model(), (x,), dynamic_shapes=({0: torch.export.Dim("n", min=2)},))
    it = mi.torch.import_program(program)
    assert it.segments == () and "symbolic shape" in it.outside[0].reason
    assert relative_error(it.run(x), x.exp()) == 0


def test_other_arguments_and_other_types_are_refused_in_one_line() -> None:
    with pytest.raises(ProgramError, match=r"got a Linear, wanted the result of torch\.export\.export"):
        mi.torch.import_program(torch.nn.Linear(2, 2))
    x = torch.randn(4, 6)
    it = imported(lambda x: x.exp(), x)
    with pytest.raises(ProgramError, match="run: got arguments"):
        it.run(x, x)
    graph = torch.fx.symbolic_trace(lambda x: torch.ops.aten.exp_.default(x))
    with pytest.raises(ProgramError, match=r"aten\.exp_\.default changes an operand in place, wanted a functional graph"):
        mi.torch.import_graph(graph)


def test_explain_prints_segments_shares_and_reasons() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any, w: Any, i: Any) -> Any:
            return torch.atan(f.linear(x, w).tanh()).exp().sin(), f.conv1d(i, i)

    it = mi.torch.explain(Model(), torch.randn(3, 4), torch.randn(4, 4), torch.ones(1, 3, 4, dtype=torch.int64))
    assert [row.ops for row in it.segments] == [2, 2]
    assert {(row.name, row.flops, row.note) for row in it.outside} == {
        ("aten.conv1d.default", 24, "input has element type int64, wanted one of float16, bfloat16, float32, float64"),
        ("aten.atan.default", 0, "no op of the IR computes it"),
    }
    assert it.share("ops") == 4 / 6
    assert HTML_FORMATTERS["frontend.coverage.Coverage"](it).count("<tr>") == len(it.rows())
    head, *rows = str(it).splitlines()
    assert head.split() == ["ops", "Gflop", "MB"] and len(rows) == 5 and rows[2].startswith("covered")


def test_the_command_explains_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.export.save(exported(lambda x: torch.atan(x.exp()), torch.randn(3)), tmp_path / "model.pt2")
    for arguments, shown in (((), "atan"), (("--json",), '"outside": [{"name": "aten.atan.default", "ops": 1')):
        code, out, _ = run_command(capsys, "explain", tmp_path / "model.pt2", *arguments)
        assert code == 0 and shown in out
    for name, reason in (("missing.pt2", "No such file"), ("text.pt2", "wanted a file that torch.export.save wrote")):
        (tmp_path / "text.pt2").write_text("no archive")
        code, _, err = run_command(capsys, "explain", tmp_path / name)
        assert code == 2 and reason in err


def test_a_file_that_is_no_archive_is_refused_before_torch_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_export, "torch_module", lambda: pytest.fail("torch is loaded"))
    (tmp_path / "text.pt2").write_text("no archive")
    with ZipFile(tmp_path / "other.pt2", "w") as archive:
        archive.writestr("readme.txt", "nothing else")
    for name, reason in {"missing": "No such file", "text": "not a zip file", "other": "without an exported program"}.items():
        with pytest.raises(ProgramError, match=rf"{reason}.*; wanted a file that torch\.export\.save wrote"):
            torch_export.load(tmp_path / f"{name}.pt2")


def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(exported(lambda x: x.exp() @ x.t(), torch.randn(3, 3)), path)
    whole = path.read_bytes()
    with ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    damaged = [whole[: len(whole) // parts] for parts in (1000, 4, 2)]
    for name in members:
        if name.endswith((".json", "sample_inputs/model.pt")):
            for content in (b"{}", members[name][: len(members[name]) // 2]):
                with ZipFile(path, "w") as archive:
                    for other, data in members.items():
                        archive.writestr(other, content if other == name else data)
                damaged.append(path.read_bytes())
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ProgramError, match=r"wanted a file that torch\.export\.save wrote") as error:
            import_file(path)
        assert "\n" not in str(error.value)


def test_explain_says_why_a_model_is_not_exported(tmp_path: Path) -> None:
    class Branches(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.exp() if x.sum() > 0 else x

    with pytest.raises(ProgramError, match=r"explain: torch\.export: .*data-dependent.*depend on no value"):
        mi.torch.explain(Branches(), torch.randn(3))
    with pytest.raises(ProgramError, match=r"explain: torch\.export: .*use_cache = False"):
        mi.torch.explain(torch.nn.Linear(3, 4), torch.randn(5))


@pytest.mark.filterwarnings("ignore:The tensor attribute self.(model.)?state")
def test_a_tensor_that_a_model_replaces_without_registering_it_is_named() -> None:
    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.state = torch.zeros(3)

        def forward(self, x: Any, begin: Any) -> Any:
            self.state.copy_(begin)
            self.state = (x + self.state).tanh()
            return self.state * 2

    with pytest.raises(ProgramError, match=r"cannot be made functional: .*state"):
        mi.torch.explain(Recurrent(), torch.randn(3), torch.randn(3))
