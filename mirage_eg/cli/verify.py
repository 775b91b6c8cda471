"""`mirage-eg verify`: read a µGraph or a checkpoint of mirage-project/mirage, print a verdict for each µGraph."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

from mirage_eg.cli.terminal import json_line, progress
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.frontend.custom_op_check import check_custom_ops
from mirage_eg.frontend.mirage_json import Unsupported, read_published
from mirage_eg.ir import serialize
from mirage_eg.ir.expand import expand
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.plurals import counted
from mirage_eg.pipeline.run.json_values import plain
from mirage_eg.pipeline.run.options import Options
from mirage_eg.pipeline.run.peak_memory import peak_mib
from mirage_eg.transforms.constants import unread_inputs, with_constants
from mirage_eg.verify.evidence import check_floats, verify_candidates
from mirage_eg.verify.undefined import given_values
from mirage_eg.verify.verdict import Equality, FloatCheck, Verdict

UNSUPPORTED = "unsupported"


def run_verify(
    program: Graph,
    path: Path,
    options: Options,
    as_json: bool,
    rules: Sequence[str] = (),
    floats: bool = False,
    proof: bool = False,
) -> int:
    """Print a verdict for each µGraph of the file; the exit code is 0 if all are equal, 1 if not, 2 if one is unsupported.

    With `floats` each µGraph is also computed with the roundings of its kernels; an error beyond the tolerance counts as not
    equal in the exit code. The steps of a proof are printed for a file with one µGraph, or with `proof`.
    """
    entries, is_list = serialize.read(path, _parse)
    rulebook = load_rules("indexed", rules)
    for note in check_custom_ops(program):
        print(note, file=sys.stderr)
    labels = [f"{path}: µGraph {index}" for index in range(len(entries))] if is_list else [str(path)]
    graphs = {label: entry for label, entry in zip(labels, entries, strict=True) if isinstance(entry, Graph)}
    with progress() as observe:
        verdicts = iter(
            verify_candidates(
                program,
                graphs,
                trials=options.trials,
                seed=options.seed,
                rulebook=rulebook,
                observe=observe,
                steps=proof or not is_list,
            )
        )
        checks = iter(check_floats(program, graphs, seed=options.seed, observe=observe) if floats else ())
    imprecise = False
    counts: Counter[str] = Counter()
    for index, (label, entry) in enumerate(zip(labels, entries, strict=True)):
        if isinstance(entry, Unsupported):
            counts[UNSUPPORTED] += 1
            _print_unsupported(index, label, entry, as_json)
        else:
            verdict, seconds = next(verdicts)
            if verdict.verdict is Equality.UNDECIDED and (plain_program := with_constants(expand(program))) != program:
                [(verdict, more)] = verify_candidates(
                    plain_program, {label: entry}, trials=options.trials, seed=options.seed, rulebook=rulebook
                )
                seconds += more
            counts[str(verdict.verdict)] += 1
            check = next(checks) if floats else None
            imprecise |= check is not None and not check.ok
            given = given_values(program, entry, options.seed) if verdict.equal else None
            _print_verdict(index, label, verdict, seconds, check, given, as_json)
            if not as_json:
                if verdict.equal and (lost := unread_inputs(program, entry)):
                    print(f"  for finite inputs: NaN and infinity of {', '.join(lost)} do not reach the result")
                _print_proof(verdict)
    if is_list and not as_json:
        kinds = ("equal", "not equal", "undecided", UNSUPPORTED)
        print(f"{path}: {counted(len(entries), 'µGraph')}: {', '.join(f'{counts[kind]} {kind}' for kind in kinds)}")
    return 2 if counts[UNSUPPORTED] else int(counts["equal"] < len(entries) or imprecise)


def _print_proof(verdict: Verdict) -> None:
    if verdict.no_chains_because is not None:
        print(f"  the proof in steps: {verdict.no_chains_because}")
    for chain in verdict.chains:
        of = f" of {chain.claim}" if chain.claim else ""
        count = counted(len(chain.steps), "step")
        print(f"  proof{of}: {count}, replayed without the e-graph and tested in the model")
        print(indent(str(chain), "    "))


def _parse(data: Any) -> tuple[Sequence[Graph | Unsupported], bool]:
    """The µGraphs of a parsed file, and whether it is a list of them."""
    return (read_published(data), True) if isinstance(data, list) else ([serialize.from_data(data)], False)


def _print_unsupported(index: int, label: str, entry: Unsupported, as_json: bool) -> None:
    if as_json:
        first = {"index": index, "verdict": UNSUPPORTED, "evidence": [], "bound": None}
        print(json_line(first | {"seconds": 0.0, "peak_mib": peak_mib(), "op": entry.op}))
    else:
        print(f"{label}: {UNSUPPORTED}: {entry.op}")


def _print_verdict(
    index: int,
    label: str,
    verdict: Verdict,
    seconds: float,
    check: FloatCheck | None,
    given: str | None,  # to an undefined value
    as_json: bool,
) -> None:
    if as_json:
        fields = plain(verdict) | ({} if check is None else {"float_check": plain(check)})
        fields["undefined"] = {"kept": given is None, "difference": given} if verdict.equal else None
        first = {"index": index, "verdict": fields.pop("verdict"), "evidence": fields.pop("evidence")}
        print(json_line(first | {"bound": fields.pop("error_bound"), "seconds": seconds, "peak_mib": peak_mib()} | fields))
        return
    bound = "" if verdict.error_bound is None else f"error bound {verdict.error_bound:.3g}, "
    bound = f"{bound}{verdict.bound_reason}; " if verdict.equal and verdict.undecided_because is None else ""
    trials = counted(verdict.trials, "trial")
    evidence = " and ".join(verdict.evidence)
    print(f"{label}: {verdict.verdict} ({evidence}; {trials}, seed {verdict.seed}; {bound}{seconds:.2f} s)")
    if verdict.laws:
        where = f" where both are defined (partial laws: {', '.join(verdict.partial)})" if verdict.partial else ""
        print(f"  proved{where} with the laws {', '.join(verdict.laws)}")
    if verdict.boxes:
        count = counted(verdict.boxes, "box", "boxes")
        print(f"  proved without laws: the same sums of products at all positions ({count})")
    if verdict.equal:
        print(f"  undefined values: {'kept' if given is None else f'given one; {given}'}")
    if verdict.undecided_because is not None:
        print(f"  the tests alone are undecided: {verdict.undecided_because}")
    elif verdict.difference is not None:
        print(f"  first difference at {verdict.difference}")
    if verdict.unproved_because is not None:
        print(f"  not proved: {verdict.unproved_because}")
    if check is not None:
        at = f" at {check.difference}" if check.difference else ""
        print(
            f"  as kernels compute: {check.problem or 'right'}{at} (error {check.error:.2g}, tolerance {check.tolerance:.2g})"
        )
