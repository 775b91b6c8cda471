"""The µGraph generator: which structures of kernels compute the program."""
