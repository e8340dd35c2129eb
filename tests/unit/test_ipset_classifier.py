"""The marks that `IpsetClassifier` reports are values: neither readers nor later reads change them."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any, Final, cast

import pytest

from mptcp_throttle.model import Endpoint, FourTuple
from mptcp_throttled.kernel.classes.ipset import OwnSet, OwnSets, SetHeader
from mptcp_throttled.kernel.classes.iptables import OwnChain
from mptcp_throttled.kernel.classes.nft_tables import OwnTables
from mptcp_throttled.kernel.classes.sets import IpsetClassifier
from mptcp_throttled.vocabulary.class_ids import MarkedTraffic
from mptcp_throttled.vocabulary.kernel_state import AssignmentState

SET: Final = OwnSet(4, 8080)
PROXY: Final = Endpoint(ip_address("10.3.0.2"), 8080)
ONE, TWO = (FourTuple(Endpoint(ip_address("10.9.31.74"), port), PROXY) for port in (33041, 33042))
# From an IPSET_CMD_LIST of Linux 6.18: `ONE` with mark 0x0d320000/0xffff0000.
RAW_ONE: Final = bytes.fromhex(
    "38000780 0c000180 08000100 0a091f4a 0c001480 08000100 0a030002 06000440 81110000 05000700 06000000"
    "0c001b40 0d320000 ffff0000"
)
RAW_TWO: Final = RAW_ONE.replace(b"\x81\x11", b"\x81\x12")


@pytest.fixture
def elements(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The elements of the kernel's only set; chain and set are as we make them."""
    present = [RAW_ONE]
    monkeypatch.setattr(OwnSets, "present", lambda _: {SET: SetHeader(True, len(present))})
    monkeypatch.setattr(OwnSets, "elements", lambda _sets, _own: iter(present))
    monkeypatch.setattr(OwnTables, "present", lambda _: set())
    monkeypatch.setattr(OwnChain, "read", lambda chain, _: AssignmentState({}) if chain._ip_version == 4 else None)
    return present


def test_ipset_marks_that_were_read_stay_when_the_set_changes(elements: list[bytes]) -> None:
    marking = IpsetClassifier(MarkedTraffic(0xFFFF_0000, (8080,)))
    before = marking.read()[4]
    elements[:] = [RAW_TWO]
    assert (before, marking.read()[4]) == (AssignmentState({ONE: 0xD32}), AssignmentState({TWO: 0xD32}))


@pytest.mark.usefixtures("elements")
def test_ipset_marks_cannot_be_changed_by_their_reader() -> None:
    marking = IpsetClassifier(MarkedTraffic(0xFFFF_0000, (8080,)))
    with pytest.raises(TypeError):
        cast("dict[Any, int]", marking.read()[4].assignments)[TWO] = 9
    assert marking.read() == {4: AssignmentState({ONE: 0xD32})}
