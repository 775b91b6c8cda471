"""Measured time: how kernels are launched and timed on a GPU, and what they are compared with."""
