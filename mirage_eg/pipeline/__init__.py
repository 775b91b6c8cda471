"""One run from program to result: `optimize`, its stages, and its report."""
