"""Experiments and measurements: benchmarks, baselines in other libraries, synthesis of laws, published models."""
