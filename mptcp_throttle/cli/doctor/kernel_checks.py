"""Checks of the kernel: MPTCP itself, who may open JOINs, how much is given to a capped subflow, and whether HTB may
take the place of the root qdiscs."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pyroute2 import IPRoute
from pyroute2.netlink.generic.mptcp import MPTCP

from mptcp_throttle.cli.doctor.mark_checks import classifier_of
from mptcp_throttle.features import DOCUMENTS
from mptcp_throttle.findings import Finding, Host, note, of_the_proxy, or_ok
from mptcp_throttle.linux.adjtimex import is_clock_synchronised
from mptcp_throttle.linux.kernel_error import KernelError, netlink_call
from mptcp_throttle.linux.mptcp_events import events_group
from mptcp_throttle.linux.qdisc_kinds import SeenQdisc, is_own, kind_in_the_way, lost_beside_htb, seen_qdiscs
from mptcp_throttle.linux.timed_pyroute2 import timed
from mptcp_throttle.model import BackEnd, ClassifierKind

_INTERFACES: Final = Path("/sys/class/net")
_MPTCP: Final = Path("/proc/sys/net/mptcp")
_NETLINK_SOCKETS: Final = Path("/proc/net/netlink")
_NETLINK_GENERIC: Final = "16"  # include/uapi/linux/netlink.h
_SIGNAL: Final = 1  # include/uapi/linux/mptcp.h, MPTCP_PM_ADDR_FLAG_SIGNAL
_SEND_BUFFERS: Final = Path("/proc/sys/net/ipv4/tcp_wmem")
_SEND_BUFFER_BYTES: Final = 1 << 20
_UNSENT: Final = Path("/proc/sys/net/ipv4/tcp_notsent_lowat")
_UNSENT_BYTES: Final = 1 << 14
_SINGLE_PAGES: Final = Path("/proc/sys/net/core/high_order_alloc_disable")
_RESPECTS_NOTSENT_LOWAT: Final = (6, 9)
_COUNTERS: Final = Path("/proc/net/netstat")
_WATCH_SECONDS: Final = 1.0
# With two proxies, half of all JOINs reach the wrong one. Picked arbitrarily, far below that.
_CONSPICUOUS_SHARE: Final = 0.05
_CONSPICUOUS_NUMBER: Final = 10
_OWN_ADDRESS: Final = (
    "on each proxy, `ip mptcp endpoint add ADDRESS signal` with an address or port that leads to it alone, and"
    " `sysctl net.mptcp.allow_join_initial_addr_port=0`"
)
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


class Announced(NamedTuple):
    """An address that is announced to clients, and the port if it has its own: there the kernel listens itself."""

    address: str
    port: int | None

    def __str__(self) -> str:
        return f"{self.address} port {self.port}" if self.port else self.address


class JoinCounts(NamedTuple):
    """SYNs with MP_JOIN that were received, and how many of them were for an unknown connection (net/mptcp/mib.h)."""

    received: int
    unknown: int

    @property
    def is_conspicuous(self) -> bool:
        """Whether so large a part is for unknown connections that these may be known elsewhere."""
        return self.unknown > 0 and self.unknown >= _CONSPICUOUS_SHARE * self.received


@of_the_proxy("kernel")
def mptcp(_: Host) -> Iterator[Finding]:
    """Whether the kernel has MPTCP, and it is on."""
    enabled = _parameter("enabled")
    if enabled is None:
        yield Finding("kernel", "has no MPTCP", "use one with CONFIG_MPTCP")
    else:
        problem = None if enabled == "1" else "MPTCP is off"
        yield Finding("kernel", problem, problem and "`sysctl net.mptcp.enabled=1`")


@of_the_proxy("JOINs")
def joins(host: Host) -> list[Finding]:
    """Whether clients can JOIN, and the proxy opens no JOINs itself, unless their subflows are throttled, too."""
    if not _MPTCP.exists():
        return []
    is_any_throttled = classifier_of(host) in {ClassifierKind.SOCKET, ClassifierKind.NFT}
    findings: list[Finding] = []
    try:
        findings += _path_manager(len(host.config.networks), is_any_throttled=is_any_throttled)
        own = _own_addresses()
        findings += _initial_address(own)
        findings += _unknown_joins(host, own or ())
    except KernelError as error:
        findings.append(Finding("JOINs", unchecked=str(error)))
    return or_ok("JOINs", findings)


def _own_addresses() -> list[str] | None:
    """Where JOINs go instead of the address of the first subflow; None: they may go there. Raises KernelError."""
    is_refused = _parameter("allow_join_initial_addr_port") == "0"
    return [*map(str, read_announced())] if is_refused else None


def _initial_address(own: Sequence[str] | None) -> Iterator[Finding]:
    if own:  # this is intended where several proxies have the address of the first subflow
        yield Finding("JOINs", remark=f"go to announced addresses: {', '.join(own)}")
    elif own is not None:
        problem = "are refused at the address of the first subflow"
        remedy = (
            "`sysctl net.mptcp.allow_join_initial_addr_port=1`, or announce an address:"
            " `ip mptcp endpoint add ADDRESS signal`"
        )
        yield Finding("JOINs", problem, remedy, harm=False)


def _path_manager(networks: int, *, is_any_throttled: bool = False) -> Iterator[Finding]:
    # `path_manager` replaced `pm_type` in Linux 6.15; Linux before 5.19 has neither.
    manager = _parameter("path_manager") or ("kernel" if _parameter("pm_type") in {None, "0"} else "userspace")
    if manager == "kernel":
        yield from judge_limits(read_limits(), networks, is_any_throttled=is_any_throttled)
        return
    # mptcp_pm_allow_new_subflow (net/mptcp/pm.c) refuses JOINs while no program receives the events.
    if receives_events():
        yield Finding("JOINs", remark=f"are decided by the path manager {manager!r}, whose events a program receives")
        return
    problem = f"are decided by the path manager {manager!r}, which may refuse them or open some"
    remedy = (
        "`sysctl net.mptcp.path_manager=kernel` (`pm_type=0` before Linux 6.15), or a program that receives its"
        " events, such as mptcpd or mptcp-sniffer"
    )
    yield Finding("JOINs", problem, remedy, harm=False)


def _unknown_joins(host: Host, own: Sequence[str]) -> Iterator[Finding]:
    """Whether JOINs arrive that are for another proxy of the fleet. Without a fleet, unknown ones mean nothing.

    `own` is as in `judge_unknown_joins`.
    """
    counts = read_join_counts()
    if host.config.fleet.url is None or counts is None or not counts.unknown:
        return
    time.sleep(_WATCH_SECONDS)
    yield from judge_unknown_joins(counts, read_join_counts() or counts, own)


def read_join_counts() -> JoinCounts | None:
    """Those of this network namespace; None if the kernel does not count them."""
    lines = [
        line.split() for line in _COUNTERS.read_text(encoding="ascii").splitlines() if line.startswith("MPTcpExt:")
    ]
    counts = dict(zip(*lines, strict=True)) if len(lines) == 2 else {}
    try:
        return JoinCounts(int(counts["MPJoinSynRx"]), int(counts["MPJoinNoTokenFound"]))
    except KeyError:
        return None


def judge_unknown_joins(first: JoinCounts, last: JoinCounts, own: Sequence[str]) -> Iterator[Finding]:
    """What two counts say, of which `last` was read `_WATCH_SECONDS` later. JOINs go to `own` addresses; none: to that
    of the first subflow.

    A JOIN may be late for a connection that has just ended, so one alone says nothing. With `own` addresses, neither
    does what arrived before: JOINs may not have gone there then.
    """
    lately = JoinCounts(last.received - first.received, last.unknown - first.unknown)
    if lately.is_conspicuous and lately.unknown > 1:
        counted, since = lately, f"in {_WATCH_SECONDS:.0f} s"
    elif last.is_conspicuous and last.unknown >= _CONSPICUOUS_NUMBER and not own:
        counted, since = last, "since the start of this host"
    else:
        return
    problem = (
        f"of {counted.received} {since}, {counted.unknown} are for connections that this proxy does not know:"
        " they may be those of another proxy of the fleet"
    )
    remedy = f"see that {' and '.join(own)} lead to this proxy alone" if own else _OWN_ADDRESS
    yield Finding("JOINs", problem, f"{remedy}; {DOCUMENTS}/explanation/fleet.md says more", harm=False)


def read_announced() -> list[Announced]:
    """What this network namespace announces to clients. Needs CAP_NET_ADMIN. Raises KernelError."""
    with netlink_call("ip mptcp endpoint"), timed(MPTCP) as path_manager:
        endpoints = [answer.get_attr("MPTCP_PM_ATTR_ADDR") for answer in path_manager.endpoint("show")]
    return [
        Announced(
            endpoint.get_attr("MPTCP_PM_ADDR_ATTR_ADDR4") or endpoint.get_attr("MPTCP_PM_ADDR_ATTR_ADDR6"),
            endpoint.get_attr("MPTCP_PM_ADDR_ATTR_PORT"),
        )
        for endpoint in endpoints
        if (endpoint.get_attr("MPTCP_PM_ADDR_ATTR_FLAGS") or 0) & _SIGNAL
    ]


def receives_events() -> bool:
    """Whether a program in this network namespace receives the events of MPTCP. Raises KernelError."""
    group = 1 << (events_group() - 1)
    _, *sockets = (line.split() for line in _NETLINK_SOCKETS.read_text(encoding="ascii").splitlines())
    return any(protocol == _NETLINK_GENERIC and int(groups, 16) & group for _, protocol, _, groups, *_ in sockets)


def read_limits() -> Limits:
    """The limits of this network namespace; reading them needs no rights. Raises KernelError."""
    with netlink_call("ip mptcp limits"), timed(MPTCP) as path_manager:
        (answer,) = path_manager.limits("show")
    return Limits(answer.get_attr("MPTCP_PM_ATTR_SUBFLOWS"), answer.get_attr("MPTCP_PM_ATTR_RCV_ADD_ADDRS"))


def judge_limits(limits: Limits, networks: int, *, is_any_throttled: bool = False) -> Iterator[Finding]:
    """What is wrong with limits of the kernel's path manager, for clients with that number of access networks.

    `is_any_throttled`: subflows that the proxy opens are throttled, too.
    """
    needed = networks - 1
    if limits.subflows < needed:
        problem = f"are refused after the first {limits.subflows} of a connection" if limits.subflows else "are refused"
        remedy = f"`ip mptcp limits set subflows {needed}` or more, for connections that begin after that"
        yield Finding("JOINs", problem, remedy, harm=limits.subflows == 0)
    if limits.subflows and limits.add_addr_accepted:
        problem = (
            f"are opened by the proxy itself, to up to {limits.add_addr_accepted} addresses that a client announces"
        )
        if is_any_throttled:
            yield Finding("JOINs", remark=f"{problem}; these are throttled, too")
            return
        remedy = (
            "`ip mptcp limits set add_addr_accepted 0`; only with daemon.classifier: socket or nft are these throttled"
        )
        yield Finding("JOINs", problem, remedy, harm=False)


@of_the_proxy("send buffers")
def send_buffers(_: Host) -> Iterator[Finding]:
    """Whether the send buffers of connections that are capped from the start are large enough."""
    initial = int(_SEND_BUFFERS.read_text(encoding="ascii").split()[1])
    problem = f"start at {initial} bytes: a connection capped from the start may stay slow for long"
    remedy = f"net.ipv4.tcp_wmem {_RECOMMENDED}"
    yield note("send buffers", is_well=initial >= _SEND_BUFFER_BYTES, problem=problem, remedy=remedy)


def clock(host: Host) -> Iterator[Finding]:
    """Whether periods of budgets can begin."""
    config = host.config
    if any(network.budgets for network in config.networks) or any(device.budgets for device in config.devices):
        yield note(
            "clock",
            is_well=not config.daemon.wait_for_clock or is_clock_synchronised(),
            problem="not synchronised, so no period of a budget begins",
            remedy="run chronyd or systemd-timesyncd, or set daemon.wait_for_clock to false",
        )


def respects_notsent_lowat() -> bool:
    """Whether MPTCP on this kernel respects tcp_notsent_lowat: since Linux 6.9 (mptcp_send_limit)."""
    version = re.match(r"(\d+)\.(\d+)", platform.release())
    return version is None or (int(version[1]), int(version[2])) >= _RESPECTS_NOTSENT_LOWAT


@of_the_proxy("unsent data")
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
    if host.config.daemon.backend is BackEnd.OVS:
        yield Finding("root qdisc", remark="is that of Open vSwitch: daemon.backend is ovs")
        return
    try:
        with netlink_call("tc qdisc show"), timed(IPRoute) as ip:
            indices = {link.get_attr("IFLA_IFNAME"): link["index"] for link in ip.get_links()}
            trees = seen_qdiscs(ip)
    except KernelError as error:
        yield Finding("root qdisc", unchecked=str(error))
        return
    daemon = host.config.daemon
    paced = daemon.pacing and daemon.classifier in {ClassifierKind.AUTO, ClassifierKind.SOCKET}
    for name in host.config.proxy.interfaces:
        tree = trees.get(indices.get(name, 0), ())  # no interface has the index 0
        if tree:
            yield judge_qdiscs(name, tree, _transmit_queues(name), force=daemon.replace_any_qdisc, paced=paced)


def _transmit_queues(interface: str) -> int:
    return sum(1 for _ in (_INTERFACES / interface / "queues").glob("tx-*"))


def judge_qdiscs(interface: str, tree: Sequence[SeenQdisc], queues: int, *, force: bool, paced: bool) -> Finding:
    """The finding about an interface with these qdiscs, root first, and this number of transmit queues.

    `force`: the root is replaced whatever it is. `paced`: paces hold caps where there is no HTB.
    """
    subject = f"root qdisc of {interface}"
    if is_own(tree):
        return Finding(subject)
    strange = kind_in_the_way(tree)
    if strange is not None and not force:
        remedy = "replace it by fq_codel or pfifo, or set daemon.replace_any_qdisc"
        effect = (
            "no qdisc guarantees caps there, and limits are not enforced" if paced else "no subflow is throttled there"
        )
        return Finding(subject, f"{strange} cannot be restored exactly, so {effect}", remedy, harm=not paced)
    losses = ", ".join(lost_beside_htb([qdisc.kind for qdisc in tree], queues))
    remarks = [f"while a subflow is throttled, HTB replaces {tree[0].kind}: {losses}"] if losses else []
    if strange is not None:
        remarks.append(f"{strange} cannot be restored exactly, but daemon.replace_any_qdisc is true")
    return Finding(subject, remark="; ".join(remarks) or None)
