"""Our filters at the egress and the ingress of an interface: they come and go, and everything of others stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from mptcp_lab.host import Host
from mptcp_lab.namespaces import in_namespace
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttled.kernel.clsact_filters import ClsactFilters, FilterSet, Hook
from mptcp_throttled.kernel.interfaces import Interface, find_interface
from mptcp_throttled.kernel.uplink.program import UplinkProgram

FOREIGN = ("prio", "5", "protocol", "ip", "u32", "match", "u32", "0", "0", "flowid", "1:1")


@dataclass(frozen=True)
class Proxy:
    """A host with our filters at eth0, whose records are in a directory of the test's own."""

    host: Host
    filters: ClsactFilters
    steering: ClsactFilters
    interface: Interface
    programs: dict[Hook, int]

    def attach(self, *directions: Hook) -> None:
        """Attach our programs there and nowhere else."""
        self.filters.attach(self.interface, {direction: self.programs[direction] for direction in directions})

    def detach(self) -> None:
        self.filters.detach(self.interface)

    def attach_both(self) -> None:
        """Attach the programs twice: for uplinks, and for steering."""
        for filters in (self.filters, self.steering):
            filters.attach(self.interface, self.programs)

    def attached(self) -> set[Hook]:
        return {*self.filters.attached(self.interface)}

    def tc(self, what: str, *arguments: str) -> None:
        """Change a qdisc or filter of eth0 as another program does."""
        command, item = what.split()
        self.host.run("tc", item, command, "dev", "eth0", *arguments)

    def shown(self) -> str:
        show = "tc qdisc show dev eth0; tc filter show dev eth0 egress; tc filter show dev eth0 ingress"
        return self.host.run("sh", "-c", show).stdout


@pytest.fixture
def proxy(host: Host, tmp_path: Path) -> Iterator[Proxy]:
    with (
        in_namespace(host.namespace),
        closing(UplinkProgram()) as program,
        closing(ClsactFilters(tmp_path)) as filters,
        closing(ClsactFilters(tmp_path, FilterSet.STEERING)) as steering,
    ):
        programs = {Hook.EGRESS: program.descriptor, Hook.INGRESS: program.policing_descriptor}
        proxy = Proxy(host, filters, steering, find_interface("eth0"), programs)
        before = proxy.shown()
        yield proxy
    host.run("tc", "qdisc", "del", "dev", "eth0", "clsact", check=False)
    assert proxy.shown() == before


def test_filters_and_clsact_come_and_go(proxy: Proxy, tmp_path: Path) -> None:
    before = proxy.shown()
    egress, both = {Hook.EGRESS}, {*Hook}
    for wanted in (egress, egress, both, both, egress):
        proxy.attach(*wanted)
        assert proxy.shown().count("handle 0x4d50 mptcp-throttle direct-action") == len(wanted)
        assert proxy.attached() == wanted
    proxy.attach(*both)
    for _ in range(2):
        proxy.detach()
        assert proxy.shown() == before
    assert not proxy.attached()
    assert not [*tmp_path.iterdir()]


def test_clsact_of_another_program_stays_with_its_filters(proxy: Proxy) -> None:
    proxy.tc("add qdisc", "clsact")
    proxy.tc("add filter", "egress", *FOREIGN)
    before = proxy.shown()
    proxy.attach(Hook.EGRESS)
    assert "pref 4 bpf chain 0 handle 0x4d50 mptcp-throttle" in proxy.shown()
    proxy.detach()
    assert proxy.shown() == before


def test_filter_that_another_program_put_before_it_is_overtaken(proxy: Proxy) -> None:
    proxy.attach(Hook.EGRESS)
    proxy.tc("add filter", "egress", *FOREIGN)
    assert not proxy.attached()
    proxy.attach(Hook.EGRESS)
    assert proxy.attached() == {Hook.EGRESS}
    assert proxy.shown().index("pref 4 bpf") < proxy.shown().index("pref 5 u32")
    assert proxy.shown().count("handle 0x4d50") == 1


def test_first_priority_of_another_program_leaves_ours_behind(proxy: Proxy) -> None:
    proxy.tc("add qdisc", "clsact")
    proxy.tc("add filter", "egress", "prio", "1", *FOREIGN[2:])
    proxy.attach(Hook.EGRESS)
    assert proxy.attached() == {Hook.EGRESS}


@pytest.mark.parametrize("direction", Hook)
def test_own_clsact_stays_while_another_program_uses_it(proxy: Proxy, tmp_path: Path, direction: Hook) -> None:
    proxy.attach(Hook.EGRESS)
    proxy.tc("add filter", direction.name.lower(), *FOREIGN)
    proxy.detach()
    assert "clsact" in proxy.shown()
    assert "mptcp-throttle" not in proxy.shown()
    assert not [*tmp_path.iterdir()]


def test_filter_of_a_killed_instance_is_found(proxy: Proxy, tmp_path: Path) -> None:
    before = proxy.shown()
    assert proxy.filters.interfaces() == []
    proxy.attach(Hook.EGRESS)
    with closing(ClsactFilters(tmp_path)) as later:
        assert later.interfaces() == [proxy.interface]
        later.detach(proxy.interface)
    assert proxy.shown() == before


def test_clsact_of_an_instance_killed_before_its_filter_is_found(proxy: Proxy, tmp_path: Path) -> None:
    proxy.tc("add qdisc", "clsact")
    (tmp_path / f"clsact-{proxy.interface.index}").touch()
    assert proxy.filters.interfaces() == [proxy.interface]
    proxy.detach()
    assert "clsact" not in proxy.shown()


def test_filter_of_another_program_with_our_number_is_not_ours(proxy: Proxy) -> None:
    proxy.tc("add qdisc", "clsact")
    proxy.tc("add filter", "egress", "prio", "77", *FOREIGN[2:])
    before = proxy.shown()
    assert proxy.filters.interfaces() == []
    proxy.detach()
    assert proxy.shown() == before


def test_ingress_qdisc_of_another_program_leaves_no_room_and_stays(proxy: Proxy, tmp_path: Path) -> None:
    proxy.tc("add qdisc", "ingress")
    try:
        before = proxy.shown()
        with pytest.raises(KernelError, match="which has a qdisc ingress"):
            proxy.attach(Hook.EGRESS)
        assert proxy.shown() == before
        assert not [*tmp_path.iterdir()]
    finally:
        proxy.tc("del qdisc", "ingress")


def test_record_of_an_interface_that_has_gone_is_forgotten(proxy: Proxy, tmp_path: Path) -> None:
    present, gone = tmp_path / f"clsact-{proxy.interface.index}", tmp_path / "clsact-4711"
    present.touch()
    gone.touch()
    (tmp_path / "clsact-of-another").touch()
    proxy.filters.forget_stale()
    assert present.exists()
    assert not gone.exists()
    assert (tmp_path / "clsact-of-another").exists()


@pytest.mark.parametrize("first", FilterSet)
def test_last_set_of_filters_removes_clsact(proxy: Proxy, tmp_path: Path, first: FilterSet) -> None:
    before = proxy.shown()
    proxy.attach_both()
    for way in ("egress", "ingress"):
        shown = proxy.host.run("tc", "filter", "show", "dev", "eth0", way).stdout
        assert "pref 76 bpf chain 0 handle 0x4d51 mptcp-throttle-steering direct-action" in shown
        assert "pref 77 bpf chain 0 handle 0x4d50 mptcp-throttle direct-action" in shown
    sets = [proxy.filters, proxy.steering]
    for filters in sets:
        assert filters.attached(proxy.interface) == {*Hook}
    if first is FilterSet.STEERING:
        sets.reverse()
    sets[0].detach(proxy.interface)
    assert sets[0].with_filters() == []
    assert not sets[0].attached(proxy.interface)
    assert sets[1].attached(proxy.interface) == {*Hook}
    assert "clsact" in proxy.shown()
    sets[1].detach(proxy.interface)
    assert proxy.shown() == before
    assert not [*tmp_path.iterdir()]


def test_both_sets_come_before_a_filter_of_another_program(proxy: Proxy) -> None:
    proxy.attach_both()
    proxy.tc("add filter", "egress", *FOREIGN)
    for filters in (proxy.filters, proxy.steering):
        assert filters.attached(proxy.interface) == {Hook.INGRESS}
    proxy.attach_both()
    for filters in (proxy.filters, proxy.steering):
        assert filters.attached(proxy.interface) == {*Hook}
    egress = proxy.host.run("tc", "filter", "show", "dev", "eth0", "egress").stdout
    assert egress.index("pref 3 bpf") < egress.index("pref 4 bpf") < egress.index("pref 5 u32")


def test_filters_of_another_program_keep_the_clsact_of_both_sets(proxy: Proxy, tmp_path: Path) -> None:
    proxy.attach_both()
    proxy.tc("add filter", "ingress", *FOREIGN)
    proxy.filters.detach(proxy.interface)
    proxy.steering.detach(proxy.interface)
    assert "clsact" in proxy.shown()
    assert "mptcp-throttle" not in proxy.shown()
    assert "pref 5 u32" in proxy.shown()
    assert not [*tmp_path.iterdir()]


def test_set_of_a_killed_instance_is_told_from_the_other(proxy: Proxy, tmp_path: Path) -> None:
    proxy.attach_both()
    proxy.filters.detach(proxy.interface)
    with closing(ClsactFilters(tmp_path)) as uplinks, closing(ClsactFilters(tmp_path, FilterSet.STEERING)) as later:
        assert uplinks.with_filters() == []
        assert later.with_filters() == [proxy.interface]
        later.detach(proxy.interface)
    assert "clsact" not in proxy.shown()
