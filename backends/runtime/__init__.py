"""The runtime of generated programs: arguments, launches, arrays of torch and CuPy, the CUDA driver."""
