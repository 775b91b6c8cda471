"""Programs in: workloads, Python and JSON files, Mirage's checkpoints, custom ops."""
