"""A program becomes an equivalent program before the search."""
