"""The packet filter, tested in three ways that must agree.

Each frame is filtered by the program in an interpreter, by the program in the kernel (a filter on a Unix datagram
socket needs no privilege, and a datagram can be any bytes), and by an independent parser.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from struct import pack, unpack

import cbpf_interpreter
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from segments import capable_syn, frame, join_syn, join_synack, token

from mptcp_sniffer.packet_filter import SNAP_BYTES, signalling_filter
from mptcp_sniffer.segment import Malformed, parse_ethernet
from mptcp_throttle import steering_mark
from mptcp_throttle.linux.cbpf import Instruction, attach_filter, encode
from mptcp_throttle.linux.link_header import LinkHeader
from mptcp_throttle.ports import Ports

PORTS = Ports.parse([8080, 3128, "20000-20009"])
MANY = Ports(tuple(range(port, port + 5) for port in range(8080, 8720, 10)))
"""As many ranges as the configuration may have."""
PROGRAMS = {link: signalling_filter(PORTS, link=link) for link in LinkHeader}
ETHERNET_BYTES = 14
OPTION_BYTES = 40

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
OTHER_FLAGS = 0xF8
END, NOP = b"\0", b"\1"
TIMESTAMPS = bytes([8, 10]) + bytes(8)
DSS = bytes([30, 20, 0x20, 0x05]) + bytes(16)
PRIO = bytes([30, 3, 0x51])
APPENDED = NOP + PRIO
DATA = b"data" * 350


def tcp(
    options: bytes = b"",
    payload: bytes = DATA,
    *,
    flags: int = ACK,
    sport: int = 40000,
    dport: int = 8080,
    words: int = 0,
) -> bytes:
    """A segment; `options` are padded with NOPs. `words` replaces the right data offset."""
    options += NOP * (-len(options) % 4)
    words = words or 5 + len(options) // 4
    # Reserved bits and an urgent pointer are set: the filter must ignore them.
    return pack("!HHIIBBHHH", sport, dport, 1, 1, words << 4 | 0xF, flags, 65535, 0, 9) + options + payload


def ipv4(payload: bytes, options: bytes = b"", *, fragment: int = 0x4000, protocol: int = 6, first: int = 0) -> bytes:
    """`first` replaces the right first byte, version and header length."""
    first = first or 0x45 + len(options) // 4
    header = pack("!BBHHHBBH4s4s", first, 0, 0, 0, fragment, 64, protocol, 0, b"\x0a\x01\x00\x02", b"\x0a\x03\x00\x02")
    return header + options + payload


def ipv6(payload: bytes, *, next_header: int = 6, version: int = 6) -> bytes:
    return pack("!IHBB", version << 28, len(payload), next_header, 64) + bytes(32) + payload


def ethernet(packet: bytes, *tags: int, ethertype: int = 0) -> bytes:
    """A frame with VLAN tags of these types, the outermost first."""
    ethertype = ethertype or (0x86DD if packet[0] >> 4 == 6 else 0x0800)
    return bytes(12) + b"".join(pack("!HH", tag, 5) for tag in tags) + pack("!H", ethertype) + packet


def carrying(*options: bytes) -> bytes:
    """A data segment with these options."""
    return ethernet(ipv4(tcp(b"".join(options))))


def from_proxy(*options: bytes) -> bytes:
    """A segment of the proxy with these options."""
    return ethernet(ipv4(tcp(b"".join(options), b"", sport=8080, dport=40000)))


PASS = {
    "SYN": frame("10.1.0.2", 40000, "10.3.0.2", 8080, "S", capable_syn()),
    "SYN over IPv6": frame("fd00:1::2", 40000, "fd00:3::2", 8080, "S", join_syn(token())),
    "SYN/ACK of the proxy": frame("10.3.0.2", 8080, "10.1.0.2", 40000, "SA", join_synack()),
    "SYN of plain TCP": ethernet(ipv4(tcp(flags=SYN))),
    "the first port of a range": ethernet(ipv4(tcp(flags=SYN, dport=20000))),
    "from the last port of a range": ethernet(ipv4(tcp(flags=SYN, sport=20009, dport=40000))),
    "FIN": ethernet(ipv4(tcp(DSS, flags=FIN | ACK))),
    "RST": ethernet(ipv4(tcp(flags=RST))),
    "the second port": ethernet(ipv4(tcp(PRIO, dport=3128))),
    "from the second port": ethernet(ipv4(tcp(PRIO, sport=3128, dport=40000))),
    "MP_CAPABLE of a third ACK": carrying(bytes([30, 20, 0x01, 0x81]) + bytes(16)),
    "MP_JOIN of a third ACK": carrying(bytes([30, 24, 0x10, 0]) + bytes(20)),
    "ADD_ADDR": carrying(bytes([30, 16, 0x30, 3]) + bytes(12)),
    "REMOVE_ADDR": carrying(bytes([30, 4, 0x40, 3])),
    "MP_PRIO": carrying(PRIO),
    "MP_FAIL": carrying(bytes([30, 12, 0x60, 0]) + bytes(8)),
    "MP_FASTCLOSE": carrying(bytes([30, 12, 0x70, 0]) + bytes(8)),
    "MP_TCPRST": carrying(bytes([30, 4, 0x80, 1])),
    "MP_PRIO of the proxy's kernel": from_proxy(DSS, PRIO),
    "MP_PRIO behind a NOP, of a client": carrying(DSS, APPENDED),
    **{
        f"MP_PRIO behind a NOP, of a client's port {port}": ethernet(ipv4(tcp(DSS + APPENDED, sport=port)))
        for port in (443, 5000, 9999, 20010)
    },
    "another option of the proxy behind a NOP": from_proxy(DSS, NOP, bytes([30, 3, 0x41])),
    "MP_PRIO of the proxy behind another option": from_proxy(TIMESTAMPS, bytes([8, 3, 0]), PRIO),
    "REMOVE_ADDR before the appended MP_PRIO": from_proxy(bytes([30, 4, 0x40, 3]), APPENDED),
    "MP_PRIO before the appended one": from_proxy(PRIO, NOP, APPENDED),
    "after DSS": carrying(DSS, PRIO),
    "before DSS": carrying(PRIO, DSS),
    "after timestamps": carrying(NOP, NOP, TIMESTAMPS, PRIO),
    "after an MPTCP option too short for a subtype": carrying(bytes([30, 2]), PRIO),
    "in the last three bytes": carrying(NOP * 37, PRIO),
    "in the last three bytes of the frame": ethernet(ipv4(tcp(NOP * 37 + PRIO, b""))),
    "IPv4 options": ethernet(ipv4(tcp(PRIO), NOP * 40)),
    "a first fragment": ethernet(ipv4(tcp(PRIO), fragment=0x2000)),
    "IPv6": ethernet(ipv6(tcp(PRIO))),
    "a VLAN": ethernet(ipv4(tcp(PRIO)), 0x8100),
    "a provider's VLAN": ethernet(ipv6(tcp(PRIO)), 0x88A8),
    "a VLAN in a provider's VLAN": ethernet(ipv4(tcp(PRIO)), 0x88A8, 0x8100),
    "a provider's VLAN in another": ethernet(ipv4(tcp(PRIO)), 0x88A8, 0x88A8),
    "a VLAN in a VLAN": ethernet(ipv6(tcp(PRIO)), 0x8100, 0x8100),
}

REJECT = {
    "data": carrying(DSS),
    "data of plain TCP": carrying(NOP, NOP, TIMESTAMPS),
    "an acknowledgment": ethernet(ipv4(tcp(DSS, b""))),
    "an acknowledgment without options": ethernet(ipv4(tcp(b"", b""))),
    "two DSS": carrying(DSS, DSS),
    "DSS with reserved bits": carrying(bytes([30, 4, 0x2F, 0])),
    "flags that neither open nor close": ethernet(ipv4(tcp(DSS, flags=OTHER_FLAGS))),
    "MP_PRIO appended to an acknowledgment": from_proxy(DSS, APPENDED),
    "MP_PRIO appended to an acknowledgment from a range": ethernet(
        ipv4(tcp(DSS + APPENDED, b"", sport=20005, dport=40000))
    ),
    "MP_PRIO appended to an acknowledgment from the second port": ethernet(
        ipv4(tcp(DSS + APPENDED, b"", sport=3128, dport=40000))
    ),
    "MP_PRIO appended to the longest options": from_proxy(NOP * 36, APPENDED),
    "other ports": ethernet(ipv4(tcp(flags=SYN, sport=8081, dport=443))),
    "ports beside a range": ethernet(ipv4(tcp(flags=SYN, sport=19999, dport=20010))),
    "ports below all": ethernet(ipv4(tcp(flags=SYN, sport=443, dport=80))),
    "ports between": ethernet(ipv4(tcp(flags=SYN, sport=5000, dport=9999))),
    "other ports between": ethernet(ipv4(tcp(flags=SYN, sport=9999, dport=5000))),
    "ports above all": ethernet(ipv4(tcp(flags=SYN, sport=40000, dport=40001))),
    "UDP": ethernet(ipv4(tcp(flags=SYN), protocol=17)),
    "UDP over IPv6": ethernet(ipv6(tcp(flags=SYN), next_header=17)),
    "TCP behind an IPv6 extension header": ethernet(ipv6(bytes([6, 0]) + bytes(6) + tcp(flags=SYN), next_header=0)),
    "a later fragment": ethernet(ipv4(tcp(flags=SYN), fragment=0x2001)),
    "the last fragment": ethernet(ipv4(tcp(flags=SYN), fragment=0x1000)),
    "ARP": ethernet(ipv4(tcp(flags=SYN)), ethertype=0x0806),
    "ARP in a VLAN": ethernet(ipv4(tcp(flags=SYN)), 0x8100, ethertype=0x0806),
    "ARP in two VLANs": ethernet(ipv4(tcp(flags=SYN)), 0x88A8, 0x8100, ethertype=0x0806),
    "a third VLAN tag": ethernet(ipv4(tcp(flags=SYN)), 0x88A8, 0x8100, 0x8100),
    "IP version 5": ethernet(ipv6(tcp(flags=SYN), version=5), ethertype=0x86DD),
    "an IPv4 header that is too short": ethernet(ipv4(tcp(flags=SYN), first=0x44)),
    "a TCP header that is too short": ethernet(ipv4(tcp(flags=SYN, words=4))),
    "after the end of options": carrying(END, PRIO),
    "after length 0": carrying(bytes([8, 0]), PRIO),
    "after length 1": carrying(bytes([8, 1]), PRIO),
    "of length 0": carrying(bytes([30, 0, 0x51])),
    "of length 1": carrying(bytes([30, 1, 0x51])),
    "of length 2": carrying(bytes([30, 2, 0x51])),
    "beyond the header": ethernet(ipv4(tcp(bytes([30, 5, 0x51, 0])))),
    "beyond the longest header": carrying(NOP * 37, bytes([30, 4, 0x51])),
    "in the payload": ethernet(ipv4(tcp(b"", PRIO))),
    "across the payload": ethernet(ipv4(tcp(NOP * 2 + bytes([30, 3]), bytes([0x51])))),
    "after an option that goes on in the payload": carrying(NOP, bytes([8, 40]), PRIO),
}

# Every way through one round of the walk, in every round, with something to find behind it where there is room.
EVERYWHERE = [
    ethernet(ipv4(tcp((NOP * start + option + PRIO)[:OPTION_BYTES], payload)))
    for start in range(OPTION_BYTES)
    for option in (b"", END, bytes([8, 3, 0]), bytes([8, 1]), bytes([30, 1]), bytes([30, 2]), bytes([30, 3, 0x2F]))
    for payload in (b"", DATA)
]
# The last option ends where the header ends, whichever round that is.
FILLED = [NOP * start + bytes([8, 2 + -(start + 2) % 4]) for start in range(OPTION_BYTES - 2)]
EXAMPLES = [*PASS.values(), *REJECT.values(), *EVERYWHERE, *map(carrying, FILLED)]


def options_of(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Kind, body and end of each option; like in the kernel, invalid and truncated ones end the list."""
    whole = len(data)
    while data and data[0] != 0:
        if data[0] == 1:
            data = data[1:]
            continue
        if len(data) < 2 or not 2 <= data[1] <= len(data):
            return
        yield data[0], data[2 : data[1]], whole - len(data) + data[1]
        data = data[data[1] :]


def signals(ethernet_frame: bytes) -> bool:
    """Whether the filter must accept the frame, by an independent parser."""
    try:
        segment = parse_ethernet(ethernet_frame)
    except Malformed:
        return False
    if segment is None or not {segment.source.port, segment.destination.port} & set(PORTS):
        return False
    if segment.flags & (FIN | SYN | RST):
        return True
    ends = [end for kind, body, end in options_of(segment.options) if kind == 30 and body and body[0] >> 4 != 2]
    is_appended = (
        segment.source.port in PORTS and segment.options[-4:-1] == APPENDED[:3] and segment.options[-1] >> 4 == 5
    )
    return bool(ends) and not (is_appended and ends[0] == len(segment.options))


class Kernel:
    """A socket with the filter in the kernel: `kept` returns what is left of a frame."""

    def __init__(self, program: tuple[Instruction, ...]) -> None:
        self._near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.far.setblocking(False)
        attach_filter(self.far, program)

    def kept(self, data: bytes) -> bytes:
        self._near.send(data)
        try:
            return self.far.recv(65536)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        self._near.close()
        self.far.close()


@pytest.fixture(scope="module")
def kernels() -> Iterator[dict[LinkHeader, Kernel]]:
    running = {link: Kernel(program) for link, program in PROGRAMS.items()}
    yield running
    for kernel in running.values():
        kernel.close()


def assert_all_agree(kernels: dict[LinkHeader, Kernel], data: bytes) -> None:
    views = [(LinkHeader.ETHERNET, data)]
    if data[12:14] in (b"\x08\x00", b"\x86\xdd"):
        views.append((LinkHeader.RAW_IP, data[ETHERNET_BYTES:]))
    for link, view in views:
        kept = view[: cbpf_interpreter.run(PROGRAMS[link], view)]
        assert kept == (view[:SNAP_BYTES] if signals(data) else b""), link
        if view:
            assert kernels[link].kept(view) == kept, link


@pytest.mark.parametrize("name", PASS)
def test_signalling_passes(name: str) -> None:
    assert cbpf_interpreter.run(PROGRAMS[LinkHeader.ETHERNET], PASS[name]) > 0


@pytest.mark.parametrize("name", REJECT)
def test_everything_else_is_rejected(name: str) -> None:
    assert cbpf_interpreter.run(PROGRAMS[LinkHeader.ETHERNET], REJECT[name]) == 0


def test_copies_of_steering_are_rejected() -> None:
    program = PROGRAMS[LinkHeader.ETHERNET]
    for name, data in PASS.items():
        assert cbpf_interpreter.run(program, data, mark=steering_mark.MARK | 0x1_0007) == 0, name
        assert cbpf_interpreter.run(program, data, mark=0x4D40_0007) > 0, name


def test_snap_length_keeps_the_longest_headers_and_no_payload(kernels: dict[LinkHeader, Kernel]) -> None:
    headers = ethernet(ipv4(tcp(NOP * 37 + PRIO, b""), NOP * 40), 0x88A8, 0x8100)
    assert kernels[LinkHeader.ETHERNET].kept(headers + DATA) == headers


@pytest.mark.parametrize("of", ["SYN", "SYN over IPv6", "a VLAN in a provider's VLAN"])
def test_header_cut_off_anywhere_is_rejected(kernels: dict[LinkHeader, Kernel], of: str) -> None:
    whole = PASS[of].removesuffix(DATA)
    assert_all_agree(kernels, whole)
    for length in range(1, len(whole)):
        assert not kernels[LinkHeader.ETHERNET].kept(whole[:length])
        assert_all_agree(kernels, whole[:length])


def test_interpreter_kernel_and_parser_agree_on_the_examples(kernels: dict[LinkHeader, Kernel]) -> None:
    # The third tag is where the filter stops and the parser, which is given no such frame, would go on.
    for data in EXAMPLES:
        if data is not REJECT["a third VLAN tag"]:
            assert_all_agree(kernels, data)


@pytest.mark.parametrize("link", LinkHeader)
def test_examples_take_every_branch(link: LinkHeader) -> None:
    taken: set[tuple[int, int]] = set()
    for data in EXAMPLES:
        view = data[ETHERNET_BYTES:] if link is LinkHeader.RAW_IP else data
        for mark in (0, steering_mark.MARK):
            cbpf_interpreter.run(PROGRAMS[link], view, taken, mark=mark)
    assert sorted(cbpf_interpreter.steps(PROGRAMS[link]) - taken) == []


@pytest.mark.parametrize("options", FILLED, ids=len)
def test_walk_over_options_ends_before_the_payload(options: bytes) -> None:
    ways = []
    for payload in (b"", DATA, NOP * 100):
        ways.append(set[tuple[int, int]]())
        cbpf_interpreter.run(PROGRAMS[LinkHeader.ETHERNET], ethernet(ipv4(tcp(options, payload))), ways[-1])
    assert ways[0] == ways[1] == ways[2]


mptcp_option = st.builds(
    lambda subtype, reserved, length: bytes([30, length, subtype << 4 | reserved]) + bytes(range(length))[3:],
    st.sampled_from([2, 2, 2, *range(16)]),
    st.integers(0, 15),
    st.integers(0, OPTION_BYTES),
)
other_option = st.builds(
    lambda kind, body: bytes([kind, 2 + len(body)]) + body, st.integers(2, 255), st.binary(max_size=10)
)
option_soup = st.lists(
    st.one_of(st.just(NOP), mptcp_option, other_option, st.just(DSS), st.binary(min_size=1, max_size=3)), max_size=12
).map(lambda options: b"".join(options)[:OPTION_BYTES])
port = st.sampled_from([*PORTS, 40000, 0x8080, 8081, 443, 19999, 20010])


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Mostly valid frames of the proxy ports with arbitrary options; some truncated, some with a wrong byte."""
    segment = tcp(
        draw(option_soup),
        draw(st.binary(max_size=8)),
        flags=draw(st.sampled_from([ACK, ACK, ACK, SYN, FIN | ACK, RST, OTHER_FLAGS])),
        sport=draw(port),
        dport=draw(port),
        words=draw(st.sampled_from([0, 0, 0, 0, *range(1, 16)])),
    )
    if draw(st.booleans()):
        packet = ipv6(segment, next_header=draw(st.sampled_from([6, 6, 6, 0, 17])))
    else:
        packet = ipv4(
            segment,
            bytes(4 * draw(st.integers(0, 10))),
            fragment=draw(st.sampled_from([0, 0, 0x4000, 0x4000, 0x2000, 0x0001, 0x3FFF])),
            protocol=draw(st.sampled_from([6, 6, 6, 17])),
        )
    data = bytearray(ethernet(packet, *draw(st.lists(st.sampled_from([0x8100, 0x88A8]), max_size=2))))
    if draw(st.integers(0, 3)) == 0:
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    if draw(st.integers(0, 3)) == 0:
        del data[draw(st.integers(1, len(data))) :]
    return bytes(data)


@settings(max_examples=400)
@given(frames())
def test_interpreter_kernel_and_parser_agree_on_any_frame(kernels: dict[LinkHeader, Kernel], data: bytes) -> None:
    assert_all_agree(kernels, data)


@pytest.mark.parametrize("link", LinkHeader)
@pytest.mark.parametrize("ports", [Ports.of([8080]), MANY], ids=len)
def test_program_keeps_the_rules_of_the_kernel(link: LinkHeader, ports: Ports) -> None:
    program = signalling_filter(ports, link=link)
    cbpf_interpreter.check(program)
    # include/uapi/linux/filter.h, struct sock_filter: u16, u8, u8, u32.
    assert [Instruction(*unpack("HBBI", encode([each]))) for each in program] == list(program)


BAD_PROGRAMS = {
    "empty": [],
    "no return at the end": [Instruction(0x00, 0, 0, 1)],
    "too long": [Instruction(0x00, 0, 0, 1)] * 4096 + [Instruction(0x06, 0, 0, 0)],
    "a jump beyond the end": [Instruction(0x15, 0, 1, 0), Instruction(0x06, 0, 0, 0)],
    "scratch memory read first": [Instruction(0x60, 0, 0, 0), Instruction(0x06, 0, 0, 0)],
    "scratch memory not written on each way": [
        Instruction(0x15, 1, 0, 0),
        Instruction(0x02, 0, 0, 0),
        Instruction(0x60, 0, 0, 0),
        Instruction(0x06, 0, 0, 0),
    ],
}


@pytest.mark.parametrize("name", BAD_PROGRAMS)
def test_interpreter_and_kernel_have_the_same_rules(name: str) -> None:
    with pytest.raises(AssertionError):
        cbpf_interpreter.check(BAD_PROGRAMS[name])
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with near, far, pytest.raises(OSError, match="Invalid argument"):
        attach_filter(far, BAD_PROGRAMS[name])


def instructions(program: tuple[Instruction, ...], sport: int, dport: int) -> int:
    """How many the program executes for a data segment as Linux sends it."""
    taken: set[tuple[int, int]] = set()
    segment = tcp(NOP + NOP + TIMESTAMPS + DSS, sport=sport, dport=dport)
    assert cbpf_interpreter.run(program, ethernet(ipv4(segment)), taken) == 0
    return len(taken) + 1


@pytest.mark.parametrize(
    ("ports", "of_the_proxy", "of_others"),
    [(Ports.of([8080]), 90, 32), (Ports.parse([8080, "20000-29999"]), 92, 34), (MANY, 103, 46)],
    ids=["one port", "a port and a range", "64 ranges"],
)
def test_port_ranges_cost_few_instructions(ports: Ports, of_the_proxy: int, of_others: int) -> None:
    """As docs/explanation/sniffer.md says."""
    program = signalling_filter(ports, link=LinkHeader.ETHERNET)
    bounds = [port for each in ports.ranges for port in (each[0], each[-1])]
    beside = [port for each in ports.ranges for port in (each[0] - 1, each[-1] + 1)]
    assert (
        max(instructions(program, *ends) for port in bounds for ends in ((port, 50000), (50000, port))) == of_the_proxy
    )
    assert max(instructions(program, port, port) for port in beside) == of_others


def test_program_fits_into_optmem_max_of_kernels_before_6_7() -> None:
    """net.core.optmem_max was 20480 bytes; longer programs are refused with ENOMEM."""
    kernel = Kernel(signalling_filter(MANY, link=LinkHeader.ETHERNET))
    # asm-generic/socket.h, SO_MEMINFO; its seventh number is SK_MEMINFO_OPTMEM (include/uapi/linux/sock_diag.h).
    charged = unpack("9I", kernel.far.getsockopt(socket.SOL_SOCKET, 55, 36))[6]
    kernel.close()
    assert 0 < charged < 20480
