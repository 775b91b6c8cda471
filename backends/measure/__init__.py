"""Measured time: launching and timing kernels on a GPU, and their baselines."""
