"""An op from outside is used only where its Triton and torch expressions compute what its numbers do."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

from mirage_eg.backends.triton.interpreter import RunProgram
from mirage_eg.frontend import custom_op_check
from mirage_eg.frontend.custom_op import register_op
from mirage_eg.frontend.custom_op_check import check_custom_ops
from mirage_eg.ir.errors import GraphError
from mirage_eg.ir.op.activations import erf
from mirage_eg.ir.op.elementwise import REGISTRY

NAME = "gelu_of_mine"


def numbers(xp: Any, x: Any) -> Any:
    return x * (0.5 + 0.5 * erf(xp, x * np.sqrt(0.5)))


def register(**changed: Any) -> None:
    right = {
        "numbers": numbers,
        "exactly": lambda x: x * mpmath.ncdf(x),
        "triton": "(0.5 * {x} * (1.0 + tl.erf({x} * 0.7071067811865476)))",
        "torch": "torch.nn.functional.gelu({x})",
        "keeps_zero": True,
    }
    register_op(NAME, **(right | changed))


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch, run_program: RunProgram) -> Iterator[None]:
    """The registry is as before after the test, and one interpreter serves all tests."""

    class Lent:
        def __enter__(self) -> RunProgram:
            return run_program

        def __exit__(self, *raised: object) -> None:
            pass

    monkeypatch.setattr(custom_op_check, "interpreter", Lent)
    yield
    REGISTRY.pop(NAME, None)


def test_right_expressions_pass_and_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    register()
    assert check_custom_ops() == []
    monkeypatch.delattr(custom_op_check, "interpreter")
    assert check_custom_ops() == []


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "another function": ({"triton": "({x} * 2.0)"}, r"Triton expression .* gives 2 at x = 1, where `numbers` gives 0.841345"),
    "another torch function": ({"torch": "torch.relu({x})"}, "torch expression .* gives 1 at x = 1"),
    "an approximation": ({"triton": "{x} * tl.sigmoid(1.702 * {x})"}, "Triton expression .* gives 0.84"),
    "the other approximation": ({"torch": "torch.nn.functional.gelu({x}, approximate='tanh')"}, "torch expression .* gives"),
    "wrong for negative numbers": (
        {"triton": "tl.maximum({x}, 0.0)", "numbers": lambda xp, x: abs(x), "exactly": abs},
        "gives 0 at x = -1",
    ),
    "other exact numbers": ({"exactly": lambda x: 2 * x}, "`exactly` gives 2 at x = 1, where `numbers` gives 0.841345"),
    "wrong beyond a hundred thousand": (
        {"triton": "tl.where({x} > 2e5, 0.0, 0.5 * {x} * (1.0 + tl.erf({x} * 0.7071067811865476)))"},
        "Triton expression .* gives 0 at x = ",
    ),
    "wrong below minus ten thousand": (
        {"torch": "torch.where({x} < -2e4, {x}, torch.nn.functional.gelu({x}))"},
        "torch expression .* gives -",
    ),
    "wrong in a narrow window": (
        {"torch": "torch.where(abs({x} - 3.3) < 0.01, {x} + 1, torch.nn.functional.gelu({x}))"},
        "torch expression .* gives 4.* at x = 3.",
    ),
    "other exact numbers far out": ({"exactly": lambda x: x * mpmath.ncdf(x) if x < 5000 else x + 1}, "`exactly` gives"),
    "no such function": ({"triton": "tl.geluu({x})"}, "Triton expression 'tl.geluu.*fails: .*geluu"),
    "an unknown name": ({"torch": "{x} * alpha"}, "torch expression .*fails: .*alpha"),
    "nothing finite": ({"numbers": lambda xp, x: x / 0 * 0, "keeps_zero": False}, "no finite value"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_expression_that_computes_something_else_is_refused_in_one_line(name: str) -> None:
    changed, message = WRONG[name]
    register(**changed)
    with pytest.raises(GraphError, match=message) as caught:
        check_custom_ops()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "right",
    [
        (
            lambda xp, x: xp.log1p(xp.exp(x)),
            lambda x: mpmath.log1p(mpmath.exp(x)),
            "tl.log(1.0 + tl.exp({x}))",
            "{x}.exp().log1p()",
        ),
        (lambda xp, x: xp.sqrt(x), mpmath.sqrt, "tl.sqrt({x})", "torch.sqrt({x})"),
        (lambda xp, x: xp.sin(x), mpmath.sin, "tl.sin({x})", "torch.sin({x})"),
        (lambda xp, x: xp.exp(-x * x), lambda x: mpmath.exp(-x * x), "tl.exp(-{x} * {x})", "torch.exp(-{x} * {x})"),
        (lambda xp, x: xp.maximum(x, x / 8), lambda x: max(x, x / 8), "tl.maximum({x}, {x} / 8)", "{x}.maximum({x} / 8)"),
    ],
)
def test_rounding_and_undefined_inputs_refuse_no_right_expression(right: tuple[Any, ...]) -> None:
    register(**dict(zip(("numbers", "exactly", "triton", "torch"), right, strict=True)), keeps_zero=False)
    assert check_custom_ops() == []


@pytest.mark.parametrize("text", ["{x} + {y}", "x", "{}", "{x} + {", "{x.real}", "{x} + {0}", "{x} * (1.0", "y = {x}"])
@pytest.mark.parametrize("language", ["triton", "torch"])
def test_what_is_no_expression_of_the_operand_is_refused_at_once(language: str, text: str) -> None:
    with pytest.raises(GraphError, match=r"wanted one in \{x\} alone|is no Python expression"):
        register(**{language: text})


def test_a_false_claim_about_zero_is_refused_at_once() -> None:
    with pytest.raises(GraphError, match=r"keeps_zero=True, but numbers\(np, x\) is 1 at x = 0"):
        register(numbers=lambda xp, x: xp.cos(x))


def test_a_changed_expression_is_run_again() -> None:
    register()
    check_custom_ops()
    register(triton="({x} * 2.0)")
    with pytest.raises(GraphError, match="gives 2 at x = 1"):
        check_custom_ops()


def test_without_torch_a_note_says_that_nothing_was_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    register(triton="({x} * 2.0)")
    without: Callable[[str], None] = lambda name: None  # noqa: E731
    monkeypatch.setattr(custom_op_check, "find_spec", without)
    assert check_custom_ops() == [
        f"{NAME}: the Triton and torch expressions were not compared with the definition: torch is not installed"
    ]


@pytest.mark.slow
def test_optimize_stops_before_it_searches_with_a_wrong_expression(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "import mirage_eg as mi\n"
        "times = lambda xp, x: 3 * x\n"
        'mi.register_op("twice", numbers=times, exactly=lambda x: 3 * x, triton="({x} * 2.0)", torch="(3 * {x})")\n'
        "def program():\n"
        "    graph = mi.new_kernel_graph()\n"
        '    graph.mark_output(graph.op("twice", graph.new_input((16, 64))))\n'
        "    return graph\n"
    )
    (tmp_path / "twice.egg").write_text(
        "; domain: indexed\n(constructor Twice (E) E)\n"
        '(rule ((= e (Twice x)) (= a (axes x))) ((set (axes e) a)) :name "axes of twice")\n'
        '(rule ((below e) (= e (Twice x))) ((below x)) :ruleset subexpression :name "below twice")\n'
    )
    command = [sys.executable, "-m", "mirage_eg", "optimize", "wrong.py", "--rules", "twice.egg"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "the Triton expression '({x} * 2.0)' gives 2 at x = 1" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "mirage_out").exists()
