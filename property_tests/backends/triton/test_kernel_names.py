"""Equal kernels of different programs have one text, and so one entry in the compiler's cache."""

import re

from mirage_eg.backends.triton.emit import emit
from mirage_eg.ir.builder import new_kernel_graph
from mirage_eg.ir.node import REPLICATED
from mirage_eg.ir.threadblock_graph import new_threadblock_graph


def text_of_the_kernel(name: str, others: int, result: str) -> str:
    """Of exp of a sum in one block, after so many products of the library."""
    program = new_kernel_graph()
    x = program.new_input((8, 64), "float32", name)
    for _ in range(others):
        x = program.transpose(program.transpose(program.matmul(x, program.new_input((64, 64), "float32")), (1, 0)), (1, 0))
    block = new_threadblock_graph((1,))
    tile = block.new_input(x, (REPLICATED,))
    block.new_output(block.exp(block.sum(tile, 1)), (REPLICATED,))
    [y] = program.customized([x], block)
    program.mark_output(program.matmul(y, program.new_input((1, 64), "float32")) if not result else y, name=result or "y")
    [text] = re.findall(r"^def \w+_kernel\(.*\):\n(?:    .*\n)+", emit(program.graph()), re.MULTILINE)
    return str(text)


def test_a_kernel_has_one_text_wherever_its_values_are() -> None:
    assert text_of_the_kernel("x3", 0, "") == text_of_the_kernel("x5", 2, "")
    assert text_of_the_kernel("x3", 0, "").startswith("def sum_exp_kernel(t0_ptr, t1_ptr)")


def test_tensors_keep_names_that_are_more_than_a_number() -> None:
    assert text_of_the_kernel("keys", 0, "scores").startswith("def scores_kernel(keys_ptr, scores_ptr)")
    assert text_of_the_kernel("keys", 0, "scores") != text_of_the_kernel("x3", 0, "")
