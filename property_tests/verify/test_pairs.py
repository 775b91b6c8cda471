"""Laws as pairs of programs: what is proved for all sizes holds at each, and no broken twin is equal."""

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mirage_eg as mi
from mirage_eg.frontend.load import load_pairs
from mirage_eg.ir.errors import GraphError, ProgramError
from mirage_eg.ir.graph import Graph
from mirage_eg.partial_equivalence.symbolic_extent import LARGE
from mirage_eg.verify.box_proof import holds_from
from mirage_eg.verify.pairs import PairOutcome, decide_pair
from mirage_eg.verify.rank_bound import rank_bound
from mirage_eg.verify.reference import verify
from mirage_eg.verify.verdict import Equality
from property_tests.support.command import run_command
from property_tests.support.pages import blocks, read

FOLDER = Path(__file__).parents[2] / "benchmarks" / "rewrites"
PAIRS = {f"{file.stem}: {pair.name}": pair for file in sorted(FOLDER.glob("*.py")) for pair in load_pairs(file)}
Write = Callable[..., Any]


def proved(pair: mi.LawPair, write: Write, rank: int) -> bool:
    """Whether boxes prove the program equal to what a function writes, for all sizes, where both are defined."""

    def pair_at(sizes: Mapping[str, int]) -> tuple[Graph, Graph] | None:
        try:
            return pair.graph(pair.program, rank, sizes), pair.graph(write, rank, sizes)
        except GraphError:
            return None

    return holds_from(pair_at, pair.at_rank(rank), partial=True)


@pytest.mark.parametrize("name", PAIRS)
def test_no_broken_twin_is_proved(name: str) -> None:
    pair = PAIRS[name]
    assert pair.twin is not None
    assert not proved(pair, pair.twin, pair.ranks[0])


@pytest.mark.parametrize("name", [*PAIRS][::9])
def test_a_rewrite_of_the_corpus_is_proved_and_its_twin_refuted(name: str) -> None:
    verdict = decide_pair(PAIRS[name])
    assert verdict.outcome is PairOutcome.ALL_SIZES and not verdict.wrong
    assert all(it.outcome is PairOutcome.NOT_EQUAL for it in verdict.twins)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_every_rewrite_of_the_corpus_is_decided(name: str) -> None:
    test_a_rewrite_of_the_corpus_is_proved_and_its_twin_refuted(name)


@pytest.mark.parametrize("name", [*PAIRS][::5])
def test_what_is_proved_for_all_sizes_holds_at_random_sizes(name: str) -> None:
    pair, draw = PAIRS[name], random.Random(name)
    for rank in pair.ranks[:2]:
        sizes = {number: least + draw.choice((0, 0, 1, 2, 3)) for number, least in pair.at_rank(rank).items()}
        one, other = (pair.graph(write, rank, sizes) for write in (pair.program, pair.candidate))
        found = verify(one, other)  # of clamps the fields say nothing
        assert found.verdict is not Equality.NOT_EQUAL and (found.float_error or 0) < 1e-9, sizes


def moves(draw: random.Random) -> Callable[[Any, Any, Any, list[tuple[str, str, int]]], Any]:
    """A random chain of moves along one axis, with widths that are numbers of a pair or small ones."""

    def write(g: Any, s: Any, x: Any, steps: list[tuple[str, str, int]]) -> Any:
        for op, name, number in steps:
            width = getattr(s, name) + number
            match op:
                case "pad":
                    x = g.pad(x, [(width, number)], 5)
                case "cut":
                    x = g.slice(x, 0, width, x.shape[0])
                case "flip":
                    x = g.flip(x, 0)
                case "join":
                    x = g.concat([x, g.full((width + 1,), 5, "float32")], 0)
                case _:
                    x = g.add(x, g.fill(x, number))
        return x

    return write


def test_no_random_pair_is_proved_for_all_sizes_and_differs_at_one() -> None:
    draw, shown = random.Random(3), 0
    write = moves(draw)
    for _ in range(40):
        chains = [
            [(draw.choice(("pad", "cut", "flip", "join", "add")), draw.choice("pq"), draw.randint(0, 1)) for _ in range(3)]
            for _ in range(2)
        ]
        chains[1] = sorted(chains[0], key=lambda it: draw.random()) if draw.random() < 0.7 else chains[1]
        pair = mi.LawPair(
            "random",
            sizes="n>=2 p>=0 q>=0",
            inputs=lambda s: {"x": (s.n + s.p + s.q,)},
            program=lambda g, s, x, own=chains[0]: write(g, s, x, own),
            candidate=lambda g, s, x, own=chains[1]: write(g, s, x, own),
        )
        if chains[0] == chains[1] or not proved(pair, pair.candidate, 1):
            continue
        shown += 1
        for sizes in ({"n": n, "p": p, "q": q} for n in (2, 3) for p in (0, 2) for q in (0, 1)):
            try:
                one, other = (pair.graph(it, 1, sizes) for it in (pair.program, pair.candidate))
            except GraphError:
                continue
            assert verify(one, other).verdict is Equality.EQUAL, (chains, sizes)
    assert shown > 2


def bound_of(pair: mi.LawPair, rank: int = 2) -> int | None:
    generic = {name: 1 + LARGE**number for number, name in enumerate(pair.at_rank(rank), 1)}
    return rank_bound(pair.graph(pair.program, rank, generic), pair.graph(pair.candidate, rank, generic))


def test_a_law_that_fails_at_rank_2_alone_is_not_proved_for_all_ranks() -> None:
    """1 − [inside] of a pad along each axis: a product over axes at rank 1, and none at rank 2."""

    def around(g: Any, s: Any, x: Any, rank: int) -> Any:
        return g.sub(g.full(s.P + s.N + s.P, 1, "float32"), g.pad(g.fill(x, 1), [(it, it) for it in s.P]))

    def by_axes(g: Any, s: Any, x: Any) -> Any:
        wide = g.full(s.P + s.N + s.P, 1, "float32")
        for axis in s.axes:
            widths = [(it, it) if own == axis else (0, 0) for own, it in enumerate(s.P)]
            own = [s.N[it] if it == axis else (s.P + s.N + s.P)[it] for it in s.axes]
            wide = g.mul(wide, g.sub(g.fill(wide, 1), g.pad(g.full(own, 1, "float32"), widths)))
        return wide

    pair = mi.LawPair(
        "outside", sizes="N P", inputs=lambda s: {"x": s.N}, program=lambda g, s, x: around(g, s, x, 1), candidate=by_axes
    )
    verdict = decide_pair(pair)
    assert [it.outcome for it in verdict.ranks] == [PairOutcome.ALL_SIZES, *[PairOutcome.NOT_EQUAL] * 3]
    assert verdict.wrong and verdict.all_ranks is None
    assert decide_pair(replace(pair, ranks=(1,))).all_ranks is None, "its ops are others at other ranks"


def test_a_law_about_one_of_the_axes_is_not_proved_for_all_ranks() -> None:
    first_and_last = mi.LawPair(
        "first and last axis",
        sizes="N",
        inputs=lambda s: {"x": s.N},
        program=lambda g, s, x: g.flip(x, 0),
        candidate=lambda g, s, x: g.flip(x, s.rank - 1),
        ranks=(1,),
    )
    verdict = decide_pair(first_and_last)
    assert verdict.outcome is PairOutcome.ALL_SIZES and verdict.all_ranks is None


def test_bounds_count_guards_and_reads() -> None:
    def pair(program: Write, candidate: Write, sizes: str = "N P>=0") -> mi.LawPair:
        return mi.LawPair("law", sizes=sizes, inputs=lambda s: {"x": s.N}, program=program, candidate=candidate)

    flipped = pair(lambda g, s, x: g.flip(g.exp(x), s.axes), lambda g, s, x: g.exp(g.flip(x, s.axes)))
    assert bound_of(flipped) == 1
    twice = pair(lambda g, s, x: g.add(x, g.flip(x, s.axes)), lambda g, s, x: g.add(g.flip(x, s.axes), x))
    assert bound_of(twice) == 1, "two reads of x, one axis tells them apart"
    padded = pair(lambda g, s, x: g.exp(g.pad(x, [(it, 0) for it in s.P])), lambda g, s, x: g.pad(x, [(it, 0) for it in s.P]))
    assert bound_of(padded) == 1, "both sides have one guard, and read x where it holds"
    product = pair(lambda g, s, x: g.sum(g.square(x), 0), lambda g, s, x: g.sum(x, 0))
    assert bound_of(product) == 3, "x · x in two orders, and x"
    assert bound_of(pair(lambda g, s, x: g.cumsum(x, 0), lambda g, s, x: x)) is None


SCANS: dict[str, tuple[Write, Write, Write]] = {
    "of a combination": (
        lambda g, s, x, y: g.cumsum(g.add(x, g.scale(y, 3)), 0),
        lambda g, s, x, y: g.add(g.cumsum(x, 0), g.scale(g.cumsum(y, 0), 3)),
        lambda g, s, x, y: g.add(g.cumsum(x, 0), g.scale(g.cumsum(y, 0), 2)),
    ),
    "with a factor of each column": (
        lambda g, s, x, y: g.cumsum(g.mul(x, g.sum(y, 0)), 0),
        lambda g, s, x, y: g.mul(g.cumsum(x, 0), g.sum(y, 0)),
        lambda g, s, x, y: g.cumsum(g.mul(g.cumsum(x, 0), g.sum(y, 0)), 0),
    ),
    "along the other axis": (
        lambda g, s, x, y: g.transpose(g.cumsum(x, 0), (1, 0)),
        lambda g, s, x, y: g.cumsum(g.transpose(x, (1, 0)), 1),
        lambda g, s, x, y: g.transpose(g.cumsum(x, 1), (1, 0)),
    ),
    "of both axes": (
        lambda g, s, x, y: g.cumsum(g.cumsum(x, 0), 1),
        lambda g, s, x, y: g.cumsum(g.cumsum(x, 1), 0),
        lambda g, s, x, y: g.cumsum(g.cumsum(x, 0), 0),
    ),
    "of joined columns": (
        lambda g, s, x, y: g.cumsum(g.concat([x, y], 1), 0),
        lambda g, s, x, y: g.concat([g.cumsum(x, 0), g.cumsum(y, 0)], 1),
        lambda g, s, x, y: g.concat([g.cumsum(y, 0), g.cumsum(x, 0)], 1),
    ),
}


@pytest.mark.parametrize("name", SCANS)
def test_laws_of_scans_are_proved_for_all_sizes(name: str) -> None:
    program, candidate, twin = SCANS[name]
    shapes = {"x": ("n", "m"), "y": ("n", "m")}
    pair = mi.LawPair(
        name,
        sizes="n>=2 m>=2",
        inputs=lambda s: {own: tuple(getattr(s, it) for it in names) for own, names in shapes.items()},
        program=program,
        candidate=candidate,
        twin=twin,
    )
    verdict = decide_pair(pair)
    assert verdict.outcome is PairOutcome.ALL_SIZES and not verdict.wrong
    assert [it.outcome for it in verdict.twins] == [PairOutcome.NOT_EQUAL] and not proved(pair, twin, 1)


def test_pairs_that_are_wrong_are_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.py").write_text(
        """import mirage_eg as mi
def inputs(s):
    return {"x": s.N}
PAIRS = [
    mi.LawPair("true", sizes="N", inputs=inputs, program=lambda g, s, x: g.add(x, x), candidate=lambda g, s, x: g.scale(x, 2)),
    mi.LawPair("false", sizes="N>=2", inputs=inputs, ranks=(1, 2), expected="not equal",
               program=lambda g, s, x: g.flip(x, 0), candidate=lambda g, s, x: g.scale(x, 1)),
    mi.LawPair("wrong", sizes="N", inputs=inputs, program=lambda g, s, x: g.add(x, x), candidate=lambda g, s, x: g.scale(x, 3),
            twin=lambda g, s, x: g.scale(x, 2), ranks=(1,)),
]
"""
    )
    out = tmp_path / "rows.jsonl"
    code, text, _ = run_command(capsys, "bench", "laws", "--dir", tmp_path, "--out", out)
    assert code == 1 and "WRONG: candidate at rank 1: not equal; WRONG: twin at rank 1: proved for all sizes" in text
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["verdict"]["pair"] for row in rows] == ["true", "false", "wrong"]
    code, text, _ = run_command(capsys, "bench", "laws", "true", "--dir", tmp_path, "--json")
    [row] = json.loads(text)["rows"]
    assert code == 0 and "up to" in row["verdict"]["all_ranks"]
    code, _, errors = run_command(capsys, "bench", "laws", "--dir", tmp_path / "none")
    assert code == 2 and "wanted a folder with Python files of pairs" in errors


def test_the_example_of_the_page_is_proved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [example] = [text for language, text in blocks("docs/how_to/rules.md") if "mi.LawPair(" in text]
    (tmp_path / "own.py").write_text(example)
    code, text, _ = run_command(capsys, "bench", "laws", "--dir", tmp_path)
    assert code == 0 and "own: a slice of a pad: proved for all sizes" in text


def test_the_table_of_the_page_has_all_pairs() -> None:
    files = Counter(name.split(":")[0] for name in PAIRS)
    rows = dict(re.findall(r"\n\| (\w+) \| (\d+) \|", read("docs/measurements/rewrites.md")))
    assert {name: int(count) for name, count in rows.items()} == {**files, "all": len(PAIRS)}


def test_a_pair_that_fails_is_refused_at_its_line_after_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path := tmp_path / "own.py").write_text(
        "import mirage_eg as mi\n"
        "def program(g, s, x):\n"
        "    return g.transpose(x)\n"
        "def pair(name, function):\n"
        "    return mi.LawPair(name, sizes='n', inputs=lambda s: {'x': (s.n,)}, program=function, candidate=function)\n"
        "PAIRS = [pair('wrong', program), pair('right', lambda g, s, x: g.abs(x))]\n"
    )
    code, printed, error = run_command(capsys, "bench", "laws", "--dir", path)
    assert code == 2 and "own: right: proved for all sizes" in printed
    assert re.search(rf"'wrong', candidate at rank 1: {path}:3: program fails: TypeError: .*'permutation'", error)


def test_names_and_expectations_of_pairs_are_checked() -> None:
    given: dict[str, Any] = {"inputs": lambda s: {}, "program": print, "candidate": print}
    with pytest.raises(ProgramError, match="wanted names such as N"):
        mi.LawPair("law", sizes="N>2", **given)
    with pytest.raises(ProgramError, match="wanted 'equal' or 'not equal'"):
        mi.LawPair("law", sizes="N", expected="same", **given)
    assert mi.LawPair("law", sizes="N≥2 p>=0 m", **given).leasts == {"N": 2, "p": 0, "m": 1}
