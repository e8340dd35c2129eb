"""`lab/read-capture`: the same result for every file and link type."""

import bz2
import gzip
import json
import lzma
import os
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, StringIO
from pathlib import Path
from struct import pack

import mutated_bytes
import pytest
from capture_files import block, interface, packet, pcap, section, simple_packet
from scapy.layers.inet import IP
from scapy.layers.l2 import CookedLinux, CookedLinuxV2, Ether, Loopback
from scapy.layers.ppp import PPP, PPPoE
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

from mptcp_lab.capture_reader.__main__ import main
from mptcp_lab.capture_reader.capture_file import read_frames
from mptcp_lab.capture_reader.capture_reading import read_capture
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
    return [Ether(data) for data in frames]


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
        case "tunnel":
            header = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / PPPoE() / PPP() / IP(src="192.0.2.1")
            wrpcap(str(path), [header / packet[IP] for packet in packets()])
    return path


@pytest.mark.parametrize("kind", ["pcap", "pcapng", "raw", "cooked", "cooked-v2", "tunnel"])
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


def test_fast_open_is_read_from_frames_without_their_data(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    frames = [
        frame(*ETHERNET, PROXY, 8080, "S", capable_syn(), seq=100, payload=bytes(300))[:100],
        frame(PROXY, 8080, *ETHERNET, "SA", capable_synack(), seq=900, ack=401),
        frame(*ETHERNET, PROXY, 8080, "A", capable_ack(), seq=401, ack=901),
        *map(bytes, packets()[3:6]),
    ]
    path.write_bytes(pcap(*frames))
    (connection,) = read_capture(path, (8080,), Trust.HANDSHAKE)["connections"]
    assert [subflow["state"] for subflow in connection["subflows"]] == ["active", "backup"]


Account = list[tuple[Json, ...]]


def account(path: Path, frames: list[Packet]) -> Account:
    """What is known of each subflow of a capture with a frame per second, without times."""
    for number, captured in enumerate(frames):
        captured.time = 1000 + number
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
    assert main([path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"connections", "events", "counters", "file"}
    assert main([path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[1:] == [format_token(token()), "established", "10.1.0.2:40000"]


def test_truncated_capture_is_read_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written("pcap", tmp_path / "capture")
    path.write_bytes(path.read_bytes()[:-7])
    assert len(read_capture(path, (8080,), Trust.HANDSHAKE)["connections"][0]["subflows"]) == 3
    assert main([str(path), "--json"]) == os.EX_DATAERR
    out, err = capsys.readouterr()
    assert json.loads(out)["file"] == {"frames": 9, "undecoded": {}, "without_time": 0, "damage": "is truncated"}
    assert err == f"{path}: is truncated, after 9 frames\n"


def test_frames_that_are_not_decoded_are_counted_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "capture"
    others = [bytes(12) + number.to_bytes(2) + bytes(50) for number in (0x0806, *range(0x1000, 0x1006), 0x88E5, 0x88E5)]
    wrpcap(str(path), [*packets(), *map(Ether, others), Ether(bytes(packets()[0])[:40])])
    assert main([str(path)]) == os.EX_OK
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 7
    assert err == (
        f"{path}: 9 of 20 frames not decoded (2 ethertype 0x88e5, 1 ethertype 0x1000, 1 ethertype 0x1001, "
        "1 ethertype 0x1002, 1 ethertype 0x1003, 3 others)\n"
    )
    assert read_capture(path, (8080,), Trust.HANDSHAKE)["file"]["undecoded"]["TCP header cut off"] == 1


def test_packets_without_a_time_have_that_of_the_one_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "capture"
    (first, *rest) = map(bytes, packets())
    blocks = [section(), interface(), packet(10**9, first), *(simple_packet(frame, len(frame)) for frame in rest)]
    path.write_bytes(b"".join(blocks))
    assert main([str(path)]) == os.EX_OK
    out, err = capsys.readouterr()
    assert out.splitlines()[1] == f"1000.000000 {format_token(token())} established 10.1.0.2:40000"
    assert err == f"{path}: 9 frames without a time\n"


def test_unreadable_capture_is_one_line(tmp_path: Path) -> None:
    text, loopback, header = tmp_path / "text", tmp_path / "loopback", tmp_path / "header"
    text.write_text("no capture, but long enough to be one")
    wrpcap(str(loopback), [Loopback() / IP()])
    header.write_bytes(loopback.read_bytes()[:20])
    for path, status, problem in (
        (tmp_path / "none", os.EX_NOINPUT, "cannot be read: No such file or directory"),
        (tmp_path, os.EX_NOINPUT, "cannot be read: Is a directory"),
        (text, os.EX_DATAERR, "is not a pcap or pcapng file"),
        (header, os.EX_DATAERR, "is truncated"),
        (loopback, os.EX_DATAERR, "1 of 1 frames not decoded (1 link type 0)"),
    ):
        with pytest.raises(UserError) as caught:
            read_capture(path, (8080,), Trust.HANDSHAKE)
        assert (caught.value.status, str(caught.value)) == (status, f"{path}: {problem}")


def zstd(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-cq"], input=data, stdout=subprocess.PIPE, check=True).stdout


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lambda data: lzma.compress(data, preset=0),
    "zstd": zstd,
}
every_compression = pytest.mark.parametrize("compress", COMPRESSORS.values(), ids=COMPRESSORS)
CAPTURE = pcap(*map(bytes, packets()))


@every_compression
def test_compressed_capture_is_read_as_the_capture_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "capture.pcap"
    outputs = []
    for data in (CAPTURE, compress(CAPTURE), compress(CAPTURE[:99]) + compress(CAPTURE[99:])):
        path.write_bytes(data)
        assert main([str(path), "--json"]) == os.EX_OK
        outputs.append(capsys.readouterr())
    assert outputs == [outputs[0]] * 3
    assert len(json.loads(outputs[0].out)["events"]) == 7


@pytest.mark.parametrize("compress", [bytes, *COMPRESSORS.values()], ids=["plain", *COMPRESSORS])
def test_capture_is_read_from_standard_input(compress: Callable[[bytes], bytes]) -> None:
    argv = [sys.executable, "-m", "mptcp_lab.capture_reader", "-"]
    ended = subprocess.run(argv, input=compress(CAPTURE), capture_output=True, check=False)
    assert (ended.returncode, len(ended.stdout.splitlines()), ended.stderr) == (os.EX_OK, 7, b"")
    ended = subprocess.run(argv, input=compress(CAPTURE)[:5], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr.count(b"\n")) == (os.EX_DATAERR, b"", 1)


@every_compression
def test_compressed_capture_that_is_cut_or_damaged_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "capture"
    whole = compress(CAPTURE)
    middle = len(whole) // 2
    damaged = whole[:middle] + bytes(255 - byte for byte in whole[middle : middle + 40]) + whole[middle + 40 :]
    for data, problems in (
        *((whole[:length], ("is truncated", "premature end")) for length in (10, middle, len(whole) - 1)),
        (damaged, ("cannot be decompressed: ", "is damaged: ")),
        (whole + b"no capture, but garbage", ("cannot be decompressed: ",)),
    ):
        path.write_bytes(data)
        assert main([str(path)]) == os.EX_DATAERR
        err = capsys.readouterr().err
        assert err.startswith(f"{path}: ")
        assert err.count("\n") == 1
        assert any(problem in err for problem in problems), err


@every_compression
def test_compressed_capture_is_read_in_bounded_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "capture"
    unknown = block(5, bytes(2**16))
    path.write_bytes(compress(section() + interface() + unknown * 512 + packet(1, bytes(packets()[0]))))
    assert path.stat().st_size < 2**16
    tracemalloc.start()
    status = main([str(path), "--json"])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (status, json.loads(capsys.readouterr().out)["file"]["frames"]) == (os.EX_OK, 1)
    assert most < 2**23


def xz_that_claims_a_dictionary_of_4_gib() -> bytes:
    """An LZMA2 filter (21) with one byte of properties (01) is all that the block header names."""
    data = bytearray(lzma.compress(CAPTURE))
    end = 12 + 4 * data[12]
    assert data[14:16] == b"\x21\x01"
    data[16] = 40
    data[end : end + 4] = zlib.crc32(data[12:end]).to_bytes(4, "little")
    return bytes(data)


ZSTD_WITH_A_WINDOW_OF_256_MIB = bytes.fromhex("28b52ffd 00 90 010000")


@pytest.mark.parametrize("data", [xz_that_claims_a_dictionary_of_4_gib(), ZSTD_WITH_A_WINDOW_OF_256_MIB])
def test_memory_that_a_compressed_file_claims_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "capture"
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"cannot be decompressed: .*[mM]emory") as caught:
        read_capture(path, (8080,), Trust.HANDSHAKE)
    assert caught.value.status == os.EX_DATAERR


def test_capture_compressed_by_zstd_needs_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "capture"
    path.write_bytes(zstd(CAPTURE))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([str(path)]) == os.EX_UNAVAILABLE
    assert capsys.readouterr().err == f"{path}: is compressed by zstd, which is not installed\n"


def on_ports(*ports: int) -> list[Packet]:
    """A SYN and its answer of an MPTCP connection to each port."""
    return [
        Ether(data)
        for port in ports
        for data in (
            frame(*ETHERNET, PROXY, port, "S", capable_syn()),
            frame(PROXY, port, *ETHERNET, "SA", capable_synack(), seq=900, ack=101),
        )
    ]


@pytest.mark.parametrize(
    ("frames", "ports", "said"),
    [
        (packets(), "8000-8079,8081", "9 frames with MPTCP on ports that --ports does not name (9 on port 8080)"),
        (packets(), "3128", "9 frames with MPTCP on ports that --ports does not name (9 on port 8080)"),
        (
            [*packets(), *on_ports(50000)],
            "8080",
            "2 frames with MPTCP on ports that --ports does not name (2 on port 50000)",
        ),
        (
            [*on_ports(*range(1, 9)), *on_ports(7)],
            "8080",
            "18 frames with MPTCP on ports that --ports does not name "
            "(4 on port 7, 2 on port 1, 2 on port 2, 2 on port 3, 2 on port 4, 6 on others)",
        ),
        (packets()[2:3], "3128", "1 frames with MPTCP on ports that --ports does not name (1 on port 8080)"),
        (packets()[2:], "8080", "7 frames with MPTCP, but no handshake that opens a connection"),
        (packets(), "8080", ""),
        ([Ether(frame(*ETHERNET, PROXY, 443, "S"))], "8080", ""),
    ],
)
def test_mptcp_that_is_not_followed_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], frames: list[Packet], ports: str, said: str
) -> None:
    path = tmp_path / "capture"
    wrpcap(str(path), frames)
    assert main([str(path), "--ports", ports]) == os.EX_OK
    assert capsys.readouterr().err == (f"{path}: {said}\n" if said else "")


RECORDED = Path(__file__).parents[1] / "fuzz" / "corpus" / "captures"
# Types and lengths of blocks, options and frames, in both byte orders.
WORDS = [
    number.to_bytes(size, order)
    for order in ("little", "big")
    for size, numbers in ((2, (0, 1, 9, 14, 113, 276)), (4, (*range(9), 12, 13, 16, 28, 2**18, 2**24, 2**32 - 1)))
    for number in numbers
]


def recorded() -> list[bytes]:
    """Captures by tcpdump(8) of Ethernet and of all interfaces (tests/fuzz/record_netlink.py), in several formats."""
    ethernet, cooked = ((RECORDED / name).read_bytes() for name in ("lo.pcap", "any.pcap"))
    frames = list(read_frames(BytesIO(ethernet)))
    described = interface((2, b"eth0"), (9, b"\x09"), (14, pack("<q", 1)), snap_bytes=2**18)
    enhanced = [section(), described, *(packet(int((seen.at or 0) * 10**9), seen.data) for seen in frames)]
    simple = [section(), interface(), *(simple_packet(seen.data, len(seen.data)) for seen in frames[:9])]
    blocks = [b"".join(enhanced), b"".join(simple)]
    compressed = [compress(blocks[0]) for compress in (gzip.compress, bz2.compress, lzma.compress)]
    return [ethernet, cooked, *blocks, *compressed]


def test_damaged_capture_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "capture"

    def use(data: bytes) -> None:
        path.write_bytes(data)
        tracemalloc.reset_peak()
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
            status = main([str(path), "--json"])
        assert status in (os.EX_OK, os.EX_DATAERR)
        assert err.getvalue().count("\n") <= 1
        if out.getvalue():
            assert json.loads(out.getvalue())["file"]["frames"] <= len(data)
        else:
            assert status == os.EX_DATAERR
        assert tracemalloc.get_traced_memory()[1] < 2**25

    tracemalloc.start()
    mutated_bytes.check(use, recorded(), words=WORDS, least=200)
    tracemalloc.stop()
