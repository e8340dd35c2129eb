"""tcpdump as a second decoder of MPTCP options.

Scapy writes a segment of each form to a file; what tcpdump prints of it must be what our decoder returns, put into
tcpdump's words. Two forms are missing here because tcpdump 4.99 does not know them: MP_CAPABLE with a checksum, which
it calls "bad opt", and MP_TCPRST, which it calls "unknown".
"""

from __future__ import annotations

import re
import subprocess
from itertools import product
from pathlib import Path

from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from mptcp_lab import scapy_layers as layers
from mptcp_sniffer import options

OURS = bytes(range(0x01, 0x09))
THEIRS = bytes(range(0x11, 0x19))
HMAC = bytes(range(0x21, 0x35))
NONCE = bytes(range(0x41, 0x45))
BOTH_KEYS = {"sender_key": OURS, "receiver_key": THEIRS}
ADDRESSES = ("10.2.0.2", "fd00:2::2")
PORTS = (None, 8080)

FORMS: list[tuple[str, layers.MptcpOption]] = [
    ("S", layers.MpCapableOption(version=0, sender_key=OURS)),
    ("S", layers.MpCapableOption()),
    *(("SA", layers.MpCapableOption(version=version, sender_key=THEIRS)) for version in (0, 1)),
    *(("A", layers.MpCapableOption(version=version, **BOTH_KEYS)) for version in (0, 1)),
    ("A", layers.MpCapableOption(**BOTH_KEYS, data_level_length=1460)),
    *(
        form
        for backup in (0, 1)
        for form in (
            (
                "S",
                layers.MpJoinSynOption(
                    backup=backup, address_id=3, receiver_token=0x613A7ED5, sender_random_number=NONCE
                ),
            ),
            (
                "SA",
                layers.MpJoinSynAckOption(backup=backup, sender_truncated_hmac=HMAC[:8], sender_random_number=NONCE),
            ),
            ("A", layers.MpPrioOption(backup=backup)),
            ("A", layers.MpPrioOption(backup=backup, address_id=3)),
        )
    ),
    ("A", layers.MpJoinAckOption(sender_hmac=HMAC)),
    *(
        form
        for address, port in product(ADDRESSES, PORTS)
        for form in (
            ("A", layers.AddAddrOption(address_id=5, address=address, port=port, truncated_hmac=HMAC[:8])),
            ("A", layers.AddAddrOption(address_id=5, address=address, port=port, echo=1)),
            ("A", layers.AddAddrV0Option(address_id=5, address=address, port=port, ipver=6 if ":" in address else 4)),
        )
    ),
    *(("A", layers.RemoveAddrOption(address_ids=list(range(1, count + 1)))) for count in range(1, 9)),
    ("A", layers.MpFailOption(data_sequence_number=int.from_bytes(OURS))),
    ("A", layers.MpFastcloseOption(receiver_key=THEIRS)),
]


def in_words_of_tcpdump(option: options.Option) -> str:
    match option:
        case options.MpCapable(version, sender_key, receiver_key):
            keys = ",".join(number(key) for key in (sender_key, receiver_key) if key)
            return f"capable v{version}" + (f" {{{keys}}}" if keys else "")
        case options.MpJoinSyn(backup, address_id, token, nonce):
            return f"join{' backup' * backup} id {address_id} token {token:#x} nonce {number(nonce)}"
        case options.MpJoinSynAck(backup, address_id, hmac, nonce):
            return f"join{' backup' * backup} id {address_id} hmac {number(hmac)} nonce {number(nonce)}"
        case options.MpJoinAck(hmac):
            return f"join hmac 0x{hmac.hex()}"
        case options.AddAddr(address_id, address, port, echo):
            return f"add-addr{'-echo' * echo} id {address_id} {address}" + ("" if port is None else f":{port}")
        case options.RemoveAddr(address_ids):
            return "rem-addr id " + " ".join(map(str, address_ids))
        case options.MpPrio(backup, address_id):
            return f"prio {'backup' if backup else 'non-backup'}" + ("" if address_id is None else f" id {address_id}")
        case options.MpFail(data_sequence):
            return f"fail seq {data_sequence}"
        case options.MpFastclose(receiver_key):
            return f"fast-close key {number(receiver_key)}"
    raise AssertionError(f"tcpdump has no words for {option}")


def number(octets: bytes) -> str:
    return f"{int.from_bytes(octets):#x}"


def read_by_tcpdump(folder: Path, segments: list[TCP]) -> list[str]:
    """What tcpdump says of the MPTCP option of each segment; of ADD_ADDR, what our decoder returns of it."""
    file = folder / "options.pcap"
    wrpcap(str(file), [Ether() / IP(src="10.1.0.2", dst="10.3.0.2") / segment for segment in segments])
    output = subprocess.run(["tcpdump", "-nn", "-vv", "-r", file], capture_output=True, check=True)
    said = re.findall(r"mptcp \d+ ((?:[^],{]|\{[^}]*\})*)", output.stdout.decode())
    return [re.sub(r"(?<=^add-addr) v(?:0-ip[46]|1(-echo)?)(.*?)(?: hmac \w+)?$", r"\1\2", text) for text in said]


def segment(flags: str, layer: layers.MptcpOption) -> TCP:
    return TCP(sport=40000, dport=8080, flags=flags, options=[("MPTCP", layer)])


def decoded(of: TCP) -> options.Option:
    ((option,), malformed) = options.decode(bytes(of)[20:], int(of.flags))
    assert malformed == 0
    return option


def test_decoder_reads_options_as_tcpdump_does(tmp_path: Path) -> None:
    segments = [segment(flags, layer) for flags, layer in FORMS]
    assert [in_words_of_tcpdump(decoded(sent)) for sent in segments] == read_by_tcpdump(tmp_path, segments)


def test_scapy_reads_dss_as_tcpdump_does(tmp_path: Path) -> None:
    long, short = int.from_bytes(OURS), int.from_bytes(OURS[:4])
    built: list[layers.MptcpOption] = []
    expected: list[str] = []
    for flags, checksum in product(range(32), (None, 0xBEEF)):
        ack, ack8, map_, dsn8, fin = (bool(flags >> bit & 1) for bit in range(5))
        fields: dict[str, int | None] = {}
        words = ["dss"] + ["fin"] * fin
        if ack:
            fields["data_ack"] = long if ack8 else short
            words.append(f"ack {fields['data_ack']}")
        if map_:
            fields |= {"data_sequence_number": long + 1 if dsn8 else short + 1}
            fields |= {"subflow_sequence_number": 0x21222324, "data_level_length": 1460, "checksum": checksum}
            words.append(f"seq {fields['data_sequence_number']} subseq {0x21222324} len 1460")
            words.extend(["csum 0xbeef"] * bool(checksum))
        built.append(layers.DssOption(flags=flags, **fields))
        expected.append(" ".join(words))
    assert read_by_tcpdump(tmp_path, [segment("A", layer) for layer in built]) == expected
