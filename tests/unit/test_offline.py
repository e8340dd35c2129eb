"""`mptcp-sniffer --read`: the same result for every file and link type."""

import json
import os
from pathlib import Path

import pytest
from scapy.layers.inet import IP
from scapy.layers.l2 import CookedLinux, CookedLinuxV2, Ether, Loopback
from scapy.packet import Packet
from scapy.utils import wrpcap, wrpcapng
from segments import (
    PROXY,
    capable_ack,
    capable_syn,
    capable_synack,
    frame,
    join_ack,
    join_syn,
    join_synack,
    prio,
    token,
)

from mptcp_sniffer.main import main
from mptcp_sniffer.offline import read_capture
from mptcp_throttle.errors import UserError
from mptcp_throttle.model import Trust, format_token
from mptcp_throttle.rpc import Json

ETHERNET, WIFI, LATE = ("10.1.0.2", 40000), ("10.2.0.2", 50000), ("10.2.0.2", 50001)


def packets() -> list[Packet]:
    """A connection, a backup JOIN that becomes active, a JOIN without proof, and the end of the first subflow."""

    def by_client(client: tuple[str, int], flags: str, *options: bytes, seq: int = 101) -> bytes:
        return frame(*client, PROXY, 8080, flags, *options, seq=seq, ack=0 if flags == "S" else 901)

    def by_proxy(client: tuple[str, int], *options: bytes) -> bytes:
        return frame(PROXY, 8080, *client, "SA", *options, seq=900, ack=101)

    frames = [
        by_client(ETHERNET, "S", capable_syn(), seq=100),
        by_proxy(ETHERNET, capable_synack()),
        by_client(ETHERNET, "A", capable_ack()),
        by_client(WIFI, "S", join_syn(token(), backup=True, address_id=3), seq=100),
        by_proxy(WIFI, join_synack()),
        by_client(WIFI, "A", join_ack()),
        by_client(WIFI, "A", prio(backup=False)),
        by_client(LATE, "S", join_syn(token(), address_id=4), seq=100),
        by_proxy(LATE, join_synack()),
        by_client(ETHERNET, "FA", seq=500),
    ]
    return [Ether(one) for one in frames]


def written(kind: str, path: Path) -> Path:
    match kind:
        case "pcap":
            wrpcap(str(path), packets())
        case "pcapng":
            wrpcapng(str(path), packets())
        case "raw":
            wrpcap(str(path), [packet[IP] for packet in packets()])
        case "cooked":
            wrpcap(str(path), [CookedLinux(proto=0x800) / packet[IP] for packet in packets()])
        case "cooked-v2":
            wrpcap(str(path), [CookedLinuxV2(proto=0x800) / packet[IP] for packet in packets()])
    return path


@pytest.mark.parametrize("kind", ["pcap", "pcapng", "raw", "cooked", "cooked-v2"])
def test_captures_of_every_file_and_link_type_give_the_same_result(kind: str, tmp_path: Path) -> None:
    history = read_capture(written(kind, tmp_path / "capture"), (8080,), Trust.HANDSHAKE)
    (connection,) = history["connections"]
    assert (connection["token"], connection["version"]) == (format_token(token()), 1)
    subflows = [
        (s["client"], s["client_port"], s["address_id"], s["backup_at_join"], s["backup"], s["established"], s["state"])
        for s in connection["subflows"]
    ]
    assert subflows == [
        (*ETHERNET, 0, False, False, True, "closed"),
        (*WIFI, 3, True, False, True, "active"),
        (*LATE, 4, False, False, False, "joining"),
    ]
    kinds = ["opened", "established", "joining", "established", "backup-changed", "joining", "closed"]
    assert [event["event"] for event in history["events"]] == kinds


Account = list[tuple[Json, ...]]


def account(path: Path, frames: list[Packet]) -> Account:
    """What is known of each subflow of a capture, one frame a second, without times."""
    for number, one in enumerate(frames):
        one.time = 1000 + number
    wrpcap(str(path), frames)
    return sorted(
        (connection["token"], *(s[key] for key in ("client", "client_port", "address_id", "backup", "state")))
        for connection in read_capture(path, (8080,), Trust.HANDSHAKE)["connections"]
        for s in connection["subflows"]
    )


def test_frames_swapped_with_the_next_give_the_same_account(tmp_path: Path) -> None:
    in_order = packets()
    expected = account(tmp_path / "capture", in_order)
    # Linux resets a JOIN whose third ACK another segment overtakes (net/mptcp/subflow.c, subflow_syn_recv_sock).
    third_ack_and_prio = 5
    for first in range(len(in_order) - 1):
        if first != third_ack_and_prio:
            swapped = [*in_order[:first], in_order[first + 1], in_order[first], *in_order[first + 2 :]]
            assert account(tmp_path / "capture", swapped) == expected, first


@pytest.mark.parametrize(("delay", "state"), [(10, "joining"), (80, "failed")])
def test_join_that_is_never_completed_fails_after_a_while(delay: int, state: str, tmp_path: Path) -> None:
    frames = packets()
    frames[-1].time = frames[-2].time + delay
    wrpcap(str(tmp_path / "capture"), frames)
    (connection,) = read_capture(tmp_path / "capture", (8080,), Trust.HANDSHAKE)["connections"]
    assert connection["subflows"][-1]["state"] == state


def test_trust_token_accepts_the_join_without_third_ack(tmp_path: Path) -> None:
    history = read_capture(written("pcap", tmp_path / "capture"), (8080,), Trust.TOKEN)
    assert [s["state"] for s in history["connections"][0]["subflows"]] == ["closed", "active", "active"]


def test_other_ports_are_left_out(tmp_path: Path) -> None:
    history = read_capture(written("pcap", tmp_path / "capture"), (3128,), Trust.HANDSHAKE)
    assert (history["connections"], history["events"]) == ([], [])


def test_command_prints_json_or_a_line_per_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(written("pcap", tmp_path / "capture"))
    assert main(["--read", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"connections", "events", "counters"}
    assert main(["--read", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[1:] == [format_token(token()), "established", "10.1.0.2:40000"]


def test_truncated_capture_is_read_to_its_end(tmp_path: Path) -> None:
    path = written("pcap", tmp_path / "capture")
    path.write_bytes(path.read_bytes()[:-7])
    assert len(read_capture(path, (8080,), Trust.HANDSHAKE)["connections"][0]["subflows"]) == 3


def test_unreadable_capture_is_one_line(tmp_path: Path) -> None:
    text, loopback = tmp_path / "text", tmp_path / "loopback"
    text.write_text("no capture, but long enough to be one")
    wrpcap(str(loopback), [Loopback() / IP()])
    for path, status in ((tmp_path / "none", os.EX_NOINPUT), (text, os.EX_DATAERR), (loopback, os.EX_DATAERR)):
        with pytest.raises(UserError) as caught:
            read_capture(path, (8080,), Trust.HANDSHAKE)
        assert caught.value.status == status
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)
