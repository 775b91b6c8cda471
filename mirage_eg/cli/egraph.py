"""`mirage-eg egraph`: the saturated e-graph of a program, as a table, a drawing, a page or JSON; terms asked and proved."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirage_eg.cli.arguments import ProgramArgument, load, with_options
from mirage_eg.cli.terminal import JsonOption, as_job, json_line, print_table, progress
from mirage_eg.ir.errors import OptionError
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.output_files import check_writable, write_atomically

if TYPE_CHECKING:
    from mirage_eg.egraph_api import EGraph

SUFFIXES = (".svg", ".html", ".json")


@with_options(Options, "batch", "domain", "rules")
@as_job
def egraph(
    program: ProgramArgument,
    options: Options,
    without: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Leave a theory or a law out.")] = None,
    loop: Annotated[str | None, typer.Option(metavar="AXIS", help="The reduced axis of the loop.")] = None,
    grid: Annotated[str | None, typer.Option(metavar="AXIS", help="The reduced axis that is divided over the grid.")] = None,
    ask: Annotated[list[str] | None, typer.Option(metavar="TERM", help="Print the class of a term; may be repeated.")] = None,
    prove: Annotated[tuple[str, str] | None, typer.Option(metavar="TERM TERM", help="Prove two terms equal, in steps.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.svg|.html|.json", help="Write the e-graph to this file.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Saturate PROGRAM's e-graph; print its growth by law, answer questions about terms, draw it.

    The exit code is 1 if a term is not in the e-graph or two terms are not shown equal.
    """

    if out is not None:
        if out.suffix not in SUFFIXES:
            raise OptionError(f"--out: got {str(out)!r}, wanted a file that ends in {', '.join(SUFFIXES)}")
        check_writable(out.parent)
    name, graph = load(program, options.batch)
    from mirage_eg.egraph_api import egraph

    with progress() as observe:
        observe("saturate", 0, None, name)
        found = egraph(
            graph, rules=options.rules, without=without or (), domain=options.domain, loop=loop, grid=grid, name=name
        )
        answers = [found.ask(term) for term in ask or ()]
        proof = None if prove is None else found.prove(*prove)
        observe("history", 0, None, name)
        text = None if out is None else _text(found, out.suffix)
        if not (as_json or answers or proof is not None or out is not None):
            _print_history(found)
    if out is not None and text is not None:
        write_atomically(out, text)
    record = {"egraph": repr(found), "saturation": found.saturation, "answers": answers, "proof": proof, "out": out}
    if as_json:
        print(json_line(record))
    else:
        print("\n".join(map(str, [found, *answers, *([] if proof is None else [proof]), *([] if out is None else [out])])))
    return int(not all([*answers, proof is None or bool(proof)]))


def _text(found: "EGraph", suffix: str) -> str:
    match suffix:
        case ".svg":
            return found.to_svg()
        case ".html":
            return found.to_html()
        case _:
            return found.to_json()


def _print_history(found: "EGraph") -> None:
    history: Any = found.history
    rows = ((law, f"{nodes:+}", str(unions)) for law, nodes, unions in history.by_law())
    print_table(("law", "e-nodes added", "classes merged"), rows)
    sizes = ", ".join(map(str, history.nodes))
    print(f"e-nodes at the start and after each iteration: {sizes}")
