"""`mirage-eg optimize` of a program with named dims: one search, and files for each bucket of sizes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_eg.cli.terminal import json_line, print_line, print_table, progress
from mirage_eg.ir import serialize
from mirage_eg.ir.at_sizes import at_sizes, dims_of
from mirage_eg.ir.errors import OptionError
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.graph_copy import with_attributes
from mirage_eg.ir.sizes import SizeRange, dims_text, read_dim, read_dims
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.output_files import write_atomically

if TYPE_CHECKING:
    from mirage_eg.pipeline.buckets import Bucket


def declared(program: Graph, declarations: Sequence[str]) -> Graph:
    """The program with other ranges of its named dims, as in n=2:8192.

    Raises:
        GraphError: no declaration.
        OptionError: a name that no dim of the program has.
    """
    wanted = {dim.name: dim for dim in map(read_dim, declarations)}
    dims = dims_of(program)
    if unknown := set(wanted) - set(dims):
        hint = f"one of {', '.join(dims)}" if dims else "a program with named dims: new_input((Dim('n', max=8192), 4096))"
        raise OptionError(f"--dim: got unknown name {min(unknown)!r}, wanted {hint}")
    declared_now = (read_dims(item.get("dims"), len(item["shape"])) for item in program.inputs)
    own = ([wanted.get(dim.name, dim) if dim else 0 for dim in dims] for dims in declared_now)
    again = with_attributes(program, ({"dims": dims_text(dims)} for dims in own))
    return at_sizes(again, {name: dim.hint for name, dim in dims_of(again).items()})


def ranges_of(program: Graph, given: Sequence[str]) -> dict[str, SizeRange]:
    """The sizes named on the command line, as in n=1:257; all sizes of dims that are not named.

    Raises:
        OptionError: an unknown name.
        GraphError: a size outside the range of its dim.
    """
    dims = dims_of(program)
    ranges = {name: SizeRange(dim.min, dim.max, dim.multiple_of) for name, dim in dims.items()}
    for text in given:
        wanted = read_dim(text)
        if wanted.name not in dims:
            raise OptionError(
                f"--sizes: got unknown name {wanted.name!r}, wanted {', '.join(dims) or 'a program with named dims'}"
            )
        dim = dims[wanted.name]
        least, most = (-(-wanted.min // dim.multiple_of) * dim.multiple_of, wanted.max // dim.multiple_of * dim.multiple_of)
        ranges[dim.name] = SizeRange(dim.check(least), dim.check(most), dim.multiple_of)
    return ranges


def run_optimize_sizes(name: str, program: Graph, options: Options, folder: Path, source: str, as_json: bool) -> int:
    """Search once, write the files of each bucket, print a table."""
    from mirage_eg.pipeline.buckets import optimize_sizes
    from mirage_eg.report.page import report_page

    with progress() as observer:
        result = optimize_sizes(name, program, options, (), observer)
    buckets = [_record(bucket) for bucket in result.buckets]
    for bucket, record in zip(result.buckets, buckets, strict=True):
        write_atomically(folder / record["graph"], serialize.to_json(bucket.candidate.graph))
        write_atomically(folder / record["source"], bucket.candidate.source)
    last = result.buckets[-1].candidate
    write_atomically(folder / "best.json", serialize.to_json(last.graph))
    write_atomically(folder / "best.py", last.source)
    report = result.report.written(source, str(folder / "best.py"))
    tuned = at_sizes(program, result.buckets[-1].tuned)
    write_atomically(folder / "report.html", report_page(report, tuned, last.graph, last.source))
    data = report.data() | {"buckets": buckets}
    write_atomically(folder / "report.json", json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    if as_json:
        print(json_line(data))
    else:
        _print(name, result.dims.values(), buckets, folder)
    return 0


def _record(bucket: "Bucket") -> dict[str, Any]:
    """A bucket in JSON's types."""
    verdict = bucket.verdict
    return {
        "sizes": {name: [values.least, values.largest] for name, values in bucket.ranges.items()},
        "graph": f"buckets/{bucket.name}.json",
        "source": f"buckets/{bucket.name}.py",
        "predicted_us": bucket.candidate.predicted_us,
        "seconds": bucket.seconds,
        "kernels": bucket.candidate.kernels,
        "vouches_for": verdict.text,
        "proved": verdict.proof.proved,
        "laws": list(verdict.proof.laws),
        "tested_at": [dict(sizes) for sizes in verdict.tested],
    }


def _cells(bucket: dict[str, Any]) -> tuple[str, ...]:
    sizes = ", ".join(f"{key} {least}–{largest}" for key, (least, largest) in bucket["sizes"].items())
    tested = "; ".join(" ".join(f"{key}={size}" for key, size in each.items()) for each in bucket["tested_at"])
    numbers = (str(bucket["kernels"]), f"{bucket['predicted_us']:.1f}", f"{1000 * bucket['seconds']:.0f}")
    return sizes, *numbers, "yes" if bucket["proved"] else "no", tested, bucket["source"]


def _print(name: str, dims: Any, buckets: Sequence[dict[str, Any]], folder: Path) -> None:
    listed = ", ".join(dim.declaration for dim in dims)
    head = ("sizes", "kernels", "predicted µs", "instantiated in ms", "proved", "tested at", "source")
    print_table(head, map(_cells, buckets), f"{name} for {listed}: {len(buckets)} buckets, 1 search")
    print_line(f"report: {folder / 'report.html'}")


def run_verify_sizes(
    program: Graph, path: Path, options: Options, as_json: bool, rules: Sequence[str], given: Sequence[str]
) -> int:
    """Print the range of sizes that a µGraph of a program with named dims is vouched for; exit code 0 if it is, else 1."""
    from mirage_eg.egraph.rulebook import load_rules
    from mirage_eg.verify.all_sizes import verify_sizes

    graph = serialize.load(path)
    ranges = ranges_of(program, given)
    with progress() as observe:
        verdict = verify_sizes(
            program,
            graph,
            ranges,
            trials=options.trials,
            seed=options.seed,
            rulebook=load_rules("indexed", rules),
            observe=observe,
        )
    if as_json:
        sizes = {name: [values.least, values.largest] for name, values in ranges.items()}
        tested = [dict(each) for each in verdict.tested]
        fields = {
            "verdict": verdict.verdict,
            "equal": verdict.equal,
            "sizes": sizes,
            "proved": verdict.proof.proved,
            "laws": list(verdict.proof.laws),
        }
        print(
            json_line(
                fields | {"tested_at": tested, "difference": verdict.difference, "unproved_because": verdict.proof.reason}
            )
        )
    else:
        print(f"{path}: {verdict.text}")
        if verdict.proof.laws:
            print(f"  proved with the laws {', '.join(verdict.proof.laws)}")
        if verdict.left_out:
            left = "; ".join(" ".join(f"{name}={size}" for name, size in sizes) for sizes in verdict.left_out)
            print(f"  not tested, for a test takes too long: {left}")
    return 0 if verdict.equal else 1
