"""Laws of whole tensors at the kernel level, found by synthesis."""
