"""The launches of a µGraph: what one kernel computes, and where values lie."""
