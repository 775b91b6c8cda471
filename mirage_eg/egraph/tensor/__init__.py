"""Terms over whole tensors, and the normal form that decides their equality for all shapes."""
