"""softmax(Q K) V, as in the checkpoint gqa_bs8: no scale, no maximum."""

import mirage_eg as mi


def program(batch: int = 1) -> mi.KernelGraph:
    graph = mi.new_kernel_graph()
    q, k = graph.new_input((2 * batch, 256, 64), name="Q"), graph.new_input((2 * batch, 64, 4096), name="K")
    v = graph.new_input((2 * batch, 4096, 64), name="V")
    graph.mark_output(graph.matmul(graph.softmax(graph.matmul(q, k), 2), v), name="O")
    return graph
