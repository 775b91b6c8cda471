"""Synthesis of laws of whole tensors: enumeration, a normal form that decides equality for all shapes, and minimization."""
