"""Shared vocabulary of mptcp-throttle: units, model, configuration, RPC contract, and the CLI."""
