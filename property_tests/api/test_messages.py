"""What the API says: reprs tell what an object is, a slice keeps the report, what is no program is refused in one line."""

from collections.abc import Callable
from typing import Any

import pytest

import mirage_eg as mi
from mirage_eg.ir.errors import MirageError
from mirage_eg.ir.serialize import from_json, to_json


def written(name: str = "X") -> mi.Program:
    graph = mi.new_kernel_graph()
    x, w = graph.new_input((4, 8), name=name), graph.new_input((8, 16), name="W")
    graph.mark_output(graph.exp(x @ w), name="Y")
    return graph


@pytest.fixture(scope="module")
def found() -> mi.MuGraphs:
    return written().superoptimize(name="small", config="attention", top=3, device="cpu", jobs=1)


def test_a_slice_of_the_results_keeps_the_report(found: mi.MuGraphs) -> None:
    part = found[:2]
    assert isinstance(part, mi.MuGraphs) and len(part) == 2
    assert part.report == found.report and part[0] is found[0]
    assert part._repr_html_().count("<tr>") < found._repr_html_().count("<tr>")
    assert found[::-1][0] is found[-1]


def test_the_reprs_say_what_there_is(found: mi.MuGraphs) -> None:
    assert repr(mi.new_kernel_graph()) == "Program(0 inputs, no ops yet)"
    assert repr(written()) == "Program(X [4, 8] float16, W [8, 16] float16 → Y [4, 16] float16; 2 ops)"
    assert repr(found[0]).startswith("MuGraph(") and "X [4, 8] float16" in repr(found[0]) and "proved)" in repr(found[0])
    lines = repr(found).splitlines()
    assert lines[0] == f"MuGraphs of small: {len(found)}, best first" and len(lines) == 1 + len(found)
    assert "object at" not in repr(found) + repr(written())


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a number": (lambda: mi.superoptimize(5), "superoptimize: got the int 5, wanted a program"),  # type: ignore[arg-type]
    "nothing": (lambda: mi.superoptimize(None), "wanted a program"),  # type: ignore[arg-type]
    "a tensor": (lambda: mi.superoptimize(mi.new_kernel_graph().new_input((2,))), "wanted a program"),  # type: ignore[arg-type]
    "a block graph": (
        lambda: mi.superoptimize(mi.new_threadblock_graph((2,))),  # type: ignore[arg-type]
        "got a block graph that is being written",
    ),
    "one grid": (lambda: written().superoptimize(griddims=(2, 16, 1)), "for one entry: griddims=[(2, 16, 1)]"),
    "one map": (lambda: written().superoptimize(imaps=[0, -1]), "for one entry: imaps=[(0, -1)]"),
    "one number of threads": (lambda: written().superoptimize(blockdims=128), "blockdims: got 128, wanted a list"),
    "one loop": (lambda: written().superoptimize(franges=4), "for one entry: franges=[4]"),
    "a name that is none": (lambda: written().superoptimize(name=5), "name: got 5, wanted a text"),
    "equal values apart": (
        lambda: (lambda g, x: g.mark_output(x / (x - x)) or g.superoptimize(device="cpu", jobs=1))(
            *(lambda g: (g, g.new_input((4, 8))))(mi.new_kernel_graph())
        ),
        "is something divided by the difference of equal values?",
    ),
    "a dtype in JSON": (lambda: from_json(to_json(written().graph()).replace("float16", "x")), "got dtype 'x', wanted one of"),
    "a dtype of an output": (
        lambda: from_json(to_json(written().graph()).replace('"dtype": null', '"dtype": "x"')),
        "node 4: output: got dtype 'x', wanted one of",
    ),
}


@pytest.mark.parametrize(("call", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_program_or_option_is_refused_in_one_line(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(MirageError) as error:
        call()
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["__debug__", "None", "tl", "class", "x y", "é", "", "print"])
def test_any_name_of_an_input_is_written_as_one_that_python_takes(name: str) -> None:
    found = [*written(name).superoptimize(top=2, device="cpu", jobs=1)]
    assert found
    for it in found:
        compile(it.source, "program.py", "exec")
        assert it.candidate.compile.ok
