"""Whether mptcp-throttled replaces the root qdisc of an interface, in words."""

from __future__ import annotations

from typing import Final

from mptcp_throttle.linux.qdisc_kinds import RESTORABLE
from mptcp_throttle.setup.host_facts import Interface

_OWN_QDISC: Final = "htb"


def why_qdisc(interface: Interface) -> str:
    """What happens to it."""
    kind = interface.qdisc
    if kind is None:
        return f"the root qdisc of {interface.name} is not known"
    if kind == _OWN_QDISC:
        return f"the root qdisc of {interface.name} is htb: that of mptcp-throttled, or one that it does not replace"
    if is_restorable(kind):
        return f"the root qdisc of {interface.name}, {kind}, can be restored exactly"
    return f"the root qdisc of {interface.name}, {kind}, cannot be restored exactly: nobody is throttled there"


def is_restorable(kind: str | None) -> bool:
    """Whether a root qdisc of this kind, if it is known, does not keep anybody from being throttled."""
    return kind is None or kind == _OWN_QDISC or kind in RESTORABLE
