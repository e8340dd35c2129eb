"""Packets that are nearly what a program expects, or not at all, and what it may do to them."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Final, NamedTuple

from scapy.utils import checksum

from mptcp_lab import guest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PACKETS: Final = int(os.environ.get("FUZZED_PACKETS", "100" if guest.inside() else "3000"))
"""How many packets a test makes of each that it begins with. In a guest, a thousand take a minute."""

_ETHERNET_BYTES: Final = 14
_VLAN_TAG: Final = bytes.fromhex("81000005")
_LEAST_BYTES: Final = _ETHERNET_BYTES + 40
"""The kernel runs programs on no packet that is shorter than its IP header (net/bpf/test_run.c)."""
_MOST_BYTES: Final = 1514
_TCP: Final = 6


class SegmentLayout(NamedTuple):
    """Where the parts of a frame with a TCP segment are."""

    ip_at: int
    tcp_at: int
    data_at: int
    end: int

    @classmethod
    def of(cls, frame: bytes) -> SegmentLayout | None:
        """None: this is no whole TCP segment, a fragment, or has IPv4 options or IPv6 extension headers."""
        at = _ETHERNET_BYTES
        while frame[at - 2 : at] in {b"\x81\x00", b"\x88\xa8"}:
            at += 4
        ip = frame[at:]
        if frame[at - 2 : at] not in {b"\x08\x00", b"\x86\xdd"} or len(ip) < 40:
            return None
        if ip[0] == 0x45 and ip[9] == _TCP and not (ip[6] & 0x3F or ip[7]):
            tcp_at, total = at + 20, int.from_bytes(ip[2:4])
        elif ip[0] >> 4 == 6 and ip[6] == _TCP:
            tcp_at, total = at + 40, 40 + int.from_bytes(ip[4:6])
        else:
            return None
        if len(frame) < tcp_at + 20 or total > len(ip):
            return None
        data_at = tcp_at + 4 * (frame[tcp_at + 12] >> 4)
        return cls(at, tcp_at, data_at, at + total) if tcp_at + 20 <= data_at <= at + total else None

    def ends(self, frame: bytes) -> bytes:
        """Both addresses and both ports."""
        return frame[self.ip_at + (12 if self.is_v4 else 8) : self.tcp_at + 4]

    def unchanging(self, frame: bytes) -> bytes:
        """The IP header without its length and checksum, the TCP header up to the acknowledgment, and its flags."""
        ip, tcp = bytearray(frame[self.ip_at : self.tcp_at]), frame[self.tcp_at :]
        for at in (2, 3, 10, 11) if self.is_v4 else (4, 5):
            ip[at] = 0
        return bytes(ip) + tcp[:12] + tcp[13:14] + tcp[18:20]

    @property
    def is_v4(self) -> bool:
        return self.tcp_at - self.ip_at == 20

    def residues(self, frame: bytes) -> tuple[int, int]:
        """What the checksums of IPv4 and TCP add up to: 0 if they are right."""
        tcp = frame[self.tcp_at : self.end]
        addresses = self.ends(frame)[:-4]
        of_ip = checksum(frame[self.ip_at : self.tcp_at]) if self.is_v4 else 0
        return of_ip, checksum(addresses + bytes([0, _TCP]) + len(tcp).to_bytes(2) + tcp)

    def with_right_checksum(self, frame: bytes) -> bytes:
        """The frame with the TCP checksum that belongs there."""
        at = self.tcp_at + 16
        without = frame[:at] + bytes(2) + frame[at + 2 :]
        return frame[:at] + (self.residues(without)[1]).to_bytes(2) + frame[at + 2 :]


def are_checksums_right(frame: bytes) -> bool:
    """Whether it is a TCP segment with the checksums of IPv4 and TCP that belong there (RFC 9293, section 3.1)."""
    segment = SegmentLayout.of(frame)
    return segment is not None and segment.residues(frame) == (0, 0)


def harm(before: bytes, after: bytes, is_ours: Callable[[bytes], bool]) -> str | None:
    """What is wrong with a frame that a program has changed; None if nothing is.

    It may change the window and the options of a segment whose ends, both addresses and both ports, are ours. What the
    checksums were wrong by stays, the lengths belong together, and all other bytes are the same.
    """
    if before == after:
        return None
    of, now = SegmentLayout.of(before), SegmentLayout.of(after)
    if of is None or not is_ours(of.ends(before)):
        return "another's packet is changed"
    if now is None:
        return "it is no TCP segment any more"
    growth = len(after) - len(before)
    if (now.ip_at, now.tcp_at, now.data_at, now.end) != (of.ip_at, of.tcp_at, of.data_at + growth, of.end + growth):
        return "its lengths do not belong together"
    if after[now.data_at :] != before[of.data_at :]:
        return "its data is changed"
    if after[: now.ip_at] != before[: of.ip_at]:
        return "its link header is changed"
    if now.unchanging(after) != of.unchanging(before):
        return "its IP header is changed, or more than the options, window and checksum of its TCP header"
    # In ones' complement, 0 and 0xFFFF are the same.
    if [each % 0xFFFF for each in now.residues(after)] != [each % 0xFFFF for each in of.residues(before)]:
        return "its checksums are not those of the changed bytes"
    return None


def check_harmless(
    run: Callable[[bytes], bytes], known: bytes, seed: int, is_ours: Callable[[bytes], bool] | None = None
) -> int:
    """Let `run` change packets that are made of the frame `known`, and look at each; how many it has changed.

    By default those with the ends of that frame are ours; see `harm`.
    """
    segment = SegmentLayout.of(known)
    assert segment is not None
    ends, changed = segment.ends(known), 0
    for frame in mutations(known, seed):
        after = run(frame)
        problem = harm(frame, after, is_ours or ends.__eq__)
        assert problem is None, f"{problem}: {frame.hex()} became {after.hex()}"
        changed += frame != after
    return changed


def mutations(frame: bytes, seed: int) -> Iterator[bytes]:
    """`PACKETS` frames that are made of this one, always the same ones for a seed."""
    chance = random.Random(seed)  # noqa: S311
    kinds = (_any_bytes, _changed, _changed, _with_other_options, _with_other_options, _cut, _longer, _tagged)
    for _ in range(PACKETS):
        mutated = chance.choice(kinds)(chance, frame)
        segment = SegmentLayout.of(mutated)
        if segment is not None and chance.random() < 0.7:
            mutated = segment.with_right_checksum(mutated)
        yield mutated


def _any_bytes(chance: random.Random, frame: bytes) -> bytes:
    kept = frame[: chance.choice((12, _ETHERNET_BYTES, 34))]
    return kept + chance.randbytes(chance.randint(_LEAST_BYTES, 200))


def _changed(chance: random.Random, frame: bytes) -> bytes:
    changed = bytearray(frame)
    for _ in range(chance.choice((1, 1, 2, 4))):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def _with_other_options(chance: random.Random, frame: bytes) -> bytes:
    """Any options, of any lengths, of which some are those of the frame."""
    segment = SegmentLayout.of(frame)
    assert segment is not None
    known = frame[segment.tcp_at + 20 : segment.data_at]
    options = b""
    while len(options) < 40 and chance.random() < 0.8:
        length = chance.randint(0, 14)
        any_option = bytes([chance.choice((1, 2, 3, 5, 8, 30, 34, chance.randrange(256))), length])
        options += chance.choice((known, b"\x01", any_option + chance.randbytes(max(0, length - 2))))
    options = options[:40].ljust(-(-len(options[:40]) // 4) * 4, b"\x00")
    data = chance.choice((b"", frame[segment.data_at : segment.end], chance.randbytes(chance.randint(1, 1000))))
    headers = bytearray(frame[: segment.tcp_at + 20])
    headers[segment.tcp_at + 12] = (20 + len(options)) // 4 << 4
    at = segment.ip_at
    total = len(headers) + len(options) + len(data) - at
    if segment.is_v4:
        headers[at + 2 : at + 4], headers[at + 10 : at + 12] = total.to_bytes(2), bytes(2)
        headers[at + 10 : at + 12] = checksum(bytes(headers[at : segment.tcp_at])).to_bytes(2)
    else:
        headers[at + 4 : at + 6] = (total - 40).to_bytes(2)
    return bytes(headers) + options + data


def _cut(chance: random.Random, frame: bytes) -> bytes:
    return frame[: chance.randint(_LEAST_BYTES, len(frame))]


def _longer(chance: random.Random, frame: bytes) -> bytes:
    """An interface may leave bytes behind the IP packet."""
    return (frame + chance.randbytes(chance.randint(1, 60)))[:_MOST_BYTES]


def _tagged(chance: random.Random, frame: bytes) -> bytes:
    return frame[:12] + _VLAN_TAG * chance.randint(1, 2) + _changed(chance, frame)[12:]
