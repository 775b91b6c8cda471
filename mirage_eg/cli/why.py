"""`mirage-eg why`: read a µGraph or a checkpoint of mirage-project/mirage, print why the search finds each, or does not."""

from dataclasses import replace
from pathlib import Path

from mirage_eg.cli.arguments import GraphArgument, ProgramArgument, load, with_options
from mirage_eg.cli.terminal import JsonOption, as_job, json_line, progress
from mirage_eg.ir import serialize
from mirage_eg.pipeline.run.options import Options


@with_options(
    Options,
    *("batch", "domain", "max_block_ops", "max_outputs", "max_kernels", "target", "gpu", "device", "jobs", "rules", "without"),
    *("undefined", "weights", "egraph_nodes", "egraph_iterations", "egraph_seconds", "allow_cut", "budget", "top", "seed"),
)
@as_job
def why(program: ProgramArgument, graph: GraphArgument, options: Options, as_json: JsonOption = False) -> int:
    """Print why the search finds GRAPH.json as a µGraph of PROGRAM, or at which op, by which rule or check it is lost.

    GRAPH.json is a graph as optimize writes it, or a checkpoint of mirage-project/mirage with many µGraphs. The exit code is 0
    if all are found, else 1. Without --budget the searches have 12 s.
    """
    from mirage_eg.pipeline.run.json_values import plain
    from mirage_eg.pipeline.why import SECONDS, explain_why, read_graphs
    from mirage_eg.pipeline.why_answers import AnswerKind

    name, wanted = load(program, options.batch)
    chosen = options if options.budget is not None else replace(options, budget=SECONDS)
    lost = 0
    for number, given in enumerate(serialize.read(Path(graph), read_graphs)):
        with progress() as observe:
            found = explain_why(name, wanted, given, chosen, observe)
        lost += found.answer is not AnswerKind.FOUND
        if as_json:
            first = {"index": number, "answer": found.answer, "stage": found.stage, "rank": found.rank}
            print(json_line(first | plain(found)))
        else:
            print(f"{f'µGraph {number}: ' if number else ''}{found}")
    return int(lost > 0)
