"""Our filter at the egress of an interface: it comes and goes, and everything of others stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyroute2 import netns

from mptcp_lab.host import Host
from mptcp_lab.topology import Topology, build
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttled.kernel.egress_filter import EgressFilter
from mptcp_throttled.kernel.tc import Interface, find_interface
from mptcp_throttled.kernel.uplink_program import UplinkProgram

FOREIGN = ("prio", "5", "protocol", "ip", "u32", "match", "u32", "0", "0", "flowid", "1:1")


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with build(Topology()) as lab:
        yield lab.proxy


@pytest.fixture
def program(host: Host) -> Iterator[UplinkProgram]:
    before = shown(host)
    netns.pushns(host.namespace)
    try:
        with closing(UplinkProgram()) as program:
            yield program
    finally:
        netns.popns()
        host.run("tc", "qdisc", "del", "dev", "eth0", "clsact", check=False)
    assert shown(host) == before


@pytest.fixture
def interface(program: UplinkProgram) -> Interface:  # noqa: ARG001
    return find_interface("eth0")


@pytest.fixture
def filter_(program: UplinkProgram, tmp_path: Path) -> Iterator[EgressFilter]:  # noqa: ARG001
    with closing(EgressFilter(tmp_path)) as filter_:
        yield filter_


def shown(host: Host) -> str:
    show = "tc qdisc show dev eth0; tc filter show dev eth0 egress; tc filter show dev eth0 ingress"
    return host.run("sh", "-c", show).stdout


def test_filter_and_clsact_come_and_go(
    host: Host, program: UplinkProgram, interface: Interface, filter_: EgressFilter, tmp_path: Path
) -> None:
    before = shown(host)
    for _ in range(2):
        filter_.attach(interface, program.descriptor)
        assert shown(host).count("handle 0x4d50 mptcp-throttle direct-action") == 1
        assert filter_.is_attached(interface)
    for _ in range(2):
        filter_.detach(interface)
        assert shown(host) == before
    assert not filter_.is_attached(interface)
    assert not [*tmp_path.iterdir()]


def test_clsact_of_others_stays_with_their_filters(
    host: Host, program: UplinkProgram, interface: Interface, filter_: EgressFilter
) -> None:
    host.run("tc", "qdisc", "add", "dev", "eth0", "clsact")
    host.run("tc", "filter", "add", "dev", "eth0", "egress", *FOREIGN)
    before = shown(host)
    filter_.attach(interface, program.descriptor)
    assert "pref 4 bpf chain 0 handle 0x4d50 mptcp-throttle" in shown(host)
    filter_.detach(interface)
    assert shown(host) == before


def test_filter_that_others_put_before_it_is_overtaken(
    host: Host, program: UplinkProgram, interface: Interface, filter_: EgressFilter
) -> None:
    filter_.attach(interface, program.descriptor)
    host.run("tc", "filter", "add", "dev", "eth0", "egress", *FOREIGN)
    assert not filter_.is_attached(interface)
    filter_.attach(interface, program.descriptor)
    assert filter_.is_attached(interface)
    assert shown(host).index("pref 4 bpf") < shown(host).index("pref 5 u32")
    assert shown(host).count("handle 0x4d50") == 1


def test_first_priority_of_others_leaves_ours_behind(
    host: Host, program: UplinkProgram, interface: Interface, filter_: EgressFilter
) -> None:
    host.run("tc", "qdisc", "add", "dev", "eth0", "clsact")
    host.run("tc", "filter", "add", "dev", "eth0", "egress", "prio", "1", *FOREIGN[2:])
    filter_.attach(interface, program.descriptor)
    assert filter_.is_attached(interface)


@pytest.mark.parametrize("direction", ["egress", "ingress"])
def test_own_clsact_stays_while_others_use_it(
    host: Host, program: UplinkProgram, interface: Interface, filter_: EgressFilter, tmp_path: Path, direction: str
) -> None:
    filter_.attach(interface, program.descriptor)
    host.run("tc", "filter", "add", "dev", "eth0", direction, *FOREIGN)
    filter_.detach(interface)
    assert "clsact" in shown(host)
    assert "mptcp-throttle" not in shown(host)
    assert not [*tmp_path.iterdir()]


def test_filter_of_a_killed_instance_is_found(
    host: Host, program: UplinkProgram, interface: Interface, filter_: EgressFilter, tmp_path: Path
) -> None:
    before = shown(host)
    assert filter_.interfaces() == []
    filter_.attach(interface, program.descriptor)
    with closing(EgressFilter(tmp_path)) as later:
        assert later.interfaces() == [interface]
        later.detach(interface)
    assert shown(host) == before


def test_clsact_of_an_instance_killed_before_its_filter_is_found(
    host: Host, interface: Interface, filter_: EgressFilter, tmp_path: Path
) -> None:
    host.run("tc", "qdisc", "add", "dev", "eth0", "clsact")
    (tmp_path / f"clsact-{interface.index}").touch()
    assert filter_.interfaces() == [interface]
    filter_.detach(interface)
    assert "clsact" not in shown(host)


def test_filter_of_others_with_our_number_is_not_ours(host: Host, interface: Interface, filter_: EgressFilter) -> None:
    host.run("tc", "qdisc", "add", "dev", "eth0", "clsact")
    host.run("tc", "filter", "add", "dev", "eth0", "egress", "prio", "77", *FOREIGN[2:])
    before = shown(host)
    assert filter_.interfaces() == []
    filter_.detach(interface)
    assert shown(host) == before


def test_ingress_qdisc_of_others_leaves_no_room_and_stays(
    host: Host, program: UplinkProgram, interface: Interface, filter_: EgressFilter, tmp_path: Path
) -> None:
    host.run("tc", "qdisc", "add", "dev", "eth0", "ingress")
    try:
        before = shown(host)
        with pytest.raises(KernelError, match="which has a qdisc ingress"):
            filter_.attach(interface, program.descriptor)
        assert shown(host) == before
        assert not [*tmp_path.iterdir()]
    finally:
        host.run("tc", "qdisc", "del", "dev", "eth0", "ingress")


def test_record_of_an_interface_that_has_gone_is_forgotten(
    interface: Interface, filter_: EgressFilter, tmp_path: Path
) -> None:
    present, gone = tmp_path / f"clsact-{interface.index}", tmp_path / "clsact-4711"
    present.touch()
    gone.touch()
    (tmp_path / "clsact-of-somebody").touch()
    filter_.forget_stale()
    assert present.exists()
    assert not gone.exists()
    assert (tmp_path / "clsact-of-somebody").exists()
