"""Why a given µGraph is found or not: its kernels are followed through the search of the parts of the program they compute.

Only these parts are searched, each in the split of its kernel. A µGraph with a kernel that computes no part of the program as
written may be a plan of a rewritten program: of the one that has its values (`given_rewriting`). If all kernels are found, the
plans of both are searched, and the µGraph is ranked among them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mirage_eg.backends.cost.lower_bound import product_flops
from mirage_eg.backends.cost.roofline_model import predict_us
from mirage_eg.backends.triton.tiles import flatten
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.load import load_program
from mirage_eg.frontend.mirage_json import Unsupported, read_published
from mirage_eg.ir.builder import KernelGraph, graph_of
from mirage_eg.ir.deadline import after
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.plurals import counted
from mirage_eg.ir.serialize import from_data, read
from mirage_eg.optimizer.passes import optimize_mugraph
from mirage_eg.pipeline.found import Found, lower
from mirage_eg.pipeline.given_kernel import SAME, GivenKernel
from mirage_eg.pipeline.given_rewriting import given_rewriting
from mirage_eg.pipeline.kernel_origins import Values, origins
from mirage_eg.pipeline.optimize import request_of
from mirage_eg.pipeline.partition_stage import NOTHING
from mirage_eg.pipeline.program_search import search_program
from mirage_eg.pipeline.run.executors import Workers
from mirage_eg.pipeline.run.heuristics import HEURISTICS
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.work_items import Work
from mirage_eg.pipeline.stage_records import Run, Watch
from mirage_eg.pipeline.why_answers import AnswerKind, KernelAnswer, Ranked, Why
from mirage_eg.search.partition.segment_search import SegmentSearch
from mirage_eg.transforms.simplify import primitive_form
from mirage_eg.transforms.split_statistics import with_split_statistics
from mirage_eg.verify.reference import check_types
from mirage_eg.verify.verdict import Observer

SECONDS = 12.0
"""The budget of the searches where none is given."""


def why(program: KernelGraph | Graph | str | Path, graph: KernelGraph | Graph | str | Path, **options: Any) -> Why:
    """Why the search finds a µGraph of a program, or at which op, by which rule or check it is lost.

    `program`: a graph, or a workload or file as `mirage-eg optimize` takes it. `graph`: a µGraph from anywhere, or the file of
    one. Options are those of `superoptimize`; without a `budget` the searches have 12 s.

    Raises:
        GraphError: the µGraph has other inputs or outputs than the program, or no kernel; a file that holds no single µGraph.
        ProgramError: no such program.
        OptionError: an option that is not allowed.
    """
    found, wanted = load_program(str(program)) if isinstance(program, str | Path) else ("program", graph_of(program, "why"))
    if isinstance(graph, str | Path):
        graphs = read(graph, read_graphs)
        if len(graphs) != 1 or isinstance(graphs[0], Unsupported):
            raise GraphError(f"{graph}: got {counted(len(graphs), 'µGraph')}, wanted one that can be read; see mirage-eg why")
        graph = graphs[0]
    return explain_why(found, wanted, graph_of(graph, "why"), Options(**{"budget": SECONDS} | options))


def read_graphs(data: Any) -> Sequence[Graph | Unsupported]:
    """The µGraphs of a parsed file: one of ours, or a checkpoint of Mirage's."""
    return read_published(data) if isinstance(data, list) else [from_data(data)]


def explain_why(
    name: str, program: Graph, graph: Graph | Unsupported, options: Options, observer: Observer | None = None
) -> Why:
    """`why` of graphs; of a µGraph of Mirage's with an operator that has no meaning here, that operator.

    Raises GraphError: as `why`.
    """
    if isinstance(graph, Unsupported):
        text = f"{graph.op} has no meaning here"
        return Why(name, (KernelAnswer("the µGraph", AnswerKind.NOT_ENUMERATED, "op", text, graph.op),), None)
    check_types(program, graph)
    request = request_of(name, program, replace(options, cache=False))
    options = request.options
    rulebook = load_rules(options.domain, options.rules, options.without, options.undefined_in(program))
    with Workers(options.executor, options.jobs) as workers:
        run = Run(name, request.program, options, rulebook, options.device_record, Work(workers), watch=Watch(observer))
        run = replace(run, until=request.until)
        primitive, written = primitive_form(expand(run.program)), _written(graph)
        kernels, others = _kernels(run, primitive, written), _other_forms(run, primitive, written)
        while not all(it.origin.segment is not None for it in kernels) and (other := next(others, None)) is not None:
            kernels = _kernels(run, other[0], written, tiny=other[1])
        left, answers = [kernel.left() for kernel in kernels], list[KernelAnswer]()
        searched = sum(kernel.raised is not None for kernel in kernels)
        for number, (kernel, ended) in enumerate(zip(kernels, left, strict=True), 1):
            seconds = run.until.left() / (searched + 1) / HEURISTICS.until_tiles  # the last share is of the plans
            searched -= kernel.raised is not None
            inner = replace(run, until=after(seconds), work=replace(run.work, part=f"kernel {number} "))
            answers.append(ended or kernel.followed(inner))
        us, ranked = predict_us(graph, run.device), None
        if not kernels[0].is_all and all(it.answer is AnswerKind.FOUND for it in answers):
            ranked = _ranked(run, [*dict.fromkeys((kernels[0].primitive, primitive))], graph, us)
    return Why(name, tuple(answers), us, ranked)


def _other_forms(run: Run, primitive: Graph, written: Graph) -> Iterator[tuple[Graph, bool]]:
    """The programs besides that as written of which the µGraph may be a plan, and whether at tiny sizes."""
    keeps = run.options.undefined_in(run.program) == "keep"
    if (rewritten := given_rewriting(primitive, written, run.options.seed, keeps=keeps)) is not None:
        yield rewritten, True
    if (split := with_split_statistics(primitive, HEURISTICS.search.longest_row)) is not None:
        yield split, True
    yield primitive, product_flops(primitive) > HEURISTICS.whole_check_flops  # values at full sizes take seconds


def _kernels(run: Run, program: Graph, graph: Graph, *, tiny: bool = True) -> list[GivenKernel]:
    """The kernels with the parts of a program that they compute. Raises GraphError: it has none."""
    values = Values(program, graph, run.options.seed, tiny=tiny)
    found = origins(program, graph, values)
    if not found:
        raise GraphError("got a µGraph without a kernel, wanted one with an op or a block graph")
    return [GivenKernel(run, program, graph, values, it, number) for number, it in enumerate(found, 1)]


def _ranked(run: Run, forms: Sequence[Graph], graph: Graph, us: float) -> Ranked:
    """The rank of a µGraph of several kernels, which are found, among the plans that the search keeps of some forms of the
    program."""
    found, notes, cut = [Found(run.program, predict_us(run.program, run.device), fused=False)], dict[str, None](), False
    segments: Mapping[Graph, SegmentSearch] = NOTHING
    for number, form in enumerate(forms):
        until = after(run.until.left() / (len(forms) - number) / HEURISTICS.until_plans)
        inner = replace(run, until=until, work=replace(run.work, part=f"form {number} "))
        search, partitioner = search_program(inner, form, segments)
        found += [entry for entries in search.candidates for entry in entries]
        segments, notes, cut = partitioner.found, notes | dict.fromkeys(search.notes), cut or search.cut
    found.sort(key=lambda entry: entry.predicted_us)
    wanted = graph if graph == run.program else optimize_mugraph(graph, run.device).graph
    rank = next((i for i, entry in enumerate(found, 1) if wanted in (lower(entry, run.device).graph, entry.graph)), None)
    if rank is None and us <= found[0].predicted_us * SAME:
        rank = 1
    return Ranked(rank, len(found), found[0].predicted_us, (*notes,), cut)


def _written(graph: Graph) -> Graph:
    """The µGraph in primitive ops, without thread graphs."""
    graph = expand(graph)
    nodes = (
        replace(item, attributes=tuple((key, flatten(it) if key == "graph" else it) for key, it in item.attributes))
        if item.op == "block"
        else item
        for item in graph.nodes
    )
    return Graph(tuple(nodes))
