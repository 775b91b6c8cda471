"""A µGraph becomes a faster µGraph: layouts, op order, thread graphs, tuning by measurement."""
