"""Abstract expressions, rule files, and the e-graph that answers the pruning query."""
