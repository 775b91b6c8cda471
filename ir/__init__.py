"""Programs and µGraphs as data; imports nothing else of this package, no egglog and no GPU library."""
