#!/usr/bin/env .venv/bin/python
"""Records what the running kernel answers and reports by netlink, for tests/unit/test_damaged_netlink.py; as root, from
the root of the checkout:

    PYTHONPATH=.:daemon:sniffer:lab unshare --net .venv/bin/python tests/fuzz/record_netlink.py

Each file of corpus/netlink is the answer to one request, with sequence number 1, or a notification. corpus/captures has
the frames meanwhile, by tcpdump(8).
"""

from __future__ import annotations

import select
import shlex
import socket
import subprocess
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyroute2.netlink import rtnl

from mptcp_lab.traffic import IPPROTO_MPTCP
from mptcp_sniffer.kernel_events import KernelEventKind, KernelEvents
from mptcp_throttle.linux.inet_diag import SENDING, InetDiag, list_listening
from mptcp_throttle.linux.netlink_codec import messages, pack
from mptcp_throttle.linux.netlink_socket import NetlinkSocket
from mptcp_throttle.model import FourTuple
from mptcp_throttle.ports import Ports
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel import tc
from mptcp_throttled.kernel.classes.nft_elements import encode_map_element
from mptcp_throttled.kernel.classes.nft_tables import OwnTables
from mptcp_throttled.kernel.clsact_filters import Hook
from mptcp_throttled.kernel.htb import htb
from mptcp_throttled.kernel.interfaces import find_interface
from mptcp_throttled.vocabulary import class_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CORPUS: Final = Path(__file__).parent / "corpus" / "netlink"
CAPTURES: Final = CORPUS.with_name("captures")
PORT: Final = 8080
PORTS: Final = Ports.of([PORT])
_UNUSED: Final = Ports.of([1])
_SECONDS: Final = 10.0
_QUIET_SECONDS: Final = 0.2

_received: list[bytes] = []


class RecordingSocket(socket.socket):
    """A socket that keeps what it receives."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        _received.append(data)
        return data


def record(name: str, call: Callable[[], object]) -> None:
    """Write what each request of a call is answered with; several requests count from 1."""
    _received.clear()
    call()
    answers: defaultdict[int, list[bytes]] = defaultdict(list)
    for message in messages(b"".join(_received)):
        answers[message.sequence].append(pack(message.type, message.flags, 1, message.payload))
    for number, answer in enumerate(answers.values(), 1):
        (CORPUS / (name if len(answers) == 1 else f"{name}-{number}")).write_bytes(b"".join(answer))


def run(*commands: str) -> None:
    for command in commands:
        subprocess.run(shlex.split(command), check=True)


def record_subflows() -> None:
    run(
        "ip address add fd00::1/128 dev lo",
        "ip address add fd00::2/128 dev lo",
        "ip mptcp limits set subflows 2 add_addr_accepted 2",
        "ip mptcp endpoint add 127.0.0.2 id 1 subflow",
        "ip mptcp endpoint add fd00::2 id 2 subflow",
    )
    listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, IPPROTO_MPTCP)
    listener.bind(("::", PORT))
    listener.listen()
    with KernelEvents(_UNUSED) as events, InetDiag() as diag:
        opened = []
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "fd00::1")):
            client = socket.socket(family, socket.SOCK_STREAM, IPPROTO_MPTCP)
            client.connect((address, PORT))
            proxy, _ = listener.accept()
            for sender, other in ((client, proxy), (proxy, client)):
                sender.sendall(bytes(100))
                other.recv(100)
            opened += [client, proxy]
        record_events(events, KernelEventKind.ESTABLISHED)
        first = next(iter(list(diag.sockets(SENDING, (), PORTS))))
        record("sockets", lambda: list(diag.sockets(SENDING, (), PORTS)))
        record("listeners", lambda: list(list_listening(diag)))
        record("socket", lambda: diag.find(first.local, PORT, first.remote, first.remote_port, ()))
        run("ip mptcp endpoint change id 1 backup", "ip mptcp endpoint change id 2 backup")
        record_events(events, KernelEventKind.PRIORITY)
        run("ip mptcp endpoint delete id 1", "ip mptcp endpoint delete id 2")
        record_events(events, KernelEventKind.CLOSED)
    for each in (*opened, listener):
        each.close()


def record_events(events: KernelEvents, kind: KernelEventKind) -> None:
    """Write the first event of this kind for each IP version."""
    missing, deadline = {4, 16}, time.monotonic() + _SECONDS
    while missing:
        ready = select.select([events], [], [], max(deadline - time.monotonic(), 0.0))[0]
        assert ready, f"no event {kind.name} with addresses of {missing} bytes"
        _received.clear()
        for event in events.receive():
            size = len(event.ends.client.address)
            if event.kind is kind and size in missing:
                missing.remove(size)
                (CORPUS / f"event-{kind.name.lower()}-{4 if size == 4 else 6}").write_bytes(_received[0])


def record_traffic_control() -> None:
    loopback, control = find_interface("lo"), tc.TrafficControl()
    control.add_qdisc(loopback, htb.root_qdisc(1), replace=True)
    control.add_filter(loopback, class_ids.HANDLE, htb.mark_filter(class_ids.MarkedTraffic(0xFF00_0000, PORTS)))
    for minor, rate in enumerate((Rate.parse("1mbit"), Rate.parse("40gbit")), 2):
        class_ = tc.add_class(loopback, class_ids.classid(minor), htb.class_options(rate), rate)
        assert control.carry_out([class_, tc.add_qdisc(loopback, htb.leaf_qdisc(minor))]) == [None, None]
    run(
        "ip link add veth0 type veth peer name veth1",
        "ip link set veth0 up",
        "tc qdisc add dev veth0 root handle 1: tbf rate 10mbit burst 10k limit 10k",
        "tc qdisc add dev veth0 parent 1:1 handle 2: pfifo limit 9",
        "tc qdisc add dev lo clsact",
        "tc filter add dev lo ingress bpf bytecode '1,6 0 0 1' flowid 1:1",
    )
    record("qdiscs", control.qdiscs)
    record("classes", lambda: control.htb_classes(loopback))
    record("filters", lambda: control.filters(loopback, class_ids.HANDLE))
    record("ingress", lambda: control.filters(loopback, Hook.INGRESS.value))
    unknown = tc.Qdisc("unknown", 0, class_ids.classid(2), None)
    record("refusal", lambda: control.carry_out([tc.add_qdisc(loopback, unknown, replace=True)]))


def record_notifications() -> None:
    """Write the first notification of each type."""
    groups = rtnl.RTMGRP_LINK | rtnl.RTMGRP_TC | rtnl.RTMGRP_IPV4_IFADDR
    with NetlinkSocket(socket.NETLINK_ROUTE, groups) as subscribed:
        run(
            "ip link add veth2 type veth peer name veth3",
            "ip address add 10.9.9.9/32 dev veth2",
            "tc qdisc add dev veth2 root pfifo",
            "ip link delete veth2",
        )
        by_type: dict[int, bytes] = {}
        while select.select([subscribed], [], [], _QUIET_SECONDS)[0]:
            _received.clear()
            for message in subscribed.notifications():
                by_type.setdefault(message.type, _received[0])
    for type_, datagram in by_type.items():
        (CORPUS / f"notification-{type_}").write_bytes(datagram)


def record_nftables() -> None:
    tables = OwnTables()
    local = bytes([10, 3, 0, 2]), PORT
    subflows = [FourTuple.of(bytes([10, 1, 0, number]), 40000 + number, *local) for number in range(2)]
    tables.make(4, [encode_map_element(subflow, number) for number, subflow in enumerate(subflows, 2)])
    record("table", lambda: tables.is_as_made(4))
    record("elements", lambda: list(tables.elements(4)))
    record("generation", tables.generation)


@contextmanager
def captured(interface: str) -> Iterator[None]:
    """Write the frames of an interface meanwhile."""
    path = str(CAPTURES / f"{interface}.pcap")
    command = ["tcpdump", "--immediate-mode", "-U", "-Z", "root", "-i", interface, "-w", path, f"port {PORT}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tcpdump:
        assert tcpdump.stderr is not None
        assert any("listening on" in line for line in tcpdump.stderr)
        yield
        tcpdump.terminate()


def main() -> None:
    for directory in (CORPUS, CAPTURES):
        directory.mkdir(parents=True, exist_ok=True)
    socket.socket = RecordingSocket  # type: ignore[misc]
    run("ip link set lo up")
    with captured("lo"), captured("any"):
        record_subflows()
    record_traffic_control()
    record_notifications()
    record_nftables()


if __name__ == "__main__":
    main()
