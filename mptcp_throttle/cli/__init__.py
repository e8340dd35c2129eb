"""`mptcp-throttle`: show what the services do, and change rates and budgets."""

from mptcp_throttle.cli.main import main, parser

__all__ = ["main", "parser"]
