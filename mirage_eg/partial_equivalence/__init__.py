"""Mutants of a program: programs that are right on a part of its output, the boxes where they are, and their corrections."""
