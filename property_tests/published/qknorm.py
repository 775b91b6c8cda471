"""softmax(rms(Q) K) rms(V), as in the checkpoint qknorm_gqa_bs1_first10: Q and V are normalised, K is not."""

import mirage_eg as mi


def program(batch: int = 1) -> mi.KernelGraph:
    graph = mi.new_kernel_graph()
    q, k = graph.new_input((2 * batch, 256, 64), name="Q"), graph.new_input((2 * batch, 64, 4096), name="K")
    v = graph.new_input((2 * batch, 4096, 64), name="V")
    scores = graph.matmul(graph.rms_norm(q, 64), k)
    graph.mark_output(graph.matmul(graph.softmax(scores, 2), graph.rms_norm(v, 64)), name="O")
    return graph
