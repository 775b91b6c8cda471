"""X W + (X A) B, as in the checkpoint lora_bs1."""

import mirage_eg as mi


def program(batch: int = 1) -> mi.KernelGraph:
    graph = mi.new_kernel_graph()
    x, w = graph.new_input((16 * batch, 256), name="X"), graph.new_input((256, 4096), name="W")
    a, b = graph.new_input((256, 16), name="A"), graph.new_input((16, 4096), name="B")
    graph.mark_output(graph.add(graph.matmul(x, w), graph.matmul(graph.matmul(x, a), b)), name="O")
    return graph
