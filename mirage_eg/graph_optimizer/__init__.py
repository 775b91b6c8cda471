"""Rewrites whole programs: equality saturation over one e-graph, extraction by integer programming, weights folded ahead."""
