"""The meaning of graphs: evaluators over finite fields, floats and exact numbers. Trusted."""
