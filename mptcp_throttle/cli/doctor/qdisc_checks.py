"""Check of the root qdiscs: whether HTB may take their place, and what other traffic loses while it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyroute2 import IPRoute

from mptcp_throttle.cli.doctor.finding import Host
from mptcp_throttle.findings import Finding
from mptcp_throttle.linux.kernel_error import KernelError, netlink_call
from mptcp_throttle.linux.qdisc_kinds import RESTORABLE, lost_beside_htb

_INTERFACES: Final = Path("/sys/class/net")
_ROOT: Final = 0xFFFF_FFFF  # TC_H_ROOT, include/uapi/linux/pkt_sched.h
_CLSACT: Final = 0xFFFF_FFF1
_OWN_HANDLE: Final = 0x4D50_0000


def root_qdiscs(host: Host) -> Iterator[Finding]:
    """For each interface of the proxy, what stands in the way of HTB, or is lost by it."""
    try:
        with netlink_call("tc qdisc show"), IPRoute() as ip:
            names = {link["index"]: link.get_attr("IFLA_IFNAME") for link in ip.get_links()}
            qdiscs = ip.get_qdiscs()
    except KernelError as error:
        yield Finding("root qdisc", unchecked=str(error))
        return
    for name in host.config.proxy.interfaces:
        of = [one for one in qdiscs if names.get(one["index"]) == name and one["parent"] != _CLSACT]
        roots = [one for one in of if one["parent"] == _ROOT]
        if roots:
            others = [one.get_attr("TCA_KIND") for one in of if one["parent"] != _ROOT]
            kinds = (roots[0].get_attr("TCA_KIND"), *others)
            is_ours = roots[0]["handle"] == _OWN_HANDLE
            yield judge(
                name, kinds, _transmit_queues(name), is_ours=is_ours, force=host.config.daemon.replace_any_qdisc
            )


def _transmit_queues(interface: str) -> int:
    return sum(1 for _ in (_INTERFACES / interface / "queues").glob("tx-*"))


def judge(interface: str, kinds: tuple[str, ...], queues: int, *, is_ours: bool, force: bool) -> Finding:
    """The finding about an interface with qdiscs of these `kinds`, root first, and this number of transmit queues.

    `is_ours`: the root is our HTB now. `force`: it is replaced whatever it is.
    """
    subject, root = f"root qdisc of {interface}", kinds[0]
    if is_ours:
        return Finding(subject)
    strange = next((kind for kind in kinds if kind not in RESTORABLE), None)
    if strange is not None and not force:
        remedy = "replace it by fq_codel or pfifo, or set daemon.replace_any_qdisc"
        return Finding(subject, f"{strange} cannot be restored exactly, so nobody is throttled there", remedy)
    losses = lost_beside_htb(kinds, queues)
    if not losses:
        return Finding(subject)
    return Finding(subject, remark=f"while anybody is throttled, HTB is in place of {root}: {', '.join(losses)}")
