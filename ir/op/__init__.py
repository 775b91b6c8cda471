"""The ops as records: each op once, with its meaning in every algebra and its expressions side by side."""
