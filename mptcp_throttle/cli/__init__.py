"""`mptcp-throttle`: show the state of the services and override rates."""

from mptcp_throttle.cli.main import main, parser

__all__ = ["main", "parser"]
