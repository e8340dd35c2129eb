"""The programs that keep clients from discarding: which DATA_ACKs are lowered, and which subflows get a keep-alive."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from examples import ETHERNET as ETHERNET_NETWORK
from feature_release import released
from packet_mutations import SegmentLayout, check_harmless
from passing_program import passing_program, programs_at
from polling import eventually
from proxy_world import ProxyWorld
from scapy.data import ETH_P_ALL
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from mptcp_lab.dropped_packets import dropped
from mptcp_lab.host import Host
from mptcp_lab.namespaces import in_namespace
from mptcp_lab.topology import ETHERNET, WIFI, AccessLink, Family, Lab, Topology, build
from mptcp_throttle.linux.libbpf import AttachType
from mptcp_throttle.model import AccessNetwork, RateKind
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import Proxies
from mptcp_throttled.kernel import discards as discard_prevention
from mptcp_throttled.kernel.discards import DiscardPrevention, DiscardPrograms
from mptcp_throttled.kernel.interfaces import find_interface
from mptcp_throttled.vocabulary.counters import DiscardCounters
from mptcp_throttled.vocabulary.features import Situation

PORT: Final = 8080
MPTCP: Final = 262  # IPPROTO_MPTCP
NOP, WINDOW_SCALE, MPTCP_OPTION = 1, 3, 30
FIELDS: Final = {"seq": (4, 4), "ack": (8, 4), "window": (14, 2), "checksum": (16, 2)}
"""Where they are in the TCP header, and their sizes."""
UNSPECIFIED: Final = 0xFFFFFFFF  # TC_ACT_UNSPEC
ATTACHED, DETACHED = [2, 1], [0, 0]
"""How many programs there are at the ingress and the egress."""
UNSEEN_BYTES: Final = 40_000
UPLOADED_BYTES: Final = 3_000_000
SMALLER_BY: Final = 16_384
SHORT_ACK, LONG_ACK = bytes.fromhex("2001"), bytes.fromhex("2003")  # RFC 8684, section 3.3
CLIENTS: Final = replace(ETHERNET_NETWORK, subnets=(ETHERNET.v4, ETHERNET.v6, WIFI.v4, WIFI.v6)).with_rates(
    {RateKind.CAP: None, RateKind.LIMIT: None}
)
NO_CLIENTS: Final = replace(CLIENTS, subnets=())


class Connection(NamedTuple):
    """An MPTCP connection: the sockets of both ends."""

    client: socket.socket
    proxy: socket.socket


@pytest.fixture
def lab() -> Iterator[Lab]:
    with build(Topology()) as lab:
        yield lab


@contextmanager
def connected(lab: Lab, family: Family = 4, protocol: int = MPTCP, link: AccessLink = ETHERNET) -> Iterator[Connection]:
    """An accepted connection over that access network, on which nothing has been sent."""
    with ExitStack() as open_sockets:
        kind = socket.AF_INET if family == 4 else socket.AF_INET6
        with in_namespace(lab.proxy.namespace):
            listener = open_sockets.enter_context(socket.socket(kind, socket.SOCK_STREAM, protocol))
        with in_namespace(lab.client.namespace):
            client = open_sockets.enter_context(socket.socket(kind, socket.SOCK_STREAM, protocol))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(lab.proxy_address(family)), PORT))
        listener.listen()
        client.bind((str(lab.client.address(link, family)), 0))
        client.settimeout(10)
        client.connect(listener.getsockname())
        proxy = open_sockets.enter_context(listener.accept()[0])
        yield Connection(client, proxy)


def exchange(connection: Connection) -> None:
    """Each end sends a byte and receives one."""
    client, proxy = connection
    client.sendall(b"?")
    assert proxy.recv(1) == b"?"
    proxy.sendall(b"!")
    assert client.recv(1) == b"!"


@contextmanager
def attached(lab: Lab) -> Iterator[DiscardPrograms]:
    """The programs at the proxy's interface."""
    with ExitStack() as open_links:
        with in_namespace(lab.proxy.namespace):
            program = open_links.enter_context(closing(DiscardPrograms(Proxies.only(Ports.of([PORT])))))
            program.set_networks((CLIENTS,))
            for link in program.attach(find_interface("eth0")):
                open_links.callback(os.close, link)
        yield program


def attached_programs(lab: Lab, interface: str = "eth0") -> list[int]:
    """How many programs there are at the ingress and egress of an interface of the proxy."""
    libbpf = ctypes.CDLL("libbpf.so.1")
    counts = []
    with in_namespace(lab.proxy.namespace):
        for attach_type in AttachType:
            count = ctypes.c_uint32()
            index = find_interface(interface).index
            assert libbpf.bpf_prog_query(index, attach_type.value, 0, None, None, ctypes.byref(count)) == 0
            counts.append(count.value)
    return counts


@contextmanager
def captured(host: Host) -> Iterator[socket.socket]:
    """A socket that has all frames of the host's eth0 from now on."""
    with in_namespace(host.namespace):
        capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with capture:
        capture.bind(("eth0", ETH_P_ALL))
        capture.setblocking(False)
        yield capture


def frames(capture: socket.socket) -> list[Packet]:
    received = []
    while True:
        try:
            received.append(Ether(capture.recv(2048)))
        except BlockingIOError:
            return received


def tcp_dropped(host: Host) -> AbstractContextManager[None]:
    """The host drops all TCP segments that arrive on its eth0."""
    return dropped(host, "INPUT", "-i", "eth0", "-p", "tcp", commands=("iptables", "ip6tables"))


class Segment:
    """A frame with a TCP segment, for changed copies of it. Its bytes are taken apart here: a test that has added
    MPTCP to Scapy in this process changes how Scapy shows options."""

    def __init__(self, frame: bytes) -> None:
        layout = SegmentLayout.of(frame)
        assert layout is not None, frame.hex()
        self.frame, self._layout = frame, layout

    @property
    def window(self) -> int:
        """As in the header, before it is scaled."""
        return int.from_bytes(self._field("window"), "big")

    @property
    def checksum_is_right(self) -> bool:
        return self._layout.residues(self.frame)[1] == 0

    def option(self, kind: int) -> tuple[int, bytes]:
        """Where the option is in the frame, and the bytes after its kind and length."""
        at, end = self._layout.tcp_at + 20, self._layout.data_at
        while at < end and self.frame[at] != kind:
            at += 1 if self.frame[at] == NOP else self.frame[at + 1]
        assert at < end, f"no option of kind {kind}"
        return at, self.frame[at + 2 : at + self.frame[at + 1]]

    def data_ack(self) -> int:
        """Its lower 32 bits."""
        _, dss = self.option(MPTCP_OPTION)
        return int.from_bytes(dss[2:][: 8 if dss[1] & 2 else 4][-4:], "big")

    def copy(self, *, window: int = 0, data: int = 0, ack: int = 0, seq: int = 0, short: bool = False) -> Segment:
        """With a larger window, in units of the header, a DATA_ACK and numbers of TCP that are larger by so many bytes.

        `short`: with a DATA_ACK of four bytes.
        """
        at, dss = self.option(MPTCP_OPTION)
        assert dss[:2] == LONG_ACK
        value = ((int.from_bytes(dss[2:], "big") + data) % (1 << 64)).to_bytes(8, "big")
        long = bytes([MPTCP_OPTION, 12]) + LONG_ACK + value
        option = bytes([MPTCP_OPTION, 8]) + SHORT_ACK + value[4:] + bytes([NOP] * 4) if short else long
        changed = Segment(self.frame[:at] + option + self.frame[at + len(option) :])
        for name, by in (("window", window), ("ack", ack), ("seq", seq)):
            changed = changed.with_field(name, int.from_bytes(self._field(name), "big") + by)
        return Segment(self._layout.with_right_checksum(changed.frame))

    def with_field(self, name: str, number: int) -> Segment:
        """With that number in a field of the TCP header."""
        start, size = self.place(name)
        return Segment(
            self.frame[:start] + (number % (1 << 8 * size)).to_bytes(size, "big") + self.frame[start + size :]
        )

    def without(self, *spans: tuple[int, int]) -> bytes:
        """The frame with zeros at these places, each a start and a size."""
        changed = bytearray(self.frame)
        for start, size in spans:
            changed[start : start + size] = bytes(size)
        return bytes(changed)

    def place(self, name: str) -> tuple[int, int]:
        """Where a field of the TCP header is in the frame, and its size."""
        start, size = FIELDS[name]
        return self._layout.tcp_at + start, size

    def _field(self, name: str) -> bytes:
        start, size = self.place(name)
        return self.frame[start : start + size]


class LastAck(NamedTuple):
    """The programs, and the last ACK of a client that gets nothing any more.

    `excess`: how much larger the window of the proxy's socket is than one that is SMALLER_BY bytes below the ACK's.
    """

    program: DiscardPrograms
    segment: Segment
    scale: int
    excess: int

    def lowered_by(self, *, window: int = 0, data: int = 0, ack: int = 0, seq: int = 0, short: bool = False) -> int:
        """By how many bytes the program lowers the DATA_ACK of a changed copy; it changes nothing else.

        `window` is in bytes.
        """
        before = self.segment.copy(window=window >> self.scale, data=data, ack=ack, seq=seq, short=short)
        verdict, frame = self.program.object.run("lower_data_acks", before.frame)
        after = Segment(frame)
        assert verdict == UNSPECIFIED
        assert after.checksum_is_right
        at, dss = before.option(MPTCP_OPTION)
        changed = (at + 4, len(dss) - 2), before.place("checksum")
        assert after.without(*changed) == before.without(*changed)
        return (before.data_ack() - after.data_ack()) % (1 << 32)


@contextmanager
def last_ack(lab: Lab, family: Family = 4, network: AccessNetwork = CLIENTS) -> Iterator[LastAck]:
    """A client's last ACK; the proxy has sent UNSEEN_BYTES bytes since, and the client has none of them."""
    lab.client.ip(["mptcp endpoint flush"])
    with captured(lab.proxy) as capture, connected(lab, family) as connection:
        exchange(connection)
        port = connection.client.getsockname()[1]
        sockets = "ss", "-tinH", "dport", "=", f":{port}"
        eventually(lambda: "bytes_acked:1 " in lab.proxy.run(*sockets).stdout, "acknowledged")
        seen = [Segment(bytes(frame)) for frame in frames(capture) if TCP in frame and frame[TCP].sport == port]
        segment, (_, (scale,)) = seen[-1], seen[0].option(WINDOW_SCALE)
        with (
            tcp_dropped(lab.client),
            in_namespace(lab.proxy.namespace),
            closing(DiscardPrograms(Proxies.only(Ports.of([PORT])))) as program,
        ):
            program.set_networks((network,))
            # Before MPTCP raises the window of the socket, as it may when it sends.
            program.object.run("lower_data_acks", segment.frame)
            connection.proxy.sendall(bytes(UNSEEN_BYTES))
            window = re.search(r"snd_wnd:(\d+)", lab.proxy.run(*sockets).stdout)
            assert window is not None
            excess = int(window[1]) - (segment.window << scale) + SMALLER_BY
            yield LastAck(program, segment, scale, excess)


@pytest.fixture
def last(lab: Lab) -> Iterator[LastAck]:
    with last_ack(lab) as last:
        yield last


@pytest.mark.parametrize("family", [4, 6])
def test_data_ack_is_lowered_when_tcp_ignores_the_window(lab: Lab, family: Family) -> None:
    with last_ack(lab, family) as last:
        assert last.lowered_by(window=-SMALLER_BY, data=20_000) == last.excess
        assert last.lowered_by(window=-SMALLER_BY, data=20_000, short=True) == last.excess
        # No lower than where the end of the window has already been.
        allowed = 10_000 - last.lowered_by(window=-SMALLER_BY, data=10_000)
        assert 0 <= allowed < 10_000
        assert last.lowered_by(window=-SMALLER_BY, data=allowed) == 0
        assert last.lowered_by(window=-SMALLER_BY, data=allowed + 1) == 1
        assert last.program.counters() == DiscardCounters(lowered=4, keep_alives=0)


def test_data_ack_stays_when_tcp_takes_the_window(lab: Lab) -> None:
    for window, ack, seq in ((SMALLER_BY, 0, 0), (-SMALLER_BY, 1, 0), (-SMALLER_BY, 0, 1)):
        with last_ack(lab) as last:
            assert last.lowered_by(data=20_000, window=window, ack=ack, seq=seq) == 0


def test_data_ack_of_all_that_was_written_stays(last: LastAck) -> None:
    assert last.lowered_by(window=-SMALLER_BY, data=UNSEEN_BYTES) == 0
    # Or of all but a DATA_FIN.
    assert last.lowered_by(window=-SMALLER_BY, data=UNSEEN_BYTES - 1) == 0
    assert last.lowered_by(window=-SMALLER_BY, data=UNSEEN_BYTES - 2) == last.excess


def test_window_of_a_segment_counts_before_the_socket_has_processed_it(last: LastAck) -> None:
    assert last.lowered_by(window=4096, data=5000, ack=1000) == 0
    # TCP ignores an older acknowledgment, and drops what lies before the receive window.
    assert last.lowered_by(window=8192, ack=500, seq=1) == 0
    assert last.lowered_by(window=8192, ack=2000, seq=-1000) == 0
    # For the socket as it is, this acknowledges something new.
    assert last.lowered_by(window=1024, data=20_000, ack=1000) == 3072


def test_window_update_counts_before_the_socket_has_processed_it(last: LastAck) -> None:
    larger = last.excess - SMALLER_BY + 4096
    assert last.lowered_by(window=larger, data=5000) == 0
    assert last.lowered_by(window=larger - 3072, data=20_000) == 3072


def test_segment_that_closes_the_window_is_not_touched(last: LastAck) -> None:
    closed = -last.segment.window << last.scale
    assert last.lowered_by(window=closed, data=20_000) == 0


def test_bytes_behind_the_packet_do_no_harm(last: LastAck) -> None:
    before = last.segment.copy(window=-SMALLER_BY >> last.scale, data=20_000).frame + bytes(12)
    assert last.program.object.run("lower_data_acks", before) == (UNSPECIFIED, before)


def test_forged_segment_changes_nothing_for_later_ones(last: LastAck) -> None:
    # Of what was never sent; beyond the receive window, and before it; of less than what is acknowledged.
    for ack, seq in ((1 << 30, 0), (1, 1 << 30), (1, -1000), (-1, 1)):
        last.lowered_by(window=SMALLER_BY, ack=ack, seq=seq)
    assert last.lowered_by(window=-SMALLER_BY, data=20_000) == last.excess


SCALE, COOKIE, OFFER = ("WScale", 7), (34, bytes(8)), (MPTCP_OPTION, bytes([1, 0x81]))
SYNS: Final = {
    "data": ((SCALE, OFFER), b"?", 8192 >> 7),
    "cookie": ((OFFER, COOKIE, SCALE), b"", 8192 >> 7),
    "largest scale": ((("WScale", 20), OFFER), b"?", 1),  # beyond 14 it counts as 14 (RFC 7323, section 2.3)
    "no scale": ((OFFER,), b"?", 8192),
    "neither data nor cookie": ((SCALE, OFFER), b"", 8192),
    "no offer of MPTCP": ((SCALE, COOKIE), b"?", 8192),
}


@pytest.mark.parametrize("family", [4, 6])
def test_window_of_a_fast_open_syn_is_divided_by_its_scale(lab: Lab, family: Family) -> None:
    with connected(lab, family):
        assert windows_of_syns(lab, family) == {name: window for name, (_, _, window) in SYNS.items()}
    with connected(lab, family, protocol=socket.IPPROTO_TCP):
        assert set(windows_of_syns(lab, family).values()) == {8192}, "of plain TCP"


def syn(lab: Lab, family: Family, options: tuple[tuple[str | int, int | bytes], ...], payload: bytes) -> Segment:
    """A client's SYN to the proxy."""
    ends = {"src": str(lab.client.address(ETHERNET, family)), "dst": str(lab.proxy_address(family))}
    header = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / (IP(**ends) if family == 4 else IPv6(**ends))
    tcp = TCP(sport=30000, dport=PORT, flags="S", window=8192, options=list(options))
    return Segment(bytes(header / tcp / payload))


def windows_of_syns(lab: Lab, family: Family) -> dict[str, int]:
    """The windows that these SYNs have after the program, which changes nothing else."""
    windows = {}
    with in_namespace(lab.proxy.namespace), closing(DiscardPrograms(Proxies.only(Ports.of([PORT])))) as program:
        program.set_networks((CLIENTS,))
        for name, (options, payload, _) in SYNS.items():
            before = syn(lab, family, options, payload)
            verdict, frame = program.object.run("divide_window", before.frame)
            after, changed = Segment(frame), (before.place("window"), before.place("checksum"))
            assert (verdict, after.checksum_is_right) == (UNSPECIFIED, True), name
            assert after.without(*changed) == before.without(*changed), name
            windows[name] = after.window
    return windows


@pytest.mark.parametrize("family", [4, 6])
def test_no_segment_is_damaged_and_none_of_others_is_changed(lab: Lab, family: Family) -> None:
    with last_ack(lab, family) as last:
        known, run = last.segment.copy(window=-SMALLER_BY >> last.scale, data=20_000).frame, last.program.object.run
        assert check_harmless(lambda frame: run("lower_data_acks", frame)[1], known, seed=family) > 0


@pytest.mark.parametrize("family", [4, 6])
def test_no_syn_is_damaged_and_none_of_others_is_changed(lab: Lab, family: Family) -> None:
    proxy = lab.proxy_address(family).packed
    with (
        connected(lab, family),
        in_namespace(lab.proxy.namespace),
        closing(DiscardPrograms(Proxies.only(Ports.of([PORT])))) as program,
    ):
        program.set_networks((CLIENTS,))
        known = syn(lab, family, (SCALE, OFFER, COOKIE), b"?").frame

        def is_ours(ends: bytes) -> bool:
            return ends[len(proxy) : 2 * len(proxy)] == proxy and ends[-2:] == PORT.to_bytes(2)

        run = program.object.run
        assert check_harmless(lambda frame: run("divide_window", frame)[1], known, seed=family, is_ours=is_ours) > 0


def test_client_in_no_network_is_not_touched(lab: Lab) -> None:
    with last_ack(lab, network=NO_CLIENTS) as last:
        assert last.lowered_by(window=-SMALLER_BY, data=20_000) == 0


def test_plain_tcp_is_not_touched(lab: Lab) -> None:
    with captured(lab.client) as capture, attached(lab) as program:
        with connected(lab, protocol=socket.IPPROTO_TCP) as connection:
            exchange(connection)
        sent = [frame[TCP] for frame in frames(capture) if TCP in frame and frame[TCP].sport == PORT]
        # A keep-alive would have the sequence number of the segment before it, less one.
        assert len(sent) > 2
        assert all((later.seq - earlier.seq) % (1 << 32) < 1 << 31 for earlier, later in pairwise(sent))
        assert program.counters() == DiscardCounters()


def joined(lab: Lab, family: Family) -> list[TCP]:
    """The first six segments of a subflow that joins before the connection has had a DATA_ACK."""
    address = str(lab.client.address(WIFI, family))
    seen: list[TCP] = []
    with captured(lab.proxy) as capture, connected(lab, family) as connection:
        connection.client.sendall(b"?")

        def has_answered() -> bool:
            seen.extend(frame[TCP] for frame in frames(capture) if TCP in frame and address in addresses(frame))
            return len(seen) >= 6

        eventually(has_answered, "the client's answer to the keep-alive")
    return seen[:6]


@pytest.mark.parametrize("family", [4, 6])
def test_keep_alive_follows_the_fourth_packet_of_a_join(lab: Lab, family: Family) -> None:
    with attached(lab) as program:
        segments = joined(lab, family)
        assert program.counters() == DiscardCounters(keep_alives=1)
    flags = ["S", "SA", "A", "A", "A", "A"]
    of_proxy = [False, True, False, True, True, False]
    assert [str(segment.flags) for segment in segments] == flags
    assert [segment.sport == PORT for segment in segments] == of_proxy
    third, fourth, keep_alive, answer = segments[2:]
    assert (fourth.seq - keep_alive.seq, fourth.ack - keep_alive.ack) == (1, 0)
    assert (answer.ack, answer.seq) == (fourth.seq, third.seq)


def test_joined_subflow_gets_one_keep_alive_however_often_it_acknowledges(lab: Lab) -> None:
    with attached(lab) as program, connected(lab) as (client, proxy):
        client.sendall(b"?")
        assert proxy.recv(1) == b"?"
        eventually(lambda: program.counters().keep_alives == 1, "joined")
        upload = threading.Thread(target=client.sendall, args=(bytes(UPLOADED_BYTES),))
        upload.start()
        assert len(read_all(proxy, UPLOADED_BYTES)) == UPLOADED_BYTES
        upload.join()
        received = re.findall(r"bytes_received:(\d+)", lab.proxy.run("ss", "-tinH", "state", "established").stdout)
        assert min(map(int, received)) > 1, "both subflows have carried data"
        assert program.counters().keep_alives == 1


def test_keep_alive_that_passes_the_programs_again_causes_no_other(lab: Lab) -> None:
    with attached(lab) as first, attached(lab) as second:
        segments = joined(lab, 4)
        assert first.counters().keep_alives + second.counters().keep_alives == 1
    assert [segment.sport == PORT for segment in segments[2:]] == [False, True, True, False]


def test_connection_with_a_data_ack_gets_no_keep_alive(lab: Lab) -> None:
    address = lab.client.address(WIFI, 4)
    lab.client.ip(["mptcp endpoint flush"])
    with attached(lab) as program, connected(lab) as connection:
        exchange(connection)
        eventually(lambda: "bytes_acked:1 " in lab.proxy.run("ss", "-tinH").stdout, "acknowledged")
        lab.client.ip([f"mptcp endpoint add {address} dev {WIFI.interface} subflow"])
        eventually(lambda: str(address) in lab.proxy.run("ss", "-tnH", "state", "established").stdout, "joined")
        exchange(connection)
        assert program.counters() == DiscardCounters()


def acknowledged_bytes(lab: Lab) -> list[int]:
    """For each socket of the proxy that has any."""
    return [int(each) for each in re.findall(r"bytes_acked:(\d+) ", lab.proxy.run("ss", "-tinH").stdout)]


def discarded_when_the_first_data_is_late(lab: Lab) -> int:
    """How many packets the client discards when data on a joined subflow arrives before the first data."""
    with connected(lab) as (client, proxy):
        client.sendall(b"?")
        assert proxy.recv(1) == b"?"
        eventually(lambda: lab.proxy.run("ss", "-tnH", "state", "established").stdout.count("\n") == 2, "joined")
        first, second = b"1" * 300, b"2" * 4000
        with tcp_dropped(lab.client):
            # MPTCP's scheduler takes the first subflow for the first piece, and the second for the next.
            proxy.sendall(first)
            proxy.sendall(second)
            eventually(
                lambda: max(acknowledged_bytes(lab), default=0) >= len(second),
                "the second arrived",
                seen=lambda: lab.proxy.run("ss", "-tinH").stdout,
            )
        assert read_all(client, len(first + second)) == first + second
    return lab.client.counter("MPTcpExtNoDSSInWindow")


@pytest.mark.parametrize("with_programs", [True, False])
def test_client_keeps_what_overtakes_the_first_data(lab: Lab, with_programs: bool) -> None:
    with attached(lab) if with_programs else nullcontext():
        assert (discarded_when_the_first_data_is_late(lab) == 0) == with_programs


def test_programs_stay_until_the_last_copy_of_their_links_is_closed(lab: Lab) -> None:
    with attached(lab):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    try:
        assert attached_programs(lab) == ATTACHED
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert attached_programs(lab) == DETACHED


def test_programs_come_before_those_of_others(lab: Lab, tmp_path: Path) -> None:
    both = (AttachType.TCX_INGRESS, AttachType.TCX_EGRESS)
    with ExitStack() as stack:
        foreign = [stack.enter_context(passing_program(lab.proxy, where, tmp_path)) for where in both]
        with attached(lab):
            assert attached_programs(lab) == [programs + 1 for programs in ATTACHED]
            assert [programs_at(lab.proxy, where)[-1] for where in both] == foreign


def test_prevention_follows_networks_and_interfaces(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discard_prevention, "_LOOK_SECONDS", 0.0)
    with in_namespace(lab.proxy.namespace):
        networks = (CLIENTS,)
        with released(DiscardPrevention(Proxies.only(Ports.of([PORT]), ("eth0", "late")))) as prevention:
            prevention.follow(Situation(networks))
            assert (prevention.state.problem, attached_programs(lab)) == (None, ATTACHED)
            lab.proxy.ip(["link add late type veth peer name other"])
            prevention.follow(Situation(networks))
            assert attached_programs(lab, "late") == ATTACHED
            lab.proxy.ip(["link del late"])
            prevention.follow(Situation(networks))
            assert (prevention.state.problem, attached_programs(lab)) == (None, ATTACHED)
            prevention.follow(Situation(()))
            assert (prevention.state.problem, attached_programs(lab)) == (None, DETACHED)


def test_daemon_has_the_programs_attached_unless_it_is_paused(own_world: ProxyWorld) -> None:
    lab, services = own_world.lab, own_world.services
    eventually(lambda: attached_programs(lab) == ATTACHED, "attached")
    assert services.status()["daemon"]["features"]["discards"]["problem"] is None
    services.cli("pause")
    eventually(lambda: attached_programs(lab) == DETACHED, "detached")
    services.cli("resume")
    eventually(lambda: attached_programs(lab) == ATTACHED, "attached again")
    own_world.daemon.kill()
    assert attached_programs(lab) == DETACHED


def addresses(frame: Packet) -> tuple[str, str]:
    layer = frame[IP] if IP in frame else frame[IPv6]
    return layer.src, layer.dst


def read_all(connected: socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = connected.recv(count - len(parts))
        assert part
        parts += part
    return parts
