"""What a run stands on: options, records, workers, checkpoints, the cache."""
