"""Laws that hold in the indexed and in the abstract domain alike."""
