"""What runs µGraphs: the evaluator and its algebras, Triton emission, compilation and timing; never egglog."""
