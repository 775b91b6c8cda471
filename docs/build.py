"""Write what the pages show of the code and of measurements: `python docs/build.py`; a test holds it to what is committed.

command_line.md comes from the command line itself, results.md, its plots and the tables of README and verification.md from
measurements/*.jsonl, the figures from the objects that they show. With --optimize, the graphs and the report in
figures/ are written first, as `mirage-eg optimize WORKLOAD --top 4` finds them; a test says when they are older than the code.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from mirage_eg.bench.gpu import Summary, geometric_mean, newest, summarize
from mirage_eg.cli.main import app
from mirage_eg.cli.terminal import plain
from mirage_eg.egraph.expression import express, splits
from mirage_eg.egraph.oracle import build_oracle
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.workloads import WORKLOADS
from mirage_eg.ir import serialize
from mirage_eg.ir.axes import infer_axes
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.expand import expand
from mirage_eg.pipeline.optimize import optimize
from mirage_eg.pipeline.run.options import Options
from mirage_eg.report import svg
from mirage_eg.report.bars import Bar, bars
from mirage_eg.report.box_layout import place
from mirage_eg.report.draw import to_svg
from mirage_eg.report.egraph import EGraphView
from mirage_eg.report.funnel import funnel
from mirage_eg.report.roofline import Point, roofline, whole

DOCS = Path(__file__).parent
ROWS = DOCS / "measurements" / "gpu_h100.jsonl"
VERIFIED = DOCS / "measurements" / "verify_h100.jsonl"
PAIRS = DOCS / "measurements" / "choice_pairs_h100.jsonl"
GENERATED = "<!-- Written by docs/build.py: change it there. -->\n"


def pages() -> dict[str, str]:
    """Every generated file with its text."""
    return {
        "command_line.md": command_line(),
        "results.md": results(),
        "verification.md": verification(),
        "../README.md": readme(),
        "figures/results_bars.svg": result_bars(),
        "figures/results_roofline.svg": result_roofline(),
        "figures/mugraph.svg": to_svg(serialize.load(DOCS / "figures" / "rmsnorm.json")),
        "figures/levels.svg": to_svg(serialize.load(DOCS / "figures" / "gated_mlp.json")),
        "figures/oracle.svg": funnel(json.loads((DOCS / "figures" / "rmsnorm_report.json").read_text(encoding="utf-8"))),
        "figures/expression.svg": expression_figure(),
        "figures/verification.svg": verification_figure(),
    }


def recorded() -> dict[str, str]:
    """What `optimize` finds today for the figures: the best µGraphs, and of the report what the funnel shows."""
    options = Options(top=4, jobs=1, device="cpu", cache=False)
    rmsnorm, gated_mlp = (optimize(name, WORKLOADS[name](1), options) for name in ("rmsnorm", "gated_mlp"))
    shown = {
        name: rmsnorm.report[name]
        for name in ("program", "search", "cuts", "verify", "versions", "device", "target", "mugraphs")
    }
    return {
        "rmsnorm.json": serialize.to_json(rmsnorm.candidates[0].graph),
        "rmsnorm_report.json": json.dumps(plain(shown), indent=2, ensure_ascii=False) + "\n",
        "gated_mlp.json": serialize.to_json(gated_mlp.candidates[0].graph),
    }


def command_line() -> str:
    """Every command with its arguments and options, as `--help` has them."""
    parts = [GENERATED, "# The command line\n", CODES]
    for path, command in commands(typer.main.get_command(app), ("mirage-eg",)):
        words = [" ".join(path), *(f"`{_metavar(it)}`" for it in command.params if it.param_type_name == "argument")]
        parts.append(f"## {words[0]}\n\n{_prose(command.help)}\n")
        arguments = [it for it in command.params if it.param_type_name == "argument"]
        rows = [f"| `{_metavar(it)}` | {_cell(it.help)} | |" for it in arguments]
        for it in command.params:
            if it.param_type_name == "option":
                shown = ", ".join(f"`{name}`" for name in it.opts)
                value = "" if it.is_flag else f" `{_metavar(it)}`"
                default = "" if it.default is None or it.is_flag else f"`{it.default}`"
                rows.append(f"| {shown}{value} | {_cell(it.help)} | {default} |")
        if rows:
            parts.append("| argument or option | what it is | default |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


CODES = """Results go to stdout, progress to stderr: bars on a terminal, else a plain line every five seconds
(`MIRAGE_EG_PROGRESS=off`: none). Bad input is one line on stderr.

| exit code | meaning |
| --- | --- |
| 0 | done; for `verify`: equal; for `rules check`: sound |
| 1 | `verify`: not equal or undecided; `rules check`: refuted, or a lint that is an error |
| 2 | bad input: what was got, what was wanted, where |
| 130, 143 | stopped by Ctrl-C or SIGTERM; `optimize --resume` goes on |
"""


def commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The commands of a group, groups within it included."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or ("N" if isinstance(parameter.default, int) else "VALUE"))


def _prose(text: str | None) -> str:
    return "\n\n".join(" ".join(piece.split()) for piece in (text or "").split("\n\n"))


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def results() -> str:
    """The page of results: every figure from the lines of measurements/."""
    rows = list(summarize(ROWS))
    line = next(iter(newest(ROWS).values()))
    versions = ", ".join(f"{name} {version}" for name, version in line["versions"].items())
    return f"""{GENERATED}
# Results

## Kernels

One {line["device"]} (driver {line["driver"][0]}; {versions}), float16.
Microseconds, the median of CUDA-graph replays (warm), and with the L2 cache flushed before each run (cold). The best peer
is the fastest of eager PyTorch, torch.compile (default, max-autotune where it was run) and the fused library calls.
Ratios above 1: ours is faster. The floor: each input read and output written once, or all products, at measured rates.
[Kernels](kernels.md) says how it is measured and where it falls short. `OUT=DIR python benchmarks/on_gpu.py` on a machine
with a GPU takes every figure of this page that needs one again, step by step (`--list`), and runs the tests that need it.

![ours and the best peer](figures/results_bars.svg)

| workload | batch | ours warm / cold | best peer warm / cold | which | ratio warm / cold | floor |
| --- | --- | --- | --- | --- | --- | --- |
{chr(10).join(map(_result, rows))}

Geometric mean of the ratios: {_mean(rows, "warm_ratio")} warm, {_mean(rows, "cold_ratio")} cold.

![roofline](figures/results_roofline.svg)

## What each choice of the tuner is worth

{_pairs()}

{_LEFT_OUT}

## Search

[The search](search.md#how-the-time-grows) has the table of its times, from `measurements/search.jsonl`.

## Verification

[How results are verified](verification.md#cost) has the table of its times, from `measurements/verify_h100.jsonl`.
"""


_FRAME = ("<!-- Written by docs/build.py from docs/measurements. -->\n", "<!-- Here ends what is written. -->\n")


def readme() -> str:
    """README with its table of results as measured."""
    rows = list(summarize(ROWS))
    batches = sorted({row.batch for row in rows})
    cells: dict[str, list[str]] = {}
    for row in rows:
        cells.setdefault(row.workload, []).append(f"{row.warm_us:.1f} / {row.peer_warm_us:.1f} ({row.warm_ratio:.2f})")
    head = f"| workload | {' | '.join(f'batch {batch}' for batch in batches)} |\n|{' --- |' * (1 + len(batches))}\n"
    table = head + "".join(f"| {name} | {' | '.join(entries)} |\n" for name, entries in cells.items())
    ahead = sum(row.warm_ratio is not None and row.warm_ratio > 1 for row in rows)
    said = (
        f"{ahead} of {len(rows)} rows are ahead; geometric mean of the ratios {_mean(rows, 'warm_ratio')} warm and "
        f"{_mean(rows, 'cold_ratio')} with the L2 cache flushed before each run.\n"
    )
    return _framed(DOCS.parent / "README.md", f"{table}\n{said}")


def _result(row: Summary) -> str:
    peer = "–" if row.peer is None else f"{row.peer_warm_us:.1f} / {row.peer_cold_us:.1f}"
    ratio = "–" if row.warm_ratio is None else f"{row.warm_ratio:.2f} / {row.cold_ratio:.2f}"
    ours = f"{row.warm_us:.1f} / {row.cold_us:.1f}"
    return f"| {row.workload} | {row.batch} | {ours} | {peer} | {row.peer or '–'} | {ratio} | {row.floor_us:.1f} |"


def _mean(rows: list[Summary], key: str) -> str:
    known = [getattr(row, key) for row in rows if getattr(row, key) is not None]
    return f"{geometric_mean(known):.2f}"


_LEFT_OUT = """Choices between µGraphs have no such pairs. They were measured by tuning without each of them: on the same
H100, 30 to 44 s of tuning a program, seven rows, warm time without the choice over time with all choices. Without split-K:
3.12 (gqa, b = 1) and 2.52 (qknorm, b = 1); with the cost model's first structure only, up to 1.21 (qknorm, b = 1); with
its first extents of each structure only, up to 1.08 (gated_mlp, b = 1). Of the 88 cells of that table 70 were
1.00 ± 0.02. Commit 3f1841d has the table and its script."""


_DELETED = """Choices that lose are deleted. Off over on, measured once more on an H200 (torch 2.11, Triton 3.6, 30 s of
tuning a row): `descriptors`, loads through tensor descriptors (TMA), 0.90 (gated_mlp, b = 1, the only pair); `programs`,
persistent programs that take the blocks in turn, 0.96 (rmsnorm, b = 128) and 0.98 (b = 512);
16 or 32 warps 0.75 (lora, b = 1), 0.82 (lora, b = 512), 0.98 (mlp_block, b = 1), 0.97 and 1.01 (rmsnorm, b = 128 and 512).
`half_partials` and `last_first` were not tried in these rows."""


def _pairs() -> str:
    """The table of `benchmarks/choices.py`, from its lines."""
    lines = [json.loads(it) for it in PAIRS.read_text(encoding="utf-8").splitlines()]
    cells = {(it["choice"], it["workload"], it["batch"]): it for it in lines}
    columns = sorted({key[1:] for key in cells}, key=lambda column: (list(WORKLOADS).index(column[0]), column[1]))
    head = ["choice", *(f"{name}, b = {batch}" for name, batch in columns)]
    rows = [head, ["---"] * len(head)]
    for choice in sorted({it["choice"] for it in lines}):
        found = [cells.get((choice, *column)) for column in columns]
        rows.append([choice, *("" if it is None else f"{it['ratio']:.2f} ({it['on_us']:.1f})" for it in found)])
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return f"""Each choice by itself (`python benchmarks/choices.py MEASUREMENTS`): of what the tuner measured on an H100 for
the rows above, two schedules of one µGraph that differ in this choice of one kernel alone, the pair with the fastest member:
warm time with the choice off over time with it on, and (µs with it on). Above 1 the choice gains. Empty: not tried there.

{table}

{_DELETED}"""


def verification() -> str:
    """The page on verification with its table as measured, the newest line of each workload and batch."""
    lines = [json.loads(it) for it in VERIFIED.read_text(encoding="utf-8").splitlines()]
    rows = list({(it["workload"], it["batch"]): it for it in lines}.values())
    head = ("workload", "batch", "small/s", "real/s", "draws ms", "field ms", "float ms", "proof ms", "proved")
    cells = [
        (
            it["workload"],
            it["batch"],
            *(f"{it[rate + '_per_second']:.0f}" for rate in ("small", "real")),
            *(f"{1e3 * it[stage + '_seconds']:.1f}" for stage in ("draw", "field", "float", "prove")),
            "yes" if it["proved"] else "no",
        )
        for it in rows
    ]
    table = "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (head, ["---"] * len(head), *cells))
    kinds = sorted({f"one {it['device']} with {it['versions']}" for it in rows})
    said = f"Measured on {'; '.join(kinds)}:"
    slowest = max(1e3 * it["field_seconds"] for it in rows)
    short = [
        f"{it['workload']} ({it['real_per_second']:.0f})" for it in rows if it["batch"] == 1 and it["real_per_second"] < 300
    ]
    wanted = (
        f"A field check at real size, wanted under 50 ms, takes {slowest:.1f} ms at most. Of 300 verdicts a second at b = 1 "
        f"{'fall short: ' + ', '.join(short) if short else 'no workload falls short'}."
    )
    return _framed(DOCS / "verification.md", f"{said}\n\n{table}\n\n{wanted}\n")


def _framed(path: Path, written: str) -> str:
    """The file with what stands between its two comments written anew."""
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(_FRAME[0])
    _, found, after = rest.partition(_FRAME[1])
    assert found, f"{path.name} has lost the comments between which the results stand"
    return f"{before}{_FRAME[0]}\n{written}\n{_FRAME[1]}{after}"


def result_bars() -> str:
    """Ours and the best peer, warm, one under the other."""
    shown: list[Bar] = []
    for row in summarize(ROWS):
        shown.append(Bar(f"{row.workload} b{row.batch}", row.warm_us))
        if row.peer_warm_us is not None:
            shown.append(Bar("best peer", row.peer_warm_us, other=True))
    return bars(shown, [], "µs, warm: ours and the best peer")


def result_roofline() -> str:
    """Every row that has products, as one point by its measured time."""
    lines = newest(ROWS)
    points: list[Point] = [
        whole(WORKLOADS[name](batch), f"{name} b{batch}", lines[name, batch]["ours"]["warm_us"])
        for name, batch in sorted(lines)
        if batch in (1, 16) and name != "ntrans"
    ]
    rates = newest(ROWS)["gqa", 16]["ceilings"]  # measured beside that row
    title = "whole programs as measured, under the measured roof"
    return roofline(points, rates["bytes_per_second"], rates["flops_per_second"], title)


def expression_figure() -> str:
    """The saturated e-graph of a product that is divided by a column."""
    program = new_kernel_graph()
    x, w, n = (program.new_input(shape, name=name) for name, shape in (("X", (16, 64)), ("W", (64, 32)), ("n", (16, 1))))
    program.mark_output(program.div(program.matmul(x, w), n), "O")
    primitive = expand(program.graph())
    axes = infer_axes(primitive)
    oracle = build_oracle(load_rules("indexed"), express(primitive, axes, splits(axes)[0], "indexed"))
    return EGraphView(oracle).named(primitive.input_names)._repr_svg_()


_CHECKS = (  # boxes from top to bottom: lines of text, colour, layer, and which boxes they come from
    (["program"], "boundary", 0, ()),
    (["µGraph"], "boundary", 0, ()),
    (["random residues", "a triple modulo p, q, r", "for every input element"], "loop", 1, (0, 1)),
    (["float64 and the", "roundings of kernels,", "random numbers"], "epilogue", 1, (0, 1)),
    (["both as terms of", "one e-graph,", "saturated with the laws"], "prologue", 1, (0, 1)),
    (["equal, not equal or undecided", "with draws and bound"], "frame", 2, (2, 3)),
    (["proved", "with the laws that suffice"], "frame", 2, (4,)),
)


def verification_figure() -> str:
    """The two kinds of evidence."""
    sizes = [svg.text_size(words) for words, _, _, _ in _CHECKS]
    lines = [(source, target) for target, (_, _, _, sources) in enumerate(_CHECKS) for source in sources]
    placed = place(sizes, lines, [layer for _, _, layer, _ in _CHECKS])
    parts = []
    for source, target in lines:
        (x, y), (to_x, to_y) = placed.corners[source], placed.corners[target]
        ends = [(x + sizes[source][0] / 2, y + sizes[source][1]), (to_x + sizes[target][0] / 2, to_y)]
        parts.append(svg.line([(at + 16, down + 16) for at, down in ends], width=1.5))
    for (words, colour, _, _), (x, y), (width, height) in zip(_CHECKS, placed.corners, sizes, strict=True):
        parts.append(svg.rectangle(x + 16, y + 16, width, height, colour) + svg.lines_of(x + 16 + svg.PAD, y + 16, words))
    return svg.picture(placed.size[0] + 32, placed.size[1] + 32, "".join(parts), "how results are verified", card=True)


def main() -> None:
    """Write all generated files."""
    for name, text in recorded().items() if "--optimize" in sys.argv else ():
        (DOCS / "figures" / name).write_text(text, encoding="utf-8")
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
        print(name, len(text), file=sys.stderr)


if __name__ == "__main__":
    main()
