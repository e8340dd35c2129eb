"""`mptcp-throttle`: look at the services and change rates by hand."""

from mptcp_throttle.cli.main import main

__all__ = ["main"]
