"""Measurements that print figures, not tests: `benchmarks/NAME` runs the module of that name."""
