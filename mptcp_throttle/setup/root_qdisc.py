"""Whether mptcp-throttled replaces the root qdisc of an interface, in words."""

from __future__ import annotations

from mptcp_throttle.linux.qdisc_kinds import is_own, kind_in_the_way
from mptcp_throttle.setup.host_facts import Interface


def why_qdisc(interface: Interface) -> str:
    """What happens to it."""
    root = f"the root qdisc of {interface.name}"
    tree = interface.qdiscs
    if not tree:
        return f"{root} is not known"
    if is_own(tree):
        return f"{root} is that of mptcp-throttled"
    if not tree[0].handle:
        return f"{root}, {tree[0].kind}, is the kernel's default, which comes back"
    strange = kind_in_the_way(tree)
    if strange is None:
        return f"{root}, {tree[0].kind}, is of a kind that can be restored"
    below = f", has {strange} below it, which" if strange != tree[0].kind else ","
    return f"{root}, {tree[0].kind}{below} cannot be restored exactly: nobody is throttled there"


def is_in_the_way(interface: Interface) -> bool:
    """Whether its root qdisc, if it is known, keeps everybody there from being throttled."""
    return bool(interface.qdiscs) and kind_in_the_way(interface.qdiscs) is not None
