"""`optimize` on layers of Llama of random weights in float32: kernels, ops in block graphs, predicted time, CPU seconds.

    python benchmarks/llama_layers.py [WIDTH,TOKENS,PAST,LAYERS …] [--json FILE]

CPU seconds are those of this process and its children, with `--jobs 1` and without caches: each row has a new one for Triton.
*With files* includes the folder that the command line writes.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # the layers are with the tests

from mirage_eg.cli.optimize import write_results
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from property_tests.support.llama_layer import llama_layer

LAYERS = ("64,16,0,1", "64,16,15,1", "64,1,63,1", "256,16,15,1", "512,1,128,1", "64,16,0,32")  # heads: 4, of keys 2


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One program of `layers` equal layers."""

    width: int
    tokens: int
    past: int
    layers: int
    kernels: int
    in_blocks: int
    ops: int
    predicted_us: float
    device: str
    verdict: str
    seconds: float
    seconds_with_files: float


def measured(width: int, tokens: int, past: int, layers: int) -> LayerRow:
    """One row; CPU seconds are counted from the end of the import on."""
    [program] = llama_layer(width, tokens, past, layers=layers).imported.programs
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = f"{folder}/triton"
        start = cpu_seconds()
        result = optimize("layers", program, Options(device="cpu", jobs=1, cache=False))
        searched = cpu_seconds()
        write_results(result, program, Path(folder) / "layers", "benchmark")
        written = cpu_seconds()
    best, regions = result.candidates[0], result.report.regions
    return LayerRow(
        width,
        tokens,
        past,
        layers,
        best.kernels,
        sum(len(region.occurrences) * region.in_blocks for region in regions),
        sum(len(region.occurrences) * region.ops for region in regions),
        best.predicted_us,
        Options().device_record.name,
        str(best.verdict.verdict),
        searched - start,
        written - start,
    )


def cpu_seconds() -> float:
    """Those of this process and of its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(it.ru_utime + it.ru_stime for it in used)


def main() -> None:
    """Print a row for each argument."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", default=LAYERS, metavar="WIDTH,TOKENS,PAST,LAYERS")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the rows as JSON lines")
    given = parser.parse_args()
    print("| width | tokens | past | layers | kernels | ops in block graphs | predicted µs | CPU seconds | with files |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for text in given.layers:
        row = measured(*map(int, text.split(",")))
        cells = (row.width, row.tokens, row.past, row.layers, row.kernels, f"{row.in_blocks:,} of {row.ops:,}")
        times = (row.predicted_us, row.seconds, row.seconds_with_files)
        print(f"| {' | '.join([*map(str, cells), *(f'{time:.1f}' for time in times)])} |", flush=True)
        if given.json is not None:
            versions = {name: version(name) for name in ("egglog", "torch", "transformers", "triton")}
            with given.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row) | {"versions": versions}) + "\n")


if __name__ == "__main__":
    main()
