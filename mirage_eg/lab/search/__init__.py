"""Searches without pruning, and sizes of search spaces: what the e-graph saves."""
