"""Seconds of the first call of a compiled model, by stages: with empty caches, then in a second process with these caches.

    python benchmarks/compile_time.py [MODEL…] [--budget S] [--tune S] [--tiny] [--with CONTESTANT…] [--json FILE]

MODELs: bert (12 layers, 128 tokens), llama-3.2-1b (16 layers, one token with a StaticCache of 1,024), resnet-50 (one image,
channels last), and rows of `mirage-eg bench models`. Random weights, so nothing is loaded; float16 on a GPU, float32 without.
CONTESTANTs: inductor and ours, both by default. Each call is in a process of its own, with caches in a folder of its own; its
imports of torch and of the model's package are not counted, those of mirage_eg are. `--tiny` has small models for a CPU, where
the cost model decides in place of the GPU, and kernels run in Triton's interpreter.

A thread looks 50 times a second where the main thread is, so that the stages add up to the seconds that a user waits; what
other threads and processes do meanwhile is not counted. `waiting` is for workers, `loading` is for modules of Python.

On a GPU machine, where entry points need not be installed (transformers and torchvision must be), within ten minutes a call:

    PYTHONPATH=. python benchmarks/compile_time.py bert llama-3.2-1b resnet-50 --budget 60 --json $OUT/compile_time.jsonl
    PYTHONPATH=. python benchmarks/compile_time.py llama-3.2-1b --with ours --tune 15 --json $OUT/compile_time.jsonl
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from threading import Event, Thread, get_ident
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.table import Table

from mirage_eg.cli.terminal import console

EVERY = 0.02  # seconds between looks at the main thread
CONTESTANTS = ("inductor", "ours")
MARKS = (  # of stages: the first of which a frame is on the stack, by the end of its file's path and, if given, its function
    ("loading", "<frozen importlib._bootstrap>", "_find_and_load"),
    ("waiting", "pipeline/run/executors.py", "_as_completed"),
    ("waiting", "torch_compile/begun_searches.py", "next_of"),
    ("waiting", "torch_compile/begun_searches.py", "result"),
    ("waiting", "evaluator/processes.py", "end_processes"),
    ("gate", "torch_compile/whole_graph.py", "_times"),
    ("whole graph's Inductor", "torch_compile/whole_graph.py", "compiled_whole"),  # which workers search beside
    ("gate's Inductor", "torch_compile/gate.py", "inductor_code"),
    ("gate", "torch_compile/gate.py", ""),
    ("tuning", "pipeline/tune_stage.py", ""),
    ("tuning", "optimizer/tune.py", ""),
    ("proofs", "verify/proof.py", ""),
    ("verification", "pipeline/verify_stage.py", ""),
    ("compilation", "pipeline/finalists.py", ""),  # the rest of it waits for the compiler
    ("compilation", "pipeline/compile_stage.py", ""),
    ("waiting", "evaluator/cpu_threads.py", "result"),
    ("diagnosis", "pipeline/diagnosis.py", ""),
    ("search", "search/partition/segment_search.py", ""),
    ("search", "pipeline/search_stage.py", ""),
    ("choices", "search/partition/plan_graph.py", ""),
    ("choices", "search/partition/shortest_path.py", ""),
    ("choices", "pipeline/partition_stage.py", ""),
    ("choices", "pipeline/choose_candidates.py", ""),
    ("rewriting", "pipeline/equal_programs.py", ""),
    ("simplification", "transforms/simplify.py", ""),
    ("reports", "pipeline/make_report.py", ""),
    ("rules", "egraph/rulebook.py", ""),
    ("keys and caches", "torch_compile/segment_keys.py", ""),
    ("keys and caches", "pipeline/run/cache.py", ""),
    ("importing", "torch_compile/fx_regions.py", ""),
    ("writing graphs", "torch_compile/rewrite.py", ""),
    ("loading kernels", "torch_compile/segment_call.py", ""),
    ("other of ours", "torch_compile/compile_graph.py", ""),
    ("Inductor", "torch/_inductor/compile_fx.py", ""),
    ("gate", "torch_compile/whole_graph.py", ""),
    ("Dynamo", "torch/_dynamo/convert_frame.py", ""),
    ("calls", "", ""),
)
STAGES = tuple(dict.fromkeys(stage for stage, _, _ in MARKS))

Model = tuple[Any, tuple[Any, ...]]  # a module and its arguments


def bert(tiny: bool) -> Model:
    """BERT's base model, 128 tokens."""
    import torch
    from transformers import BertConfig, BertModel

    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 97}
    return BertModel(BertConfig(**(small if tiny else {}))), (torch.randint(0, 90, (1, 16 if tiny else 128)),)


def llama(tiny: bool) -> Model:
    """A decoding step of Llama 3.2 1B: one token, keys and values in a StaticCache."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

    width, inner, layers, heads, shared, words = (64, 96, 2, 4, 2, 97) if tiny else (2048, 8192, 16, 32, 8, 128256)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        vocab_size=words,
        tie_word_embeddings=True,
    )
    length = 32 if tiny else 1024

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.cache = LlamaForCausalLM(config), StaticCache(config=config, max_cache_len=length)

        def forward(self, token: Any, place: Any) -> Any:
            found = self.model(input_ids=token, position_ids=place, past_key_values=self.cache, use_cache=True)
            return found.logits

    return Step(), (torch.randint(0, 90, (1, 1)), torch.full((1, 1), length // 2))


def resnet(tiny: bool) -> Model:
    """ResNet-50 on one image, channels last; the tiny one is the first of its kind, in transformers."""
    import torch

    if tiny:
        from transformers import ResNetConfig, ResNetModel

        sizes = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}
        model, image = ResNetModel(ResNetConfig(**sizes)), torch.randn(1, 3, 32, 32)
    else:
        from torchvision.models import resnet50

        model, image = resnet50(), torch.randn(1, 3, 224, 224)
    last = torch.channels_last
    return model.to(memory_format=last), (image.to(memory_format=last),)


MODELS: dict[str, Callable[[bool], Model]] = {"bert": bert, "llama-3.2-1b": llama, "resnet-50": resnet}


@contextmanager
def watched() -> Iterator[Counter[str]]:
    """The seconds of the stages that this thread is in."""
    seconds, ended, own = Counter[str](), Event(), get_ident()

    def watch() -> None:
        before = perf_counter()
        while not ended.wait(EVERY):
            frame, stack = sys._current_frames()[own], list[tuple[str, str]]()
            while frame is not None:
                stack.append((frame.f_code.co_filename, frame.f_code.co_name))
                frame = frame.f_back  # type: ignore[assignment]
            now = perf_counter()
            seconds[stage_of(stack)] += now - before
            before = now

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seconds
    finally:
        ended.set()
        thread.join()


def stage_of(stack: list[tuple[str, str]]) -> str:
    """The stage of a stack of files and functions."""
    return next(
        stage for stage, file, function in MARKS if any(path.endswith(file) and function in ("", name) for path, name in stack)
    )


def first_call(name: str, contestant: str, budget: float, tune: float, tiny: bool) -> dict[str, Any]:
    """The figures of a model compiled in this process, with the caches that the environment names."""
    import torch

    from mirage_eg.backends.measure.timing import gpu_available, gpu_name

    torch.manual_seed(0)
    on_gpu = gpu_available()
    device, dtype = ("cuda", torch.float16) if on_gpu else ("cpu", torch.float32)
    with torch.device(device):
        model, arguments = _layer(name, device, dtype) if name not in MODELS else MODELS[name](tiny)
    model = model.eval().to(device, dtype)
    arguments = tuple(it.to(dtype) if it.is_floating_point() else it for it in arguments)
    with torch.no_grad():
        model(*arguments)  # kernels of libraries are loaded, and caches are made
        start = perf_counter()
        with watched() as seconds:
            options = {"budget": budget, "tune": tune, "gate": "time" if on_gpu else "cost"}
            result = _compiled(model, contestant, options)(*arguments)
            tensor = result if isinstance(result, torch.Tensor) else result[0]
            tensor.sum().item()  # the GPU has ended
        total = perf_counter() - start
    return {
        "model": name,
        "tiny": tiny,
        "contestant": contestant,
        "device": gpu_name() if on_gpu else "cpu",
        "cores": len(os.sched_getaffinity(0)),
        "versions": {it: version(it) for it in ("torch", "triton")},
        "budget": budget,
        "tune": tune,
        "seconds": round(total, 2),
        "stages": {stage: round(seconds[stage], 2) for stage in STAGES if seconds[stage] >= 0.01},
        **(_segments() if contestant == "ours" else {}),
    }


def _compiled(model: Any, contestant: str, options: dict[str, Any]) -> Any:
    import torch

    if contestant == "inductor":
        return torch.compile(model, dynamic=False)
    from mirage_eg.torch_compile.backend import backend

    return torch.compile(model, backend=backend, options=options, dynamic=False)


def _segments() -> dict[str, Any]:
    """How many different segments were searched here, how many are used, and the seconds of the stages of their searches."""
    from mirage_eg.torch_compile.records import Compilation, graph_records
    from mirage_eg.torch_compile.segment_store import segment_by_key

    compilation = Compilation(graph_records())
    searched = {it.key for graph in compilation.graphs for it in graph.segments if it.key and not it.from_cache}
    stages = Counter[str]()
    for key in searched:
        stages.update(segment_by_key(key).result.report.seconds)
    return {
        "searched": len(searched),
        "used": compilation.used,
        "searches": {stage: round(seconds, 2) for stage, seconds in stages.items()},
    }


def _layer(name: str, device: str, dtype: Any) -> Model:
    from mirage_eg.lab.bench.model_layers import ROWS, layer_of

    layer, arguments = layer_of(ROWS[name], device, dtype)
    return layer, tuple(arguments)


def lines(name: str, contestant: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The lines of a model: with empty caches, then with full ones."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {it: f"{folder}/{it}" for it in ("MIRAGE_EG_CACHE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")}
        call = [sys.executable, __file__, name, "--with", contestant, "--here"]
        call += ["--budget", str(given.budget), "--tune", str(given.tune), *(["--tiny"] if given.tiny else [])]
        for warm in (False, True):
            print(f"{name}, {contestant}: {'full' if warm else 'empty'} caches", file=sys.stderr, flush=True)
            done = subprocess.run(call, env=os.environ | caches, stdout=subprocess.PIPE, text=True, check=True)
            yield json.loads(done.stdout.splitlines()[-1]) | {"warm": warm}


def main() -> int:
    """Print the table; exit code 2 for a model that there is not."""
    from mirage_eg.lab.bench.model_layers import ROWS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", default=[*MODELS])
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of search a graph")
    parser.add_argument("--tune", type=float, default=0.0, help="seconds of tuning a segment, on a GPU")
    parser.add_argument("--tiny", action="store_true", help="small models, for a CPU")
    parser.add_argument("--with", dest="contestants", nargs="+", choices=CONTESTANTS, default=CONTESTANTS, help="who compiles")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a JSON line for each call")
    parser.add_argument("--here", action="store_true", help="one model in this process, with the caches there are")
    given = parser.parse_args()
    for name in given.models:
        if name not in MODELS and name not in ROWS:
            print(f"compile_time: got {name!r}, wanted one of {', '.join((*MODELS, *ROWS))}", file=sys.stderr)
            return 2
    if given.here:
        print(json.dumps(first_call(given.models[0], given.contestants[0], given.budget, given.tune, given.tiny)))
        return 0
    found = list[dict[str, Any]]()
    for name in given.models:
        for contestant in given.contestants:
            for line in lines(name, contestant, given):
                found.append(line)
                if given.json is not None:
                    with given.json.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
    console().print(_table(found))
    return 0


def _table(found: list[dict[str, Any]]) -> Table:
    """Stages are rows: there are more of them than models."""
    table = Table(title="seconds of the first call", title_justify="left")
    table.add_column("stage")
    for line in found:
        table.add_column(f"{line['model']}, {line['contestant']}, {'full' if line['warm'] else 'empty'}", justify="right")
    rows = {"all": [f"{line['seconds']:.1f}" for line in found]}
    rows |= {stage: [f"{it:.1f}" if (it := line["stages"].get(stage)) else "" for line in found] for stage in STAGES}
    rows |= {name: [str(line.get(name, "")) for line in found] for name in ("searched", "used")}
    for name, cells in rows.items():
        if any(cells):
            table.add_row(name, *cells)
    return table


if __name__ == "__main__":
    sys.exit(main())
