"""The command line `mirage-eg`."""
