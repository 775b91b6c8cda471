"""Values that are none: laws keep them so for torch, for programs with choices, and where it is asked; `verify` tells."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage_eg as mi
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.floating_point import FloatAlgebra
from mirage_eg.cli.verify import run_verify
from mirage_eg.egraph.rule_files import DOMAINS, header
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.egraph.soundness.definedness import definedness
from mirage_eg.egraph.soundness.unfold import unfolded
from mirage_eg.frontend.load import load_program
from mirage_eg.ir.expand import expand, has_choices
from mirage_eg.ir.graph import Graph
from mirage_eg.ir.serialize import from_json, to_json
from mirage_eg.pipeline.run.options import Options
from mirage_eg.verify.proof import Prover
from mirage_eg.verify.undefined import given_values
from property_tests.support.parameters import AMPLE, few

Write = Callable[[Any, Any, Any], Any]

LOSES: dict[str, tuple[Write, Write]] = {  # a program, and what a law of the reals makes of it
    "exp of log": (lambda g, x, y: g.exp(g.log(x)) + y, lambda g, x, y: x + y),
    "product of roots": (lambda g, x, y: g.sqrt(x) * g.sqrt(y), lambda g, x, y: g.sqrt(x * y)),
    "square of a root": (lambda g, x, y: g.square(g.sqrt(x)) + y, lambda g, x, y: x + y),
    "quotient of roots": (lambda g, x, y: g.sqrt(x) / g.sqrt(y), lambda g, x, y: g.sqrt(x / y)),
    "inverse roots": (lambda g, x, y: g.rsqrt(x) * g.rsqrt(y), lambda g, x, y: g.rsqrt(x * y)),
    "product of powers": (lambda g, x, y: g.pow(x, 1.5) * g.pow(y, 1.5), lambda g, x, y: g.pow(x * y, 1.5)),
}
KEEPS: dict[str, tuple[Write, Write]] = {  # the structure shows that nothing is lost
    "roots of squares": (
        lambda g, x, y: g.sqrt(g.square(x)) / g.sqrt(g.shift(g.square(y), 1)),
        lambda g, x, y: g.sqrt(g.square(x) / g.shift(g.square(y), 1)),
    ),
    "logarithm of what is positive": (lambda g, x, y: g.exp(g.log(g.exp(x))) * y, lambda g, x, y: g.exp(x) * y),
    "whole powers": (lambda g, x, y: g.pow(x, -3) * g.pow(y, -3), lambda g, x, y: g.pow(x * y, -3)),
}


def program(write: Write) -> Graph:
    g = mi.new_kernel_graph()
    g.mark_output(write(g, g.new_input((16, 16), "float32", "x"), g.new_input((16, 16), "float32", "y")))
    return g.graph()


def found(write: Write, undefined: str) -> list[Graph]:
    options: dict[str, Any] = {"top": 4, "device": "cpu", "jobs": 1, "cache": False, "budget": AMPLE}
    return [result.graph for result in mi.superoptimize(program(write), undefined=undefined, **options)]


@pytest.mark.parametrize("name", LOSES)
def test_what_gives_a_value_to_an_undefined_one_is_found_out(name: str) -> None:
    before, after = map(program, LOSES[name])
    given = given_values(before, after, 0)
    assert given is not None and "where the program gives" in given
    assert given_values(before, before, 0) is None and given_values(after, before, 0) is None


@pytest.mark.parametrize("name", few(LOSES, 2))
def test_mugraphs_keep_what_is_undefined_if_asked(name: str) -> None:
    write, _ = LOSES[name]
    graphs = found(write, "keep")
    assert graphs and all(given_values(program(write), graph, 0) is None for graph in graphs)


def test_laws_of_the_reals_are_free_where_nothing_is_asked() -> None:
    write, _ = LOSES["exp of log"]
    assert any(given_values(program(write), graph, 0) for graph in found(write, "free"))


@pytest.mark.parametrize("name", [*LOSES, *KEEPS])
def test_a_law_is_used_where_the_structure_shows_that_nothing_is_lost(name: str) -> None:
    before, after = map(program, (LOSES | KEEPS)[name])
    kept = Prover(before, load_rules("indexed", undefined="keep")).prove(after)
    assert kept.proved is (name in KEEPS) and kept.partial == ()
    assert Prover(before, load_rules("indexed", undefined="free")).prove(after).proved or name == "whole powers"


def test_a_product_of_norms_keeps_its_range() -> None:
    def cosine(g: mi.KernelGraph, x: mi.Tensor, y: mi.Tensor) -> mi.Tensor:
        norms = (g.sqrt(g.sum(g.square(each), 1)) for each in (x, y))
        return g.sum(x * y, 1) / g.mul(*norms)

    options: dict[str, Any] = {"top": 2, "device": "cpu", "jobs": 1, "cache": False, "budget": AMPLE}
    for undefined, keeps in (("keep", True), ("free", False)):
        fused = [it.candidate for it in mi.superoptimize(program(cosine), undefined=undefined, **options) if it.candidate.fused]
        lost = [it.float_check.leaves_domain for it in fused]
        assert fused and any(lost) is not keeps
        assert all(it.float_check.ok is not it.float_check.leaves_domain for it in fused)


@pytest.mark.parametrize("domain", few(DOMAINS, 1))
def test_theories_say_whether_their_laws_lose_undefined_values(domain: str) -> None:
    seen = set[bool]()
    for undefined in ("free", "keep"):
        book = load_rules(domain, undefined=undefined)
        for theory in book.theories:
            own = header(theory.text, "undefined")
            if own is None and theory.name[:2] not in ("25", "26", "27", "29"):
                continue  # all of them: `test_no_packaged_law_gives_an_undefined_value_one`
            for law in theory.laws:
                widens = definedness(law, domain, book.signatures, unfolded(law, book.laws, book.signatures)).widens
                assert (widens is not None) is (own == "free"), law.place
                seen.add(own == "free")
    assert seen == {False, True}


@pytest.mark.slow
@pytest.mark.parametrize("domain", DOMAINS)
def test_no_packaged_law_gives_an_undefined_value_one(domain: str) -> None:
    book = load_rules(domain, undefined="keep")
    for law in book.laws:
        assert definedness(law, domain, book.signatures, unfolded(law, book.laws, book.signatures)).widens is None, law.place


def guarded(inner: Write) -> Write:
    """A choice that leaves out a value which is undefined there, beside |x| and x, which laws would make equal through it."""
    return lambda g, x, y: g.where(g.less(x, 0), inner(g, x, y), g.sqrt(x) * g.sqrt(x)) + g.sqrt(x * x) * y


def test_laws_prove_nothing_through_an_undefined_side_of_a_choice() -> None:
    right, wrong = program(guarded(lambda g, x, y: x)), program(guarded(lambda g, x, y: g.sqrt(x * x)))
    assert has_choices(right)
    assert not Prover(right).prove(wrong).proved and not Prover(right, load_rules("indexed")).prove(wrong).proved
    x, y = np.random.default_rng(0).standard_normal((2, 16, 16))
    results = mi.superoptimize(right, top=4, device="cpu", jobs=1, cache=False, budget=AMPLE)
    [want] = evaluate(right, [x, y], FloatAlgebra())
    assert np.isfinite(want).all()
    for result in results:
        [got] = evaluate(result.graph, [x, y], FloatAlgebra())
        np.testing.assert_allclose(got, want, rtol=1e-9)


def test_a_candidate_with_a_choice_is_proved_by_laws_that_keep_undefined() -> None:
    plain = program(lambda g, x, y: g.exp(g.log(x)) + y)
    candidate = program(lambda g, x, y: g.where(g.less(y, 0), x + y, g.exp(g.log(x)) + y))
    assert not has_choices(plain) and not Prover(plain).prove(candidate).proved


def test_a_softmax_with_a_mask_is_a_choice_and_one_without_is_none() -> None:
    def softmax(masked: bool) -> Graph:
        g = mi.new_kernel_graph()
        x, m = g.new_input((4, 4), "float32", "x"), g.new_input((4, 4), "bool", "m")
        g.mark_output(g.softmax(x, 1, m) if masked else g.softmax(x, 1))
        return g.graph()

    assert has_choices(softmax(True)) and not has_choices(softmax(False))


@pytest.mark.parametrize(("after", "words"), [(0, "undefined values: kept"), (1, "undefined values: given one; output 0 at [")])
def test_verify_says_whether_undefined_values_are_kept(
    after: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write = LOSES["square of a root"]
    path = tmp_path / "candidate.json"
    path.write_text(mi.to_json(program(write[after])))
    run_verify(program(write[0]), path, Options(), as_json=False)
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("exponent", [0, 1])
def test_no_number_to_the_power_of_nought_is_one_as_in_torch(exponent: int) -> None:
    graph = program(lambda g, x, y: g.pow(x, exponent))
    x = np.full((16, 16), np.nan)
    [got] = evaluate(expand(graph), [x, x], FloatAlgebra())
    assert (got == 1).all() if exponent == 0 else np.isnan(got).all()


def imported() -> Graph:
    """exp(log x)·√y·√y as torch exports it."""
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any, y: Any) -> Any:
            return x.log().exp() * y.sqrt() * y.sqrt()

    exported = torch.export.export(Module(), (torch.rand(16, 16), torch.rand(16, 16)))
    [found] = mi.torch.import_program(exported).programs
    return found


@pytest.mark.slow
def test_an_imported_program_keeps_what_is_undefined_unless_told_otherwise() -> None:
    options: dict[str, Any] = {"top": 2, "device": "cpu", "jobs": 1, "cache": False, "budget": AMPLE}
    whole = imported()
    read, plain = from_json(to_json(whole)), Graph(whole.nodes)
    assert read == plain == whole and read.keeps_undefined and not plain.keeps_undefined
    assert not any(given_values(whole, it.graph, 0) for it in mi.superoptimize(read, **options))
    made = next(it.graph for it in mi.superoptimize(whole, undefined="free", **options) if given_values(whole, it.graph, 0))
    assert Prover(plain).prove(made).proved and not Prover(whole).prove(made).proved


def test_a_model_in_a_file_keeps_what_is_undefined(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    nodes = [onnx.helper.make_node("Log", ["x"], ["l"]), onnx.helper.make_node("Exp", ["l"], ["y"])]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [16, 16]) for name in ("x", "y")]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:])), tmp_path / "model.onnx")
    _, loaded = load_program(str(tmp_path / "model.onnx"))
    assert loaded.keeps_undefined and Options().undefined_in(loaded) == "keep"


def test_numbers_of_no_dims_are_among_the_inputs() -> None:
    g = mi.new_kernel_graph()
    g.mark_output(g.new_input((), "float32", "x") * g.new_input((4, 4), "float32", "y"))
    assert given_values(g.graph(), g.graph(), 0) is None
