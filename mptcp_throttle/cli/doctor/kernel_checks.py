"""Checks of the kernel: MPTCP itself, who may open JOINs, how much is given to a capped subflow, and whether HTB may
take the place of the root qdiscs."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pyroute2 import IPRoute
from pyroute2.netlink.generic.mptcp import MPTCP

from mptcp_throttle.findings import Finding, Host, note, or_ok
from mptcp_throttle.linux.kernel_error import KernelError, netlink_call
from mptcp_throttle.linux.qdisc_kinds import SeenQdisc, is_own, kind_in_the_way, lost_beside_htb, seen_qdiscs

_INTERFACES: Final = Path("/sys/class/net")
_MPTCP: Final = Path("/proc/sys/net/mptcp")
_SEND_BUFFERS: Final = Path("/proc/sys/net/ipv4/tcp_wmem")
_SEND_BUFFER_BYTES: Final = 1 << 20
_UNSENT: Final = Path("/proc/sys/net/ipv4/tcp_notsent_lowat")
_UNSENT_BYTES: Final = 1 << 14
_SINGLE_PAGES: Final = Path("/proc/sys/net/core/high_order_alloc_disable")
_RESPECTS_NOTSENT_LOWAT: Final = (6, 9)
_RECOMMENDED: Final = "in /usr/lib/sysctl.d/30-mptcp-throttle.conf: run `sysctl --system`"
_RECOMMENDED_BEFORE_6_9: Final = (
    "install /usr/share/doc/mptcp-throttle/examples/mptcp-throttle-before-6.9.conf in /etc/sysctl.d, and run"
    " `sysctl --system`"
)


class Limits(NamedTuple):
    """Limits of the kernel's path manager (generic netlink, family mptcp_pm), as `ip mptcp limits` shows them.

    Of a connection: subflows beside the first, and addresses announced by the peer to which JOINs are opened.
    """

    subflows: int
    add_addr_accepted: int


def mptcp(_: Host) -> Iterator[Finding]:
    """Whether the kernel has MPTCP, and it is on."""
    enabled = _parameter("enabled")
    if enabled is None:
        yield Finding("kernel", "has no MPTCP", "use one with CONFIG_MPTCP")
    else:
        problem = None if enabled == "1" else "MPTCP is off"
        yield Finding("kernel", problem, problem and "`sysctl net.mptcp.enabled=1`")


def joins(host: Host) -> list[Finding]:
    """Whether clients can JOIN, and the proxy opens no JOINs itself."""
    if not _MPTCP.exists():
        return []
    try:
        return or_ok("JOINs", [*_initial_address(), *_path_manager(len(host.config.networks))])
    except KernelError as error:
        return [Finding("JOINs", unchecked=str(error))]


def _initial_address() -> Iterator[Finding]:
    if _parameter("allow_join_initial_addr_port") == "0":
        problem = "are refused at the address of the first subflow"
        remedy = "`sysctl net.mptcp.allow_join_initial_addr_port=1`, unless the proxy announces another address"
        yield Finding("JOINs", problem, remedy, harm=False)


def _path_manager(networks: int) -> Iterator[Finding]:
    # `path_manager` replaced `pm_type` in Linux 6.15; Linux before 5.19 has neither.
    manager = _parameter("path_manager") or ("kernel" if _parameter("pm_type") in {None, "0"} else "userspace")
    if manager == "kernel":
        yield from judge_limits(read_limits(), networks)
        return
    problem = f"are decided by the path manager {manager!r}, which may refuse them or open some"
    # mptcp_pm_allow_new_subflow (net/mptcp/pm.c) refuses JOINs while no program receives the events.
    remedy = "`sysctl net.mptcp.path_manager=kernel` (`pm_type=0` before Linux 6.15), or a program such as mptcpd"
    yield Finding("JOINs", problem, remedy, harm=False)


def read_limits() -> Limits:
    """The limits of this network namespace; reading them needs no rights. Raises KernelError."""
    with netlink_call("ip mptcp limits"), MPTCP() as path_manager:
        (answer,) = path_manager.limits("show")
    return Limits(answer.get_attr("MPTCP_PM_ATTR_SUBFLOWS"), answer.get_attr("MPTCP_PM_ATTR_RCV_ADD_ADDRS"))


def judge_limits(limits: Limits, networks: int) -> Iterator[Finding]:
    """What is wrong with limits of the kernel's path manager, for clients with that number of access networks."""
    needed = networks - 1
    if limits.subflows < needed:
        problem = f"are refused after the first {limits.subflows} of a connection" if limits.subflows else "are refused"
        remedy = f"`ip mptcp limits set subflows {needed}` or more, for connections that begin after that"
        yield Finding("JOINs", problem, remedy, harm=limits.subflows == 0)
    if limits.subflows and limits.add_addr_accepted:
        problem = (
            f"are opened by the proxy itself, to up to {limits.add_addr_accepted} addresses that a client announces"
        )
        remedy = (
            "`ip mptcp limits set add_addr_accepted 0`; only with daemon.classifier: socket or nft are these throttled"
        )
        yield Finding("JOINs", problem, remedy, harm=False)


def send_buffers(_: Host) -> Iterator[Finding]:
    """Whether the send buffers of connections that are capped from the start are large enough."""
    initial = int(_SEND_BUFFERS.read_text(encoding="ascii").split()[1])
    problem = f"start at {initial} bytes: a connection capped from the start may stay slow for long"
    remedy = f"net.ipv4.tcp_wmem {_RECOMMENDED}"
    yield note("send buffers", is_well=initial >= _SEND_BUFFER_BYTES, problem=problem, remedy=remedy)


def respects_notsent_lowat() -> bool:
    """Whether MPTCP on this kernel respects tcp_notsent_lowat: since Linux 6.9 (mptcp_send_limit)."""
    version = re.match(r"(\d+)\.(\d+)", platform.release())
    return version is None or (int(version[1]), int(version[2])) >= _RESPECTS_NOTSENT_LOWAT


def unsent_data(_: Host) -> Iterator[Finding]:
    """Whether a capped subflow is given little at a time."""
    yield _unsent() if respects_notsent_lowat() else _unsent_before_6_9()


def _unsent() -> Finding:
    unsent = int(_UNSENT.read_text(encoding="ascii"))
    problem = f"may be {unsent} bytes per connection: readers wait for what a capped subflow has been given"
    remedy = f"net.ipv4.tcp_notsent_lowat {_RECOMMENDED}"
    return note("unsent data", is_well=unsent <= _UNSENT_BYTES, problem=problem, remedy=remedy)


def _unsent_before_6_9() -> Finding:
    # Only the initial network namespace has it; it applies to the whole host.
    is_well = not _SINGLE_PAGES.exists() or _SINGLE_PAGES.read_text(encoding="ascii").strip() == "1"
    problem = "is given to subflows in pieces of 32 kB: readers wait for those of a capped subflow"
    return note("unsent data", is_well=is_well, problem=problem, remedy=_RECOMMENDED_BEFORE_6_9)


def _parameter(name: str) -> str | None:
    """A parameter below net.mptcp; None if the kernel has none of that name."""
    try:
        return (_MPTCP / name).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None


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
            yield judge_qdiscs(name, tree, _transmit_queues(name), force=host.config.daemon.replace_any_qdisc)


def _transmit_queues(interface: str) -> int:
    return sum(1 for _ in (_INTERFACES / interface / "queues").glob("tx-*"))


def judge_qdiscs(interface: str, tree: Sequence[SeenQdisc], queues: int, *, force: bool) -> Finding:
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
    losses = ", ".join(lost_beside_htb([qdisc.kind for qdisc in tree], queues))
    remark = f"while a subflow is throttled, HTB replaces {tree[0].kind}: {losses}" if losses else None
    return Finding(subject, remark=remark)
