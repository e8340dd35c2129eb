"""`mptcp-throttle doctor`: a list of small checks of the kernel, the proxy, the configuration and both services.

A check is a function from `Host` to findings (`finding`); `CHECKS` in `checks` names them all.
"""

from mptcp_throttle.cli.doctor.checks import examine

__all__ = ["examine"]
