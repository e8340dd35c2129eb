"""What goes wrong in the lab."""

from __future__ import annotations

from mptcp_throttle.errors import UserError


class LabError(UserError):
    """The lab could not do what it was asked: which program or host, and why."""
