"""Results to look at: HTML, SVG, tables, notebook display."""
