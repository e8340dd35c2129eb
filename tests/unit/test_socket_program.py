"""Elements of the maps that the daemon shares with the kernel programs."""

from __future__ import annotations

import pytest
from examples import ETHERNET, ends

from mptcp_throttle.linux.c_layout import pack, size_of, unpack
from mptcp_throttled.kernel import networks_map
from mptcp_throttled.kernel.program_layout import Closed, pack_ends
from mptcp_throttled.kernel.sockets import program as socket_program
from mptcp_throttled.vocabulary.traffic import SteeredTotals


@pytest.mark.parametrize("client", ["10.1.0.2", "fd00:1::2"])
def test_ends_of_a_closed_subflow_are_those_of_its_pace(client: str) -> None:
    subflow = ends(client, 40001)
    packed = pack_ends(subflow)
    closed = socket_program.closed_subflow(packed + bytes(size_of(Closed) - len(packed)))
    assert closed.ends == subflow


def test_closed_subflow_has_what_steering_has_counted() -> None:
    record = unpack(Closed, bytes(size_of(Closed)))._replace(own_acks=3, held_ns=12_999_999)
    closed = socket_program.closed_subflow(pack(record))
    assert closed.totals.steered == SteeredTotals(own_acks=3, held_back_ms=12)


def test_ports_are_where_the_kernel_has_them() -> None:
    # struct bpf_sock_ops on a little-endian machine: the port in network byte order, in the upper half of 32 bits.
    assert pack_ends(ends("10.1.0.2", 0x1234))[32:36].hex() == "00001234"


def test_prefixes_of_both_families_share_one_tree() -> None:
    keys = [networks_map.packed_prefix(2, subnet).hex() for subnet in ETHERNET.subnets]
    assert keys == [
        "90000000" + "02000000" + "00" * 10 + "ffff" + "0a010000",
        "40000000" + "02000000" + "fd000001" + "00" * 12,
    ]
