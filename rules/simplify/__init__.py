"""Laws of the simplification before the search."""
