"""The stages at which candidates end, for traces and the search funnel; nothing is imported, so that both load fast."""

NOT_ENUMERATED = {
    "op": "block graphs of the search have no such op",
    "index": "it uses the axes of the program otherwise: joins two, or cuts one",
    "loop": "block graphs of the search have one loop, over one reduced axis, and no op on values of the loop and after it",
    "limits": "a part of the program that no block graph may hold",
    "boundary": "a kernel boundary that the partition does not try",
    "tiling": "a grid, loop or tile that instantiation does not try",
}
"""Rules of the search space that no candidate of a search breaks; a given µGraph may (`pipeline.why`)."""

STAGES = {
    **NOT_ENUMERATED,
    "query": "no expression that is equal to the program contains it",
    "axes": "no value of the program has all its axes",
    "value twice": "the block graph computes that value already",
    "leads nowhere": "no output can be computed from it",
    "no loop": "belongs to the split without a loop",
    "loads": "too many inputs loaded whole besides looped, or too many partial results",
    "too many ops": "the block graph has the maximum number of ops",
    "ops left": "the shortest path to an output has more ops than are left",
    "forced ops": "the ops on every path to an output are more than are left",
    "not kept": "that value has the maximum number of partial block graphs",
    "kept": "extended further",
    "no kernel": "a segment of the program that no block graph computes",
    "on no plan": "a segment with kernels that is on none of the plans kept",
    "field check": "a structure whose small instance is not equal to the program's by random fields and float64",
    "overflow": "a structure whose small instance is equal to the program's, and overflows in floats where it does not",
    "tile limits": "a structure without a µGraph that a block can hold or that passes the filters",
    "not tried": "a structure that loads as several smaller ones do",
    "not among top": "a µGraph that the cost model ranks after the finalists",
    "unfinished": "the search of this part ended at its budget or a limit of states",
    "verification": "a µGraph that differs at full size",
    "compile": "a µGraph that the compiler refused",
    "ranked": "a µGraph of the result",
    "timed": "a µGraph of the result, timed on the GPU",
}
"""Rules of the space, prune reasons of the search, then the later stages, in the order of the pipeline."""

RULES = frozenset({*NOT_ENUMERATED, "axes", "value twice", "leads nowhere", "no loop", "loads", "too many ops", "not tried"})
"""The stages at which a given µGraph is not enumerated, by a rule or a limit of the space."""
