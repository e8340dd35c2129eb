"""When the discard-prevention programs are loaded and attached, and when they are tried again."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence

import pytest
from examples import ETHERNET, WIFI

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import AccessNetwork
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import Proxies
from mptcp_throttled.kernel import discards as discard_prevention
from mptcp_throttled.kernel.discards import DiscardPrevention
from mptcp_throttled.kernel.interfaces import Interface
from mptcp_throttled.vocabulary.counters import DiscardCounters
from mptcp_throttled.vocabulary.features import Situation

NETWORKS = (ETHERNET, WIFI)
LOOK = 1.0
RETRY = 30.0


class Kernel:
    """The programs, the interfaces that there are, and the time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.interfaces = [Interface(1, "eth0"), Interface(2, "wg0")]
        self.loads = self.attaches = 0
        self.load_error = 0
        self.loaded = False
        self.attach_errors: dict[str, int] = {}
        self.networks: Sequence[AccessNetwork] = ()
        self.links: dict[int, str] = {}
        self.detached: set[int] = set()

    def load(self, _ports: object) -> Kernel:
        self.loads += 1
        if self.load_error:
            raise KernelError("load discards.bpf.o", self.load_error)
        self.loaded = True
        return self

    def set_networks(self, networks: Sequence[AccessNetwork]) -> None:
        self.networks = networks

    def attach(self, interface: Interface) -> list[int]:
        if error := self.attach_errors.get(interface.name):
            raise KernelError(f"attach lower_data_acks to {interface.name}", error)
        self.attaches += 1
        link = os.open(os.devnull, os.O_RDONLY)
        self.links[link] = interface.name
        return [link]

    def is_attached(self, link: int) -> bool:
        return link not in self.detached

    def counters(self) -> DiscardCounters:
        return DiscardCounters(lowered=self.attaches)

    def close(self) -> None:
        self.loaded = False

    @property
    def attached(self) -> list[str]:
        """The interfaces whose links are open."""
        return sorted(name for link, name in self.links.items() if is_open(link))


def is_open(link: int) -> bool:
    try:
        os.fstat(link)
    except OSError:
        return False
    return True


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(discard_prevention, "DiscardPrograms", kernel.load)
    monkeypatch.setattr(discard_prevention, "is_attached", kernel.is_attached)
    monkeypatch.setattr(discard_prevention, "find_interfaces", lambda _names: list(kernel.interfaces))
    monkeypatch.setattr(time, "monotonic", lambda: kernel.now)
    return kernel


@pytest.fixture
def prevention(kernel: Kernel) -> Iterator[DiscardPrevention]:  # noqa: ARG001
    prevention = DiscardPrevention(Proxies.only(Ports.of([8080]), ("eth0", "wg0")))
    yield prevention
    prevention.release()


def test_programs_are_attached_while_there_are_networks(kernel: Kernel, prevention: DiscardPrevention) -> None:
    prevention.follow(Situation(NETWORKS))
    assert (kernel.networks, kernel.attached, prevention.state.problem) == (NETWORKS, ["eth0", "wg0"], None)
    prevention.follow(Situation((WIFI,)))
    assert kernel.networks == (WIFI,)
    prevention.follow(Situation(()))
    assert kernel.attached == []
    prevention.follow(Situation(NETWORKS))
    assert (kernel.attached, kernel.loads) == (["eth0", "wg0"], 1)
    prevention.release()
    assert (kernel.attached, kernel.loaded) == ([], False)


def test_interfaces_are_looked_for_once_a_second(kernel: Kernel, prevention: DiscardPrevention) -> None:
    prevention.follow(Situation(NETWORKS))
    kernel.interfaces = [Interface(1, "eth0")]
    prevention.follow(Situation(NETWORKS))
    assert kernel.attached == ["eth0", "wg0"]
    kernel.now += LOOK
    prevention.follow(Situation(NETWORKS))
    assert kernel.attached == ["eth0"]


def test_programs_that_another_program_detached_are_attached_again(
    kernel: Kernel, prevention: DiscardPrevention, caplog: pytest.LogCaptureFixture
) -> None:
    prevention.follow(Situation(NETWORKS))
    kernel.detached = {link for link, name in kernel.links.items() if name == "eth0"}
    kernel.now += LOOK
    prevention.follow(Situation(NETWORKS))
    assert (kernel.attached, kernel.attaches) == (["eth0", "wg0"], 3)
    assert caplog.messages == ["eth0: another program had detached a discard-prevention program"]


def test_interface_that_refuses_does_not_concern_the_others(kernel: Kernel, prevention: DiscardPrevention) -> None:
    kernel.attach_errors = {"eth0": errno.ENODEV}
    prevention.follow(Situation(NETWORKS))
    assert (kernel.attached, prevention.state.problem) == (["wg0"], "attach lower_data_acks to eth0: ENODEV")
    kernel.attach_errors = {}
    kernel.now += LOOK
    prevention.follow(Situation(NETWORKS))
    assert (kernel.attached, prevention.state.problem) == (["eth0", "wg0"], None)


@pytest.mark.parametrize(("error", "loads"), [(errno.ENOMEM, 2), (errno.EPERM, 1)])
def test_load_is_tried_again_after_an_error_that_may_pass(
    kernel: Kernel, prevention: DiscardPrevention, error: int, loads: int
) -> None:
    kernel.load_error = error
    prevention.follow(Situation(NETWORKS))
    kernel.now += LOOK
    prevention.follow(Situation(NETWORKS))
    assert kernel.loads == 1
    kernel.now += RETRY
    prevention.follow(Situation(NETWORKS))
    assert kernel.loads == loads
    assert prevention.state.problem == f"load discards.bpf.o: {errno.errorcode[error]}"


def test_nothing_is_attached_after_an_error_that_will_not_pass(kernel: Kernel, prevention: DiscardPrevention) -> None:
    kernel.attach_errors = {"wg0": errno.EINVAL}
    prevention.follow(Situation(NETWORKS))
    kernel.attach_errors = {}
    kernel.now += RETRY
    prevention.follow(Situation((WIFI,)))
    assert kernel.attached == []
    assert prevention.state.problem == "attach lower_data_acks to wg0: EINVAL"


def test_interface_that_was_made_again_gets_the_programs(kernel: Kernel, prevention: DiscardPrevention) -> None:
    prevention.follow(Situation(NETWORKS))
    kernel.interfaces = [Interface(3, "eth0")]
    kernel.now += LOOK
    prevention.follow(Situation(NETWORKS))
    assert kernel.attached == ["eth0"]
    assert prevention.state.counters == {"lowered": 3, "keep_alives": 0}


def test_nothing_is_a_problem_while_there_are_no_networks(kernel: Kernel, prevention: DiscardPrevention) -> None:
    kernel.load_error = errno.EPERM
    prevention.follow(Situation(NETWORKS))
    prevention.follow(Situation(()))
    assert prevention.state.problem is None
    prevention.follow(Situation(NETWORKS))
    assert prevention.state.problem == "load discards.bpf.o: EPERM"
