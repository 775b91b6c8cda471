"""Seconds of the first call of a layer compiled by this backend: with empty caches, then in a second process with these caches.

    python benchmarks/compile_time.py [LAYER…] [--budget S] [--tune S] [--json FILE]

LAYERs are rows of `mirage-eg bench models`. Each call is in a process of its own; its imports are not counted. A search is
divided into its stages, which overlap; the rest is torch, Inductor and the gate. Without a GPU the cost model decides, and the
call runs the kernels in Triton's interpreter. On a new machine run a layer twice: the first process waits for a cold disk.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.table import Table

from mirage_eg.cli.terminal import console

LAYERS = ("bert-base b=1", "vit-b", "gpt2", "qwen3-8b decode b=1", "llama-8b decode b=1")
STAGES = ("kernels", "tune", "compile", "verify")


def first_call(name: str, budget: float, tune: float) -> dict[str, Any]:
    """The figures of a layer compiled in this process, with the caches that the environment names."""
    import torch

    from mirage_eg.backends.measure.timing import gpu_available, gpu_name
    from mirage_eg.lab.bench.model_layers import ROWS, layer_of
    from mirage_eg.torch_compile.backend import backend
    from mirage_eg.torch_compile.records import Compilation, graph_records
    from mirage_eg.torch_compile.segment_store import segment_by_key

    on_gpu = gpu_available()
    layer, arguments = layer_of(ROWS[name], *(("cuda", torch.float16) if on_gpu else ("cpu", torch.float32)))
    options = {"budget": budget, "tune": tune, "gate": "time" if on_gpu else "cost"}
    start = perf_counter()
    with torch.no_grad():
        result = torch.compile(layer, backend=backend, options=options, dynamic=False)(*arguments)
        result.sum().item()  # the GPU has ended
    seconds = perf_counter() - start
    compilation = Compilation(graph_records())
    searched = {it.key for graph in compilation.graphs for it in graph.segments if it.key and not it.from_cache}
    stages = Counter[str]()
    for key in searched:
        stages.update(segment_by_key(key).result.report.seconds)
    return {
        "layer": name,
        "device": gpu_name() if on_gpu else "cpu",
        "cores": len(os.sched_getaffinity(0)),
        "versions": {it: version(it) for it in ("torch", "triton")},
        "seconds": round(seconds, 2),
        "searched": len(searched),
        "search": round(stages["total"], 2),
        "stages": {stage: round(stages[stage], 2) for stage in STAGES},
        "used": compilation.used,
    }


def lines(name: str, budget: float, tune: float) -> list[dict[str, Any]]:
    """The lines of a layer: with empty caches, then with full ones."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {it: f"{folder}/{it}" for it in ("MIRAGE_EG_CACHE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")}
        call = [sys.executable, __file__, name, "--budget", str(budget), "--tune", str(tune), "--here"]
        found = []
        for warm in (False, True):
            print(f"{name}: {'full' if warm else 'empty'} caches", file=sys.stderr, flush=True)
            done = subprocess.run(call, env=os.environ | caches, stdout=subprocess.PIPE, text=True, check=True)
            found.append(json.loads(done.stdout.splitlines()[-1]) | {"warm": warm})
        return found


def main() -> int:
    """Print the table; exit code 2 for a layer that there is not."""
    from mirage_eg.lab.bench.model_layers import ROWS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layers", nargs="*", metavar="LAYER", default=LAYERS)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of search a graph")
    parser.add_argument("--tune", type=float, default=0.0, help="seconds of tuning a segment, on a GPU")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a JSON line for each call")
    parser.add_argument("--here", action="store_true", help="one layer in this process, with the caches there are")
    given = parser.parse_args()
    for name in given.layers:
        if name not in ROWS:
            print(f"compile_time: got {name!r}, wanted one of {', '.join(ROWS)}", file=sys.stderr)
            return 2
    if given.here:
        print(json.dumps(first_call(given.layers[0], given.budget, given.tune)))
        return 0
    table = Table(title="seconds of the first call", title_justify="left")
    for head in ("layer", "caches", "all", "search", *STAGES, "rest", "segments used"):
        table.add_column(head, justify="left" if head in ("layer", "caches") else "right")
    for name in given.layers:
        for line in lines(name, given.budget, given.tune):
            if given.json is not None:
                with given.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
            spent = line["search"], *line["stages"].values(), line["seconds"] - line["search"]
            caches = "full" if line["warm"] else "empty"
            table.add_row(name, caches, *(f"{it:.1f}" for it in (line["seconds"], *spent)), str(line["used"]))
    console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
