"""What the daemon does with the program for uplinks, and the ACKs to the clients of a killed daemon."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from examples import ends_of
from polling import eventually
from refusals import refused
from scapy.data import ETH_P_IP
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from tun_interface import tun

from mptcp_lab.host import Host
from mptcp_lab.namespaces import in_namespace
from mptcp_lab.traffic import IPPROTO_MPTCP
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import FourTuple, RateKind
from mptcp_throttle.ports import Ports
from mptcp_throttle.units import Rate
from mptcp_throttled.kernel.clsact_filters import ClsactFilters
from mptcp_throttled.kernel.uplink.acks import Ack, list_acks
from mptcp_throttled.kernel.uplink.announced_windows import read_announced_windows
from mptcp_throttled.kernel.uplink.uplinks import Uplinks
from mptcp_throttled.vocabulary.decision import Share, Throttle

TUNSETLINK, ARPHRD_CAN = 0x400454CD, 280  # include/uapi/linux/if_tun.h, if_arp.h
ONE, OTHER = ends_of(), ends_of(port=40001)


def throttle(who: str) -> Throttle:
    return Throttle(Share("lte", RateKind.UPLINK_CAP, who), Rate.parse("1mbit"))


@pytest.fixture
def entered(host: Host) -> Iterator[Host]:
    """The host, in whose network namespace the test runs."""
    with in_namespace(host.namespace):
        yield host


@pytest.fixture
def filters(entered: Host, tmp_path: Path) -> Iterator[ClsactFilters]:  # noqa: ARG001
    with closing(ClsactFilters(tmp_path)) as filters:
        yield filters


@pytest.fixture
def uplinks(filters: ClsactFilters) -> Iterator[Uplinks]:
    uplinks = Uplinks(("eth0",), filters)
    uplinks.attach()
    yield uplinks
    uplinks.release()


def test_share_that_was_refused_does_not_end_the_daemon(uplinks: Uplinks) -> None:
    for ends_, who in ((ONE, "one"), (OTHER, "other")):
        with refused("bpf map update", number=errno.ENOMEM), pytest.raises(KernelError):
            uplinks.throttle({ends_: throttle(who)})
    uplinks.throttle({ONE: throttle("one")})
    uplinks.throttle({ONE: None})
    eventually(uplinks.detach_if_told, "nothing left")


def test_share_keeps_its_debt_for_a_while(uplinks: Uplinks) -> None:
    uplinks.linger = 60.0
    uplinks.throttle({ONE: throttle("one")})
    uplinks.forget([ONE])
    assert not uplinks.detach_if_told()
    uplinks.linger = 0.0
    assert uplinks.detach_if_told()


def test_program_goes_when_no_uplink_is_throttled(uplinks: Uplinks) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    uplinks.release()
    eventually(lambda: "reminder" not in {thread.name for thread in threading.enumerate()}, "the thread ended")
    before = descriptors()
    for _ in range(10):
        uplinks.attach()
        uplinks.throttle({ONE: throttle("one")})
        assert descriptors() > before
        uplinks.release()
    eventually(lambda: descriptors() == before, "all programs and maps closed", seen=descriptors)


def test_interface_of_an_unknown_link_type_is_refused(entered: Host, filters: ClsactFilters) -> None:
    with tun(entered.namespace, "tun0") as descriptor:
        fcntl.ioctl(descriptor, TUNSETLINK, ARPHRD_CAN)
        with pytest.raises(KernelError, match="tun0, whose link type is not supported"):
            Uplinks(("tun0",), filters).attach()
        assert "clsact" not in entered.run("tc", "qdisc", "show", "dev", "tun0").stdout


def test_clsact_goes_if_the_filter_is_refused(entered: Host, filters: ClsactFilters) -> None:
    uplinks = Uplinks(("eth0",), filters)
    with refused("tc filter add dev eth0 bpf", number=errno.ENOMEM), pytest.raises(KernelError):
        uplinks.attach()
    uplinks.release()
    assert "clsact" not in entered.run("tc", "qdisc", "show", "dev", "eth0").stdout


@pytest.mark.parametrize("timestamps", [None, (1, 2**32 - 1)])
@pytest.mark.parametrize("version", [4, 6])
def test_ack_of_a_killed_daemons_client_is_a_valid_packet(version: int, timestamps: tuple[int, int] | None) -> None:
    packet = Ack(ends_of(version), 2**32 - 1, 77, 500, timestamps).packet()
    ip = (IP if version == 4 else IPv6)(packet)
    assert (ip[TCP].seq, ip[TCP].ack, ip[TCP].window, ip[TCP].flags) == (2**32 - 1, 77, 500, "A")
    assert ip[TCP].dataofs == (6 if timestamps is None else 9)
    assert packet.endswith(bytes.fromhex("011e0350"))
    computed = ip.copy()
    del computed[TCP].chksum
    assert type(ip)(bytes(computed))[TCP].chksum == ip[TCP].chksum


@pytest.mark.parametrize("listens_on", ["127.0.0.1", "::", "::1"])
def test_scale_and_round_trip_of_announced_windows_are_those_of_the_socket(entered: Host, listens_on: str) -> None:
    family = socket.AF_INET if "." in listens_on else socket.AF_INET6
    address = "::1" if listens_on == "::1" else "127.0.0.1"
    with closing(socket.create_server((listens_on, 0), family=family, dualstack_ipv6=listens_on == "::")) as listener:
        # The window of a SYN follows the receive buffer; both ends have their own scale.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 300_000)
        port = listener.getsockname()[1]
        ends_of_client = FourTuple.of(address, 1, address, port)
        assert read_announced_windows([ends_of_client]) == ({}, None), "a socket that listens is none"
        with closing(socket.create_connection((address, port))) as client, closing(listener.accept()[0]):
            ends_of_client = FourTuple.of(address, client.getsockname()[1], address, port)
            shown = entered.run("ss", "-tinHO", "sport", "=", f":{port}").stdout
            (scale,) = re.findall(r"wscale:\d+,(\d+)", shown)
            (round_trip,) = re.findall(r"minrtt:([\d.]+)", shown)
            windows, error = read_announced_windows([ends_of_client, FourTuple.of(address, 1, address, port)])
            assert error is None
            assert windows.keys() == {ends_of_client}
            assert windows[ends_of_client].scale == int(scale)
            assert windows[ends_of_client].round_trip_us == pytest.approx(float(round_trip) * 1000)


def test_socket_in_time_wait_or_that_cannot_be_looked_up_has_no_window(entered: Host) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        ends_of_client = FourTuple.of("127.0.0.1", client.getsockname()[1], "127.0.0.1", port)
        accepted, _ = listener.accept()
        with refused("ss -t", number=errno.ENOMEM):
            windows, error = read_announced_windows([ends_of_client])
        assert windows == {}
        assert error is not None
        windows, error = read_announced_windows([ends_of_client])
        assert windows.keys() == {ends_of_client}
        assert error is None
        accepted.close()  # first, so that it is this end that waits
        client.close()
        eventually(lambda: "TIME-WAIT" in entered.run("ss", "-tanH").stdout, "the socket in TIME_WAIT")
        assert read_announced_windows([ends_of_client]) == ({}, None)


def test_free_subflow_is_forgotten_only_when_it_has_no_socket(uplinks: Uplinks) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address, port = listener.getsockname()
        with closing(socket.create_connection((address, port))) as client, closing(listener.accept()[0]):
            lives = FourTuple.of(address, client.getsockname()[1], address, port)
            uplinks.throttle({lives: throttle("one"), OTHER: throttle("other")})
            with refused("ss -t", number=errno.ENOMEM), pytest.raises(KernelError):
                uplinks.forget_ended([lives, OTHER])
            uplinks.forget_ended([lives, OTHER])
            assert {*uplinks.acknowledged()} == {lives}


def test_half_open_socket_has_no_window(entered: Host) -> None:
    """Whoever sends a SYN alone makes one."""
    with tun(entered.namespace, "tun0") as other_end:
        entered.ip(["address add 192.0.2.1/24 dev tun0", "link set tun0 up"])
        with closing(socket.create_server(("192.0.2.1", 0))) as listener:
            port = listener.getsockname()[1]
            syn = IP(src="192.0.2.9", dst="192.0.2.1") / TCP(sport=40009, dport=port, flags="S", seq=1)
            os.write(other_end, bytes(syn))
            eventually(lambda: "SYN-RECV" in entered.run("ss", "-tanH").stdout, "half open")
            assert read_announced_windows([FourTuple.of("192.0.2.9", 40009, "192.0.2.1", port)]) == ({}, None)


@contextmanager
def connected_by_mptcp() -> Iterator[tuple[socket.socket, int]]:
    """The client's socket of a connection over lo on which nothing was sent yet, and the port at the other end."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP) as listener,
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP) as client,
    ):
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        client.connect(("127.0.0.1", port))
        accepted, _ = listener.accept()
        with accepted:
            yield client, port


def test_only_subflows_on_which_the_client_has_sent_are_listed(entered: Host) -> None:  # noqa: ARG001
    with connected_by_mptcp() as (client, port):
        assert listed(port) == []
        client.sendall(b"x")
        eventually(lambda: len(listed(port)) == 1, "listed")
        assert listed(port)[0].client.port == client.getsockname()[1]


@contextmanager
def timestamps(host: Host, are_used: bool) -> Iterator[None]:
    """Whether connections that begin now have TCP's time stamps."""
    path = "net/ipv4/tcp_timestamps"
    before = host.run("cat", f"/proc/sys/{path}").stdout.strip()
    host.sysctl({path: f"{are_used:d}"})
    try:
        yield
    finally:
        host.sysctl({path: before})


@pytest.mark.parametrize("has_timestamps", [True, False])
def test_listed_ack_is_as_the_kernel_sends_it(entered: Host, has_timestamps: bool) -> None:
    with (
        timestamps(entered, has_timestamps),
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IP)) as capture,
    ):
        capture.bind(("lo", ETH_P_IP))
        with connected_by_mptcp() as (client, port):
            client.sendall(b"x")
            eventually(lambda: len(listed(port)) == 1, "listed")
            sent = None
            while sent is None or sent.flags != "A":
                segment = Ether(capture.recv(2048)).getlayer(TCP)
                sent = segment if segment is not None and segment.sport == port else sent
            (ack,) = list_acks(Ports.of([port]))
    assert ack.window == sent.window
    assert (ack.timestamps is not None) == has_timestamps == ("Timestamp" in dict(sent.options))


def listed(port: int) -> list[FourTuple]:
    return [ack.ends for ack in list_acks(Ports.of([port]))]


def test_renamed_interface_loses_filters_and_clsact(entered: Host, uplinks: Uplinks) -> None:
    uplinks.throttle({ONE: throttle("one")})
    entered.ip(["link set eth0 down", "link set eth0 name other"])
    try:
        uplinks.release()
        assert "clsact" not in entered.run("tc", "qdisc", "show").stdout
    finally:
        entered.ip(["link set other name eth0", "link set eth0 up"])


def test_clients_whose_interface_has_gone_are_known_and_can_be_forgotten(entered: Host, filters: ClsactFilters) -> None:
    uplinks = Uplinks(("tun0",), filters)
    with (
        tun(entered.namespace, "tun0") as other_end,
        closing(socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)) as raw,
    ):
        entered.ip(["link set tun0 addrgenmode none", "link set tun0 up"])
        uplinks.attach()
        uplinks.throttle({ONE: throttle("one"), OTHER: throttle("one")})
        for ends in ONE, OTHER:
            ip = IP(src=str(ends.proxy.address), dst=str(ends.client.address))
            raw.sendto(bytes(ip / TCP(sport=ends.proxy.port, dport=ends.client.port, flags="A")), ("tun0", ETH_P_IP))
            assert os.read(other_end, 100).endswith(bytes.fromhex("011e0351"))
    uplinks.throttle({ONE: None})
    eventually(lambda: not uplinks.detach_if_told() and uplinks.unreached == {ONE}, "one free client out of reach")
    uplinks.forget([ONE, OTHER])
    assert uplinks.detach_if_told()
