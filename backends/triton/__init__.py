"""Code generation: a µGraph becomes Triton source, which is compiled and checked."""
