"""A proof chain as HTML: a term a line, the rewritten subterms marked, and the law of each step between the lines."""

import re
from collections.abc import Collection, Sequence
from html import escape

from mirage_eg.egraph.proof_chain import Path, ProofChain, ProofStep
from mirage_eg.ir.plurals import counted

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[()]|[^\s()"]+')
_CELL = 'style="text-align: left; vertical-align: top"'
_TERM = 'style="overflow-wrap: anywhere; white-space: normal"'
_MARK = 'style="background: #8886; color: inherit; border-radius: 3px"'


def steps_of(chain: ProofChain) -> str:
    """The number of steps in words."""
    return counted(len(chain.steps), "step")


def chain_html(chain: ProofChain) -> str:
    """A table of the steps, each with its law, direction, substitution and term; the first row has claim and first term."""
    inputs = {name for name, _ in chain.free}
    claim = f"<small>{escape(chain.claim)}</small><br>" if chain.claim else ""
    cells = [f"{claim}<code {_TERM}>{escape(chain.start)}</code>", *(_step(step, inputs) for step in chain.steps)]
    rows = (f"<tr><td {_CELL}>{number or ''}</td><td {_CELL}>{cell}</td></tr>" for number, cell in enumerate(cells))
    return f"<table>{''.join(rows)}</table>\n"


def _step(step: ProofStep, inputs: Collection[str]) -> str:
    arrow = "→" if step.forward else "←"
    values = ", ".join(f"{name} = {value}" for name, value in step.substitution)
    law = f"<b>{escape(step.law)}</b> {arrow} <small {_TERM}>{escape(values)}</small>"
    return f"{law}<br><code {_TERM}>{_marked(step.term, step.positions, inputs)}</code>"


def _marked(term: str, positions: Sequence[Path], inputs: Collection[str]) -> str:
    """The text of a term with the subterms at `positions` marked."""
    spans = _spans(term, inputs)
    starts = {spans[path][0] for path in positions if path in spans}
    ends = {spans[path][1] for path in positions if path in spans}
    pieces, place = [], 0
    for cut in sorted(starts | ends):
        pieces += [escape(term[place:cut]), "</mark>" if cut in ends else f"<mark {_MARK}>"]
        place = cut
    return "".join([*pieces, escape(term[place:])])


def _spans(term: str, inputs: Collection[str]) -> dict[Path, tuple[int, int]]:
    """Where each subterm begins and ends in a text; an atom that is no input is a constant and no subterm."""
    spans: dict[Path, tuple[int, int]] = {}
    open_: list[tuple[Path, int]] = []  # of the parentheses around a token: path and start
    counts: list[int] = [0]  # of their subterms so far
    for token in _TOKEN.finditer(term):
        text = token[0]
        path = (*open_[-1][0], counts[-1]) if open_ else ()
        if text == "(":
            open_.append((path, token.start()))
            counts.append(0)
        elif text == ")":
            closed, start = open_.pop()
            spans[closed] = start, token.end()
            counts.pop()
            counts[-1] += 1
        elif text.strip('"') in inputs and not term[: token.start()].rstrip().endswith("("):
            spans[path] = token.span()
            counts[-1] += 1
    return spans
