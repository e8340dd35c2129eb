"""Measurements that print figures; one module each, run by `benchmarks/NAME`. They are not tests."""
