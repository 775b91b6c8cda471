"""The backend of torch.compile: segments of a model become one opaque op each, and Inductor compiles the rest."""
