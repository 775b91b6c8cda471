"""What a µGraph costs: device records, the roofline model, and its calibration."""
