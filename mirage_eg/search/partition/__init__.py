"""Where a program is cut into kernels."""
