"""The measurements behind `mirage-eg bench`."""
