"""What `PacedSockets` does with the programs, and the paces that it reports: later changes do not reach them."""

from __future__ import annotations

import errno
import itertools
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import pytest
from examples import ETHERNET, WIFI, ends

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import AccessNetwork, FourTuple, Token
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import Proxies
from mptcp_throttled.kernel.classes.rules import RulesClassifier
from mptcp_throttled.kernel.classes.socket import SocketClassifier
from mptcp_throttled.kernel.sockets import pacing
from mptcp_throttled.kernel.sockets.pacing import PacedSockets
from mptcp_throttled.kernel.sockets.proxy_sockets import ProxyCgroup
from mptcp_throttled.vocabulary.features import Situation
from mptcp_throttled.vocabulary.kernel_state import AssignmentState, PacingState
from mptcp_throttled.vocabulary.traffic import ClosedSubflow, SocketTotals

ONE: Final = ends("10.1.0.2")
TWO: Final = ends("10.1.0.2", 40001)
SIX: Final = ends("fd00:1::2")


class NothingLeft(RulesClassifier):
    """An iptables classifier of which the kernel has nothing."""

    def read(self) -> dict[int, AssignmentState]:
        return {}


class Program:
    """A program that is attached to nothing. `refused` is the error with which the kernel does not load it."""

    refused: int | None = None
    attached: list[Program]
    links = itertools.count(1)

    def __init__(self, _ports: object, *_maps_and_group: object) -> None:
        if self.refused is not None:
            raise KernelError("load throttle.bpf.o", self.refused)
        self.link: int | None = None
        self.networks: tuple[AccessNetwork, ...] = ()
        self.paces: dict[FourTuple, int] = {}
        self.classes: dict[FourTuple, int] = {}
        self.full = self.fails = False
        self.is_attached = True
        self.is_closed = False
        self.decided = 0
        self.closed: list[ClosedSubflow] = []

    def attach(self, _cgroup: Path) -> None:
        self.had_when_attached = (self.networks, dict(self.paces), dict(self.classes))
        self.link = next(self.links)
        self.attached.append(self)

    def set_networks(self, networks: tuple[AccessNetwork, ...]) -> None:
        if self.fails:
            raise KernelError("bpf map update", errno.ENOMEM)
        self.networks = networks

    def set_paces(self, paces: Mapping[FourTuple, int]) -> None:
        if self.full and paces:
            raise KernelError("bpf map update", errno.ENOMEM)
        self.paces.update(paces)

    def remove_paces(self, subflows: Collection[FourTuple]) -> None:
        for subflow in subflows:
            self.paces.pop(subflow, None)

    def set_classes(self, minors: Mapping[FourTuple, int]) -> None:
        if self.full and minors:
            raise KernelError("bpf map update", errno.ENOMEM)
        self.classes.update(minors)

    def remove_classes(self, subflows: Collection[FourTuple]) -> None:
        for subflow in subflows:
            self.classes.pop(subflow, None)

    def decide_now(self) -> None:
        self.decided += 1

    def closed_subflows(self) -> list[ClosedSubflow]:
        taken, self.closed = self.closed, []
        return taken

    def detach(self) -> None:
        self.closed = []
        self.attached.remove(self)

    def close(self) -> None:
        self.is_closed = True
        self.detach()


@pytest.fixture(autouse=True)
def _programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Program, "attached", [], raising=False)
    monkeypatch.setattr(pacing, "SocketProgram", Program)
    monkeypatch.setattr(pacing, "_FIND_SECONDS", 0.0)


@pytest.fixture
def sockets(tmp_path: Path) -> PacedSockets:
    """Sockets whose cgroup is some directory."""
    return PacedSockets(Proxies.only(Ports.of([8080])), tmp_path)


@pytest.fixture
def program(sockets: PacedSockets) -> Program:
    """The program that they have attached."""
    look(sockets)
    (program,) = Program.attached
    return program


def look(sockets: PacedSockets) -> PacingState:
    """What is read after one more step of the loop in the same situation."""
    sockets.follow(Situation(sockets._networks, throttling=True))
    return sockets.read()


@pytest.mark.parametrize("successor", [True, False])
def test_what_has_closed_outlives_the_program_that_reported_it(
    sockets: PacedSockets, program: Program, successor: bool
) -> None:
    first, second = (ClosedSubflow(Token(1), ONE, cookie, SocketTotals(100)) for cookie in (1, 2))
    program.closed = [first]
    if successor:
        program.is_attached = False
        look(sockets)
        (present,) = Program.attached
        present.closed = [second]
    else:
        sockets.close()
    assert [*sockets.closed_subflows()] == ([first, second] if successor else [first])
    assert [*sockets.closed_subflows()] == []


def test_paces_that_were_read_stay_as_they_were_after_a_change(sockets: PacedSockets) -> None:
    empty = look(sockets)
    sockets.change({ONE: 1000}, ())
    one = look(sockets)
    sockets.change({TWO: 2000}, (ONE,))
    two = look(sockets)
    assert [state.paces for state in (empty, one, two)] == [{}, {ONE: 1000}, {TWO: 2000}]


def test_pace_lost_in_a_refused_update_can_still_be_removed(sockets: PacedSockets, program: Program) -> None:
    sockets.change({ONE: 1000}, ())
    program.full = True
    with pytest.raises(KernelError):
        sockets.change({ONE: 500, TWO: 500}, ())
    sockets.change({}, (ONE,))
    assert (look(sockets).paces, program.paces) == ({}, {})


def test_classes_of_a_refused_change_are_gone_from_the_program(sockets: PacedSockets, program: Program) -> None:
    sockets.change_classes(4, {ONE: 2}, ())
    program.full = True
    with pytest.raises(KernelError):
        sockets.change_classes(4, {ONE: 3, TWO: 3}, ())
    assert (dict(sockets.classes(4)), program.classes) == ({}, {})


class Watched(FourTuple):
    """A four-tuple that counts how often its attributes are read."""

    looks = 0

    def __getattribute__(self, name: str) -> object:
        Watched.looks += 1
        return super().__getattribute__(name)


def test_classes_are_counted_without_looking_at_a_subflow(sockets: PacedSockets) -> None:
    look(sockets)
    marking = SocketClassifier(sockets, NothingLeft(0xFFFF_0000))
    marking.make(4, {Watched(one.client, one.proxy): 2 for one in (ONE, TWO)})
    marking.make(6, {Watched(SIX.client, SIX.proxy): 3})
    Watched.looks = 0
    assert (marking.count(), Watched.looks) == ({4: 2, 6: 1}, 0)
    marking.remove(4)
    assert marking.count() == {6: 1}


def test_program_on_a_wider_cgroup_takes_over_paces_and_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "squid").mkdir()
    found = tmp_path / "squid"
    monkeypatch.setattr(ProxyCgroup, "find", lambda _: found)
    sockets = PacedSockets(Proxies.only(Ports.of([8080])))
    look(sockets)
    sockets.change({ONE: 1000}, ())
    sockets.change_classes(4, {ONE: 2}, ())
    found = tmp_path
    assert look(sockets).paces == {ONE: 1000}
    (program,) = Program.attached
    assert (program.paces, program.classes) == ({ONE: 1000}, {ONE: 2})
    assert program.had_when_attached == ((), {ONE: 1000}, {ONE: 2})
    found = tmp_path / "squid"
    look(sockets)
    assert Program.attached == [program]


def test_program_that_another_program_detached_is_attached_again(
    sockets: PacedSockets, caplog: pytest.LogCaptureFixture
) -> None:
    sockets.follow(Situation((WIFI,), throttling=True))
    look(sockets)
    sockets.change({ONE: 1000}, ())
    sockets.change_classes(4, {ONE: 2}, ())
    (detached,) = Program.attached
    detached.is_attached = False
    assert look(sockets).paces == {ONE: 1000}
    (program,) = Program.attached
    assert program is not detached
    assert program.had_when_attached == ((WIFI,), {ONE: 1000}, {ONE: 2})
    look(sockets)
    assert Program.attached == [program]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_program_whose_cgroup_is_deleted_is_not_detached_by_another(
    sockets: PacedSockets, program: Program, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    program.is_attached = False
    tmp_path.rename(tmp_path.with_name("previous"))
    tmp_path.mkdir()
    look(sockets)
    assert program not in Program.attached
    assert len(Program.attached) == 1
    assert caplog.records == []


def test_program_that_cannot_be_attached_again_is_missed_once(
    sockets: PacedSockets, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    look(sockets)
    sockets.change_classes(4, {ONE: 2}, ())
    (detached,) = Program.attached
    detached.is_attached = False
    monkeypatch.setattr(Program, "refused", errno.EPERM)
    for _ in range(3):
        assert look(sockets).problem == "load throttle.bpf.o: EPERM"
    assert (detached.is_closed, dict(sockets.classes(4))) == (True, {})  # no socket keeps its pace or class
    assert len(caplog.records) == 1


def test_program_that_is_attached_again_has_no_classes(sockets: PacedSockets) -> None:
    look(sockets)
    sockets.change_classes(4, {ONE: 2}, ())
    sockets.close()
    look(sockets)
    assert dict(sockets.classes(4)) == {}


def test_kernel_decides_by_networks_that_were_set_before_it_was_attached(sockets: PacedSockets) -> None:
    sockets.follow(Situation((WIFI, ETHERNET), throttling=True))
    look(sockets)
    (program,) = Program.attached
    assert (program.networks, sockets.is_attached) == ((WIFI, ETHERNET), True)


def test_program_has_what_was_adopted_before_it_is_attached(sockets: PacedSockets) -> None:
    sockets.adopt_paces({ONE: 1000})
    sockets.adopt_classes({ONE: 2})
    sockets.follow(Situation((WIFI,), throttling=True))
    assert sockets.read().paces == {ONE: 1000}
    (program,) = Program.attached
    assert program.had_when_attached == ((WIFI,), {ONE: 1000}, {ONE: 2})
    assert dict(sockets.classes(4)) == {ONE: 2}


def test_link_is_kept_of_the_program_that_is_attached(tmp_path: Path) -> None:
    kept: list[int | None] = []
    keeping = PacedSockets(Proxies.only(Ports.of([8080])), tmp_path, keep=kept.append)
    look(keeping)
    (program,) = Program.attached
    assert kept == [program.link]
    keeping.close()
    look(keeping)
    assert kept == [program.link, None, Program.attached[0].link]


@pytest.mark.parametrize(("number", "seconds"), [(errno.EPERM, 30.0), (errno.ESRCH, 30.0), (errno.ENOMEM, 1.0)])
def test_program_is_loaded_again_soon_unless_that_is_of_no_use(
    sockets: PacedSockets, monkeypatch: pytest.MonkeyPatch, number: int, seconds: float
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(pacing, "_FIND_SECONDS", 1.0)
    monkeypatch.setattr(Program, "refused", number)
    assert look(sockets).problem == sockets.state.problem == f"load throttle.bpf.o: {errno.errorcode[number]}"
    monkeypatch.setattr(Program, "refused", None)
    now += seconds - 0.5
    assert look(sockets).paces is None
    now += 1.5
    assert look(sockets) == PacingState({})


def test_kernel_caps_no_subflow_while_none_may_be_throttled(sockets: PacedSockets) -> None:
    sockets.follow(Situation((WIFI,), throttling=True))
    (program,) = Program.attached
    assert program.networks == (WIFI,)
    sockets.follow(Situation((WIFI,), throttling=False))
    assert not program.networks


def test_program_that_refuses_networks_is_replaced_by_a_new_one(sockets: PacedSockets, program: Program) -> None:
    sockets.change({ONE: 1000}, ())
    program.fails = True
    sockets.follow(Situation((WIFI,), throttling=True))
    (successor,) = Program.attached
    assert successor is not program
    assert (sockets.read().paces, successor.networks) == ({}, (WIFI,))
