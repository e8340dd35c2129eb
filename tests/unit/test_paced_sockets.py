"""The paces that `PacedSockets` reports are values: later changes do not reach states that were read before."""

from __future__ import annotations

import errno
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from mptcp_throttle.linux import ebpf
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import Endpoint, FourTuple
from mptcp_throttled.kernel import pacing
from mptcp_throttled.kernel.pacing import PacedSockets

PROXY: Final = Endpoint(ip_address("10.3.0.2"), 8080)
ONE: Final = FourTuple(Endpoint(ip_address("10.1.0.2"), 40000), PROXY)
TWO: Final = FourTuple(Endpoint(ip_address("10.1.0.2"), 40001), PROXY)


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PacedSockets:
    """Attached to a directory instead of a cgroup, with a map that accepts everything."""
    found = tmp_path.stat()
    attached = SimpleNamespace(identity=(found.st_dev, found.st_ino), map=0, close=lambda: None)
    monkeypatch.setattr(pacing, "_Attached", lambda _cgroup, _ports: attached)
    monkeypatch.setattr(ebpf, "update_map", lambda _map, _elements: None)
    monkeypatch.setattr(ebpf, "delete_from_map", lambda _map, _key: None)
    return PacedSockets((8080,), tmp_path)


def test_paces_that_were_read_stay_as_they_were_after_a_change(sockets: PacedSockets) -> None:
    empty = sockets.read()
    sockets.change({ONE: 1000}, ())
    one = sockets.read()
    sockets.change({TWO: 2000}, (ONE,))
    two = sockets.read()
    assert [state.paces for state in (empty, one, two)] == [{}, {ONE: 1000}, {TWO: 2000}]


def test_pace_lost_in_a_refused_update_can_still_be_removed(
    sockets: PacedSockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_map: int, _elements: object) -> None:
        raise KernelError("bpf map update", errno.ENOMEM)

    sockets.read()
    sockets.change({ONE: 1000}, ())
    monkeypatch.setattr(ebpf, "update_map", refuse)
    with pytest.raises(KernelError):
        sockets.change({ONE: 500, TWO: 500}, ())
    sockets.change({}, (ONE,))
    assert sockets.read().paces == {}
