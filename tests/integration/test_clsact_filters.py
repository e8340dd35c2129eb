"""Our filters at the egress and the ingress of an interface: they come and go, and everything of others stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mptcp_lab.host import Host
from mptcp_lab.namespaces import in_namespace
from mptcp_lab.topology import Topology, build
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttled.kernel.htb.tc import Interface, find_interface
from mptcp_throttled.kernel.uplink.clsact_filters import ClsactFilters, Direction
from mptcp_throttled.kernel.uplink.program import UplinkProgram

FOREIGN = ("prio", "5", "protocol", "ip", "u32", "match", "u32", "0", "0", "flowid", "1:1")


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with build(Topology()) as lab:
        yield lab.proxy


@pytest.fixture
def program(host: Host) -> Iterator[UplinkProgram]:
    before = shown(host)
    try:
        with in_namespace(host.namespace), closing(UplinkProgram()) as program:
            yield program
    finally:
        host.run("tc", "qdisc", "del", "dev", "eth0", "clsact", check=False)
    assert shown(host) == before


@pytest.fixture
def interface(program: UplinkProgram) -> Interface:  # noqa: ARG001
    return find_interface("eth0")


@pytest.fixture
def filters(program: UplinkProgram, tmp_path: Path) -> Iterator[ClsactFilters]:  # noqa: ARG001
    with closing(ClsactFilters(tmp_path)) as filters:
        yield filters


def shown(host: Host) -> str:
    show = "tc qdisc show dev eth0; tc filter show dev eth0 egress; tc filter show dev eth0 ingress"
    return host.run("sh", "-c", show).stdout


def test_filters_and_clsact_come_and_go(
    host: Host, program: UplinkProgram, interface: Interface, filters: ClsactFilters, tmp_path: Path
) -> None:
    before = shown(host)
    egress, both = {Direction.EGRESS}, {*Direction}
    programs = {Direction.EGRESS: program.descriptor, Direction.INGRESS: program.policing_descriptor}
    for wanted in (egress, egress, both, both, egress):
        filters.attach(interface, {direction: programs[direction] for direction in wanted})
        assert shown(host).count("handle 0x4d50 mptcp-throttle direct-action") == len(wanted)
        assert filters.attached(interface) == wanted
    filters.attach(interface, programs)
    for _ in range(2):
        filters.detach(interface)
        assert shown(host) == before
    assert not filters.attached(interface)
    assert not [*tmp_path.iterdir()]


def test_clsact_of_others_stays_with_their_filters(
    host: Host, program: UplinkProgram, interface: Interface, filters: ClsactFilters
) -> None:
    host.run("tc", "qdisc", "add", "dev", "eth0", "clsact")
    host.run("tc", "filter", "add", "dev", "eth0", "egress", *FOREIGN)
    before = shown(host)
    filters.attach(interface, {Direction.EGRESS: program.descriptor})
    assert "pref 4 bpf chain 0 handle 0x4d50 mptcp-throttle" in shown(host)
    filters.detach(interface)
    assert shown(host) == before


def test_filter_that_others_put_before_it_is_overtaken(
    host: Host, program: UplinkProgram, interface: Interface, filters: ClsactFilters
) -> None:
    filters.attach(interface, {Direction.EGRESS: program.descriptor})
    host.run("tc", "filter", "add", "dev", "eth0", "egress", *FOREIGN)
    assert not filters.attached(interface)
    filters.attach(interface, {Direction.EGRESS: program.descriptor})
    assert filters.attached(interface) == {Direction.EGRESS}
    assert shown(host).index("pref 4 bpf") < shown(host).index("pref 5 u32")
    assert shown(host).count("handle 0x4d50") == 1


def test_first_priority_of_others_leaves_ours_behind(
    host: Host, program: UplinkProgram, interface: Interface, filters: ClsactFilters
) -> None:
    host.run("tc", "qdisc", "add", "dev", "eth0", "clsact")
    host.run("tc", "filter", "add", "dev", "eth0", "egress", "prio", "1", *FOREIGN[2:])
    filters.attach(interface, {Direction.EGRESS: program.descriptor})
    assert filters.attached(interface) == {Direction.EGRESS}


@pytest.mark.parametrize("direction", ["egress", "ingress"])
def test_own_clsact_stays_while_others_use_it(
    host: Host, program: UplinkProgram, interface: Interface, filters: ClsactFilters, tmp_path: Path, direction: str
) -> None:
    filters.attach(interface, {Direction.EGRESS: program.descriptor})
    host.run("tc", "filter", "add", "dev", "eth0", direction, *FOREIGN)
    filters.detach(interface)
    assert "clsact" in shown(host)
    assert "mptcp-throttle" not in shown(host)
    assert not [*tmp_path.iterdir()]


def test_filter_of_a_killed_instance_is_found(
    host: Host, program: UplinkProgram, interface: Interface, filters: ClsactFilters, tmp_path: Path
) -> None:
    before = shown(host)
    assert filters.interfaces() == []
    filters.attach(interface, {Direction.EGRESS: program.descriptor})
    with closing(ClsactFilters(tmp_path)) as later:
        assert later.interfaces() == [interface]
        later.detach(interface)
    assert shown(host) == before


def test_clsact_of_an_instance_killed_before_its_filter_is_found(
    host: Host, interface: Interface, filters: ClsactFilters, tmp_path: Path
) -> None:
    host.run("tc", "qdisc", "add", "dev", "eth0", "clsact")
    (tmp_path / f"clsact-{interface.index}").touch()
    assert filters.interfaces() == [interface]
    filters.detach(interface)
    assert "clsact" not in shown(host)


def test_filter_of_others_with_our_number_is_not_ours(host: Host, interface: Interface, filters: ClsactFilters) -> None:
    host.run("tc", "qdisc", "add", "dev", "eth0", "clsact")
    host.run("tc", "filter", "add", "dev", "eth0", "egress", "prio", "77", *FOREIGN[2:])
    before = shown(host)
    assert filters.interfaces() == []
    filters.detach(interface)
    assert shown(host) == before


def test_ingress_qdisc_of_others_leaves_no_room_and_stays(
    host: Host, program: UplinkProgram, interface: Interface, filters: ClsactFilters, tmp_path: Path
) -> None:
    host.run("tc", "qdisc", "add", "dev", "eth0", "ingress")
    try:
        before = shown(host)
        with pytest.raises(KernelError, match="which has a qdisc ingress"):
            filters.attach(interface, {Direction.EGRESS: program.descriptor})
        assert shown(host) == before
        assert not [*tmp_path.iterdir()]
    finally:
        host.run("tc", "qdisc", "del", "dev", "eth0", "ingress")


def test_record_of_an_interface_that_has_gone_is_forgotten(
    interface: Interface, filters: ClsactFilters, tmp_path: Path
) -> None:
    present, gone = tmp_path / f"clsact-{interface.index}", tmp_path / "clsact-4711"
    present.touch()
    gone.touch()
    (tmp_path / "clsact-of-somebody").touch()
    filters.forget_stale()
    assert present.exists()
    assert not gone.exists()
    assert (tmp_path / "clsact-of-somebody").exists()
