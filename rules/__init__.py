"""The laws: rule files in egglog, one theory a file, one law a line."""
