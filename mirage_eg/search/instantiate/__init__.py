"""Structures become µGraphs: grids, loops, tiles."""
