"""The parts of a run: options, records, workers, checkpoints, the cache."""
