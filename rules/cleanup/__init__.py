"""Laws of the clean-up before the search."""
