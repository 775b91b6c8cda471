"""Laws of the abstract domain, which forgets indices."""
