"""(X / rms X) W, as in the checkpoint rmsnorm_bs1: no g."""

import mirage_eg as mi


def program(batch: int = 1) -> mi.KernelGraph:
    graph = mi.new_kernel_graph()
    x, w = graph.new_input((2 * batch, 4096), name="X"), graph.new_input((4096, 6144), name="W")
    graph.mark_output(graph.matmul(graph.rms_norm(x, 4096), w), name="O")
    return graph
