"""Metrics for Prometheus: what is counted where it happens, what a snapshot shows, and the server for both."""
