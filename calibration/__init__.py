"""Calibration: profiles: what every operation costs on a device, with provenance; benchmarks and fits that make
them."""
