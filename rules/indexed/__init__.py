"""Laws of the indexed domain: sums over named parts of axes."""
