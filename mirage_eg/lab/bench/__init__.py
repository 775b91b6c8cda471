"""The measurements of `mirage-eg bench`."""
