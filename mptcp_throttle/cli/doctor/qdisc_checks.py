"""Check of the root qdiscs: whether HTB may take their place, and what other traffic loses while it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pyroute2 import IPRoute

from mptcp_throttle.cli.doctor.finding import Host
from mptcp_throttle.findings import Finding
from mptcp_throttle.linux.kernel_error import KernelError, netlink_call
from mptcp_throttle.linux.qdisc_kinds import SeenQdisc, is_own, kind_in_the_way, lost_beside_htb, seen_qdiscs

_INTERFACES: Final = Path("/sys/class/net")


def root_qdiscs(host: Host) -> Iterator[Finding]:
    """For each interface of the proxy, what stands in the way of HTB, or is lost by it."""
    try:
        with netlink_call("tc qdisc show"), IPRoute() as ip:
            indices = {link.get_attr("IFLA_IFNAME"): link["index"] for link in ip.get_links()}
            trees = seen_qdiscs(ip)
    except KernelError as error:
        yield Finding("root qdisc", unchecked=str(error))
        return
    for name in host.config.proxy.interfaces:
        tree = trees.get(indices.get(name, 0), ())  # no interface has the index 0
        if tree:
            yield judge(name, tree, _transmit_queues(name), force=host.config.daemon.replace_any_qdisc)


def _transmit_queues(interface: str) -> int:
    return sum(1 for _ in (_INTERFACES / interface / "queues").glob("tx-*"))


def judge(interface: str, tree: Sequence[SeenQdisc], queues: int, *, force: bool) -> Finding:
    """The finding about an interface with these qdiscs, root first, and this number of transmit queues.

    `force`: the root is replaced whatever it is.
    """
    subject = f"root qdisc of {interface}"
    if is_own(tree):
        return Finding(subject)
    strange = kind_in_the_way(tree)
    if strange is not None and not force:
        remedy = "replace it by fq_codel or pfifo, or set daemon.replace_any_qdisc"
        return Finding(subject, f"{strange} cannot be restored exactly, so no subflow is throttled there", remedy)
    losses = lost_beside_htb([qdisc.kind for qdisc in tree], queues)
    if not losses:
        return Finding(subject)
    return Finding(
        subject, remark=f"while a subflow is throttled, HTB is in place of {tree[0].kind}: {', '.join(losses)}"
    )
