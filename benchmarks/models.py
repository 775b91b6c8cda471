"""What the importer covers of 47 models of transformers: `python benchmarks/models.py` writes docs/measurements/models.jsonl.

Arguments are names of models; without any, all. A line has the ops of each segment (ATen ops that are no views), the ops
outside with count and reason, and the relative error of the imported model in float32 against the model in float64.
docs/build.py makes the table of docs/measurements/models.md from it. Needs torch and transformers (group test), no GPU.
"""

import json
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from time import process_time

sys.path.insert(0, str(Path(__file__).parents[1]))  # property_tests is in no package
from property_tests.support.model_zoo import DESIGNED, MODELS, covered

OUT = Path(__file__).parents[1] / "docs" / "measurements" / "models.jsonl"


def row(name: str) -> dict[str, object]:
    """The line of one model."""
    start = process_time()
    found, error = covered(MODELS[name])
    print(f"{name}: {process_time() - start:.1f} s, error {error:.1e}\n{found}\n")
    return {
        "model": name,
        "designed": name in DESIGNED,
        "segments": [it.ops for it in found.segments],
        "outside": [{"op": it.name, "ops": it.ops, "reason": it.note} for it in found.outside if it.ops],
        "flops": round(found.share("flops"), 4),
        "flops_counted": all(it.flops is not None for it in found.outside),
        "error": float(f"{error:.1e}"),
        "versions": {package: version(package) for package in ("torch", "transformers")},
    }


def main() -> None:
    """Write the lines of the models that are named, of all without a name; other lines stay."""
    warnings.simplefilter("ignore")
    old = (
        {line["model"]: line for line in map(json.loads, OUT.read_text(encoding="utf-8").splitlines())} if OUT.exists() else {}
    )
    lines = old | {name: row(name) for name in sys.argv[1:] or MODELS}
    OUT.write_text("".join(f"{json.dumps(lines[name])}\n" for name in MODELS if name in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
