"""The cost of a µGraph: device records, the roofline model, and its calibration."""
