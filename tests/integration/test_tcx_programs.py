"""Our programs at the egress and the ingress of an interface by TCX: they come first, and those of others stay."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from passing_program import passing_program, programs_at
from refusals import refused

from mptcp_lab.host import Host
from mptcp_lab.namespaces import in_namespace
from mptcp_throttle.linux import tcx
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.libbpf import AttachType, program_id
from mptcp_throttled.kernel.clsact_filters import ClsactFilters, Hook
from mptcp_throttled.kernel.interfaces import Interface, find_interface
from mptcp_throttled.kernel.tcx_programs import TcxPrograms
from mptcp_throttled.kernel.uplink.program import UplinkProgram

EGRESS = AttachType.TCX_EGRESS


@dataclass(frozen=True)
class Proxy:
    """A host with our programs at eth0, whose records are in a directory of the test's own."""

    host: Host
    ours: TcxPrograms
    interface: Interface
    programs: dict[Hook, int]

    def attach(self, *hooks: Hook) -> None:
        """Attach our programs there and nowhere else."""
        self.ours.attach(self.interface, {hook: self.programs[hook] for hook in hooks})

    @property
    def ids(self) -> tuple[int, int]:
        """Of our programs: at the egress, at the ingress."""
        return program_id(self.programs[Hook.EGRESS]), program_id(self.programs[Hook.INGRESS])

    def at_egress(self) -> tuple[int, ...]:
        return programs_at(self.host, EGRESS)

    def at_ingress(self) -> tuple[int, ...]:
        return programs_at(self.host, AttachType.TCX_INGRESS)

    def qdiscs(self) -> str:
        return self.host.run("tc", "qdisc", "show", "dev", "eth0").stdout


@pytest.fixture
def proxy(host: Host, tmp_path: Path) -> Iterator[Proxy]:
    with in_namespace(host.namespace), closing(UplinkProgram()) as program, closing(TcxPrograms(tmp_path)) as ours:
        programs = {Hook.EGRESS: program.descriptor, Hook.INGRESS: program.policing_descriptor}
        proxy = Proxy(host, ours, find_interface("eth0"), programs)
        yield proxy
        ours.detach(proxy.interface)
        assert (proxy.at_egress(), proxy.at_ingress()) == ((), ())


def test_programs_come_and_go(proxy: Proxy, tmp_path: Path) -> None:
    egress, ingress = proxy.ids
    before = proxy.qdiscs()
    for hooks in ([Hook.EGRESS], [Hook.EGRESS], [*Hook], [*Hook], [Hook.EGRESS], [*Hook]):
        proxy.attach(*hooks)
        assert proxy.at_egress() == (egress,)
        assert proxy.at_ingress() == ((ingress,) if Hook.INGRESS in hooks else ())
        assert proxy.ours.attached(proxy.interface) == {*hooks}
        assert proxy.qdiscs() == before
    for _ in range(2):
        proxy.ours.detach(proxy.interface)
        assert (proxy.at_egress(), proxy.at_ingress()) == ((), ())
    assert not proxy.ours.attached(proxy.interface)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("first", [True, False])
def test_programs_come_before_one_of_others(proxy: Proxy, tmp_path: Path, *, first: bool) -> None:
    if not first:
        proxy.attach(Hook.EGRESS)
    with passing_program(proxy.host, EGRESS, tmp_path) as foreign:
        if not first:
            assert not proxy.ours.attached(proxy.interface)
        proxy.attach(Hook.EGRESS)
        assert proxy.at_egress() == (proxy.ids[0], foreign)
        assert proxy.ours.attached(proxy.interface) == {Hook.EGRESS}
        proxy.ours.detach(proxy.interface)
        assert proxy.at_egress() == (foreign,)


@pytest.mark.parametrize("others_before", [0, 1, 2])
def test_programs_of_a_killed_instance_are_found_and_no_others(
    proxy: Proxy, tmp_path: Path, others_before: int
) -> None:
    with ExitStack() as stack:
        foreign = [stack.enter_context(passing_program(proxy.host, EGRESS, tmp_path))]
        proxy.attach(*Hook)
        foreign += [stack.enter_context(passing_program(proxy.host, EGRESS, tmp_path)) for _ in range(others_before)]
        with closing(TcxPrograms(tmp_path)) as later:
            assert later.with_filters() == later.interfaces() == [proxy.interface]
            later.detach(proxy.interface)
            assert later.with_filters() == later.interfaces() == []
        assert {*proxy.at_egress()} == {*foreign}
        assert proxy.at_ingress() == ()


def test_next_instance_takes_the_place_of_a_killed_one(proxy: Proxy, tmp_path: Path) -> None:
    proxy.attach(*Hook)
    with closing(UplinkProgram()) as program, closing(TcxPrograms(tmp_path)) as later:
        later.attach(proxy.interface, {Hook.EGRESS: program.descriptor})
        assert later.attached(proxy.interface) == {Hook.EGRESS}
        assert (proxy.at_egress(), proxy.at_ingress()) == ((program_id(program.descriptor),), ())
        later.detach(proxy.interface)


def test_filter_of_an_earlier_version_goes_when_a_program_comes(proxy: Proxy, tmp_path: Path) -> None:
    before = proxy.qdiscs()
    with closing(ClsactFilters(tmp_path)) as earlier:
        earlier.attach(proxy.interface, proxy.programs)
    assert proxy.ours.with_filters() == [proxy.interface]
    proxy.attach(Hook.EGRESS)
    assert proxy.qdiscs() == before
    assert proxy.ours.attached(proxy.interface) == {Hook.EGRESS}


def test_filter_is_attached_where_the_kernel_has_no_tcx(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = proxy.qdiscs()
    monkeypatch.setattr(tcx, "has_tcx", lambda: False)
    proxy.attach(*Hook)
    assert (proxy.at_egress(), proxy.at_ingress()) == ((), ())
    assert "clsact" in proxy.qdiscs()
    assert proxy.ours.attached(proxy.interface) == {*Hook}
    proxy.ours.detach(proxy.interface)
    assert proxy.qdiscs() == before
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("call", ["bpf prog attach", "bpf prog query", "bpf prog detach"])
def test_refused_call_leaves_a_program_that_is_found(proxy: Proxy, call: str) -> None:
    proxy.attach(Hook.EGRESS)
    with refused(call, number=errno.ENOMEM), pytest.raises(KernelError):
        proxy.attach(*Hook)
    proxy.ours.detach(proxy.interface)
    assert proxy.ours.interfaces() == []


def test_record_of_an_interface_that_has_gone_is_forgotten(proxy: Proxy, tmp_path: Path) -> None:
    proxy.attach(Hook.EGRESS)
    (tmp_path / "tcx-4711").write_text("1 2", encoding="utf-8")
    proxy.ours.forget_stale()
    assert [path.name for path in tmp_path.iterdir()] == [f"tcx-{proxy.interface.index}"]
