"""The kernel layer: small and without policy. Imports nothing of the daemon but `vocabulary`."""
