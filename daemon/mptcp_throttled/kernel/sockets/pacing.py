"""What throttled subflows have of their sockets: pace (SO_MAX_PACING_RATE) and class (SO_PRIORITY).

MPTCP's scheduler (net/mptcp/protocol.c, mptcp_subflow_get_send) gives the next data to the subflow that would finish
it first: bytes queued divided by the socket's pacing rate. It does not see qdiscs. A subflow that HTB limits to 1 Mb/s
still appears to offer hundreds, is given hundreds of kilobytes, and the whole connection waits for them. With a pace
equal to its part of the cap, the scheduler gives it only what it can deliver.

The sockets belong to the proxy, so a program on the proxy's cgroup (`program.py`) sets their pace. It decides which of
them are capped, and sets their class, too. Where it is not available, HTB alone enforces the rates.
"""

from __future__ import annotations

import errno
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from mptcp_throttle.linux.kernel_error import KernelError, os_errors
from mptcp_throttle.linux.libbpf import LASTING_ERRORS, BpfMap
from mptcp_throttle.model import AccessNetwork, Ailment, Budget, Devices, FourTuple, Health
from mptcp_throttle.proxies import Proxies
from mptcp_throttled.kernel.sockets.program import SocketProgram
from mptcp_throttled.kernel.sockets.proxy_sockets import ProxyCgroup, count_paced
from mptcp_throttled.vocabulary.control_group import NO_CONTROL_GROUP, ControlGroup, EndedConnection
from mptcp_throttled.vocabulary.counters import ProgramCounters, numbers_of
from mptcp_throttled.vocabulary.features import FeatureState, Situation
from mptcp_throttled.vocabulary.kernel_state import IP_VERSIONS, PacingState, of_version
from mptcp_throttled.vocabulary.traffic import ClosedSubflow

_log = logging.getLogger("mptcp-throttled")

# Finding the proxy's cgroup lists sockets and may list directories: too slow to do for every subflow.
_FIND_SECONDS: Final = 1.0
# Fraction of the time. Deciding for all sockets takes milliseconds. Only idle sockets need it, whose next ACK the
# client may delay by 200 ms.
_DECIDING_MAX_FRACTION: Final = 1 / 10
_RETRY_SECONDS: Final = 30.0
_RELEASE_SECONDS: Final = 1.0
_RELEASE_POLL_SECONDS: Final = 0.02


class PacedSockets:
    """The program on the proxy's cgroup, with its networks, paces and classes, until `close` or the end of the process.

    `cgroup` is the directory to attach to; None finds it from the listeners of the `proxies`. `keep` is called with
    each new file descriptor that keeps the program attached; with None when there is none any more. `steering_maps`
    returns the maps that the steering programs share, by name; None while there are no such programs. No connection in
    the control group has a cap. `allowances` are the maps of budgets, by name.
    """

    def __init__(
        self,
        proxies: Proxies,
        cgroup: Path | None = None,
        *,
        keep: Callable[[int | None], None] = lambda _: None,
        steering_maps: Callable[[], Mapping[str, BpfMap] | None] = lambda: None,
        control_group: ControlGroup = NO_CONTROL_GROUP,
        allowances: Mapping[str, BpfMap] | None = None,
    ) -> None:
        self._proxies, self._ports = proxies, proxies.together.ports
        self._keep = keep
        self._steering_maps = steering_maps
        self._control_group = control_group
        self._allowances = allowances
        self._shared: Mapping[str, BpfMap] | None = None
        self._configured = cgroup
        self._proxy = ProxyCgroup(self._ports)
        self._program: SocketProgram | None = None
        self._attached_to: tuple[Path, tuple[int, int]] | None = None
        self._networks: tuple[AccessNetwork, ...] = ()
        self._reduced: tuple[tuple[AccessNetwork, ...], tuple[AccessNetwork, ...]] = (), ()
        self._paces: dict[FourTuple, int] = {}
        self._classes = _by_version({})
        self._has_qdisc = True
        self._counters = ProgramCounters()
        self._closed: deque[ClosedSubflow] = deque()
        self._snapshot: PacingState | None = None
        self._find_at = -math.inf
        self._decide_at = -math.inf
        self._is_decision_due = False
        self._load_at = -math.inf
        self._problem = ""

    def follow(self, situation: Situation) -> None:
        """Attach the program if it is not attached or if the proxy's cgroup is another.

        While the proxy restarts, or its cgroup cannot be found, the program stays where it is, so that paces can still
        be removed.
        """
        self._set_networks(situation.networks if situation.throttling else self._with_budgets_only(situation.networks))
        now = time.monotonic()
        if now >= self._find_at or self._is_outdated:
            self._find_at = now + _FIND_SECONDS
            self._follow_proxy()

    @property
    def state(self) -> FeatureState:
        """Why the program is not attached; what it has counted since it was."""
        if self._program is not None:
            with suppress(KernelError):
                self._counters = self._program.counters()
        return FeatureState(None if self.is_attached else self._problem, numbers_of(self._counters))

    def release(self) -> tuple[str, ...]:
        """Cap no subflow any more; `free_sockets` waits until the sockets follow."""
        self._set_networks(())
        return ()

    def read(self) -> PacingState:
        if self._program is None:
            return PacingState(None, self._problem)
        if self._is_decision_due:
            self._decide_now()
        if self._snapshot is None:
            self._snapshot = PacingState(MappingProxyType(dict(self._paces)))
        return self._snapshot

    @property
    def is_attached(self) -> bool:
        return self._program is not None

    @property
    def _is_outdated(self) -> bool:
        """Whether the program has other maps of the steering programs than there are now."""
        return self._program is not None and self._shared is not self._steering_maps()

    def _follow_proxy(self) -> None:
        try:
            cgroup = self._configured or self._proxy.find()
            needs_program = self._program is None or self._is_outdated or not self._covers(cgroup)
            if self._is_detached(cgroup):
                self._attach_again(cgroup)
            elif needs_program and time.monotonic() >= self._load_at:
                self._replace(self._attached_program(cgroup))
                self._attached_to = cgroup, _identity(cgroup)
        except KernelError as error:
            self._problem = str(error)

    def _is_detached(self, cgroup: Path) -> bool:
        """Whether another program has detached ours.

        A restart of the proxy deletes its cgroup, which detaches what is attached there, too; that is no cgroup that
        the program covers.
        """
        return self._program is not None and self._covers(cgroup) and not self._program.is_attached

    def _attach_again(self, cgroup: Path) -> None:
        try:
            self._replace(self._attached_program(cgroup))
        except KernelError:
            _log.warning("another program has detached ours from the proxy's cgroup")
            self.close()
            raise
        _log.warning("another program had detached ours from the proxy's cgroup; it is attached again")

    def _replace(self, program: SocketProgram) -> None:
        """Put an attached program in the place of the present one, which until then goes on."""
        if self._program is not None:
            # Since the new one was attached, both have reported what closes; from here on, only its reports are read.
            self._closed.extend(self._program.closed_subflows())
            self._program.detach()
        self._program = program
        self._keep(program.link)
        self._snapshot = None

    def _covers(self, cgroup: Path) -> bool:
        """Whether the program is attached to this cgroup, or to one above it.

        Any user of this host may listen on a port of the proxy for a moment, in its own cgroup. The program is then
        attached to one above both, and stays there.
        """
        if self._attached_to is None:
            return False
        path, identity = self._attached_to
        with suppress(KernelError):
            return cgroup.is_relative_to(path) and _identity(path) == identity
        return False

    def _attached_program(self, cgroup: Path) -> SocketProgram:
        """A program that has all that it acts by before it is attached, so that it frees no socket."""
        program = self._loaded_program()
        try:
            program.set_paces(self._paces)
            if self._has_qdisc:
                self._set_all_classes(program)
            program.set_networks(self._networks)
            program.attach(cgroup)
        except KernelError:
            program.detach()
            raise
        return program

    def _loaded_program(self) -> SocketProgram:
        self._shared = self._steering_maps()
        try:
            return SocketProgram(self._proxies, self._shared, self._control_group, self._allowances)
        except KernelError as error:
            if error.number in LASTING_ERRORS:  # each attempt takes milliseconds
                self._load_at = time.monotonic() + _RETRY_SECONDS
            raise

    def _with_budgets_only(self, networks: tuple[AccessNetwork, ...]) -> tuple[AccessNetwork, ...]:
        """Those of which the program has to count TCP without MPTCP while nothing is throttled, without rates."""
        known, reduced = self._reduced
        if known is not networks:
            reduced = tuple(
                replace(
                    network,
                    rates={},
                    overflow=None,
                    provisional=0.0,
                    healthy=Health(),
                    budgets=_without_stages(network),
                    devices=Devices(),
                )
                for network in networks
                if network.all_budgets
            )
            self._reduced = networks, reduced
        return reduced

    def _set_networks(self, networks: tuple[AccessNetwork, ...]) -> None:
        """Let the kernel program decide by these networks; if it refuses, `follow` soon attaches it again."""
        if networks == self._networks:
            return
        self._networks = networks
        if self._program is not None:
            try:
                self._program.set_networks(networks)
                self._program.decide_now()
            except KernelError as error:
                self.close()
                self._problem = str(error)

    def change(self, add: Mapping[FourTuple, int], remove: Collection[FourTuple]) -> None:
        """Remove and add paces, in bytes/s; a socket follows at its next RTT sample. Raises KernelError."""
        program = self._attached("set the pace of sockets")
        self._snapshot = None
        _change(self._paces, program.set_paces, program.remove_paces, add, remove)
        self._decide_now()

    def classes(self, ip_version: int) -> Mapping[FourTuple, int]:
        """The class minors that the program has now for the subflows of one IP version."""
        return MappingProxyType(self._classes[ip_version])

    def adopt_paces(self, paces: Mapping[FourTuple, int]) -> None:
        """Before the program is attached: begin with these paces, in bytes/s, which an earlier instance has set."""
        self._paces = dict(paces)

    def adopt_classes(self, minors: Mapping[FourTuple, int]) -> None:
        """Before the program is attached: begin with these classes, in which an earlier instance has put subflows."""
        self._classes = _by_version(minors)

    def change_classes(self, ip_version: int, add: Mapping[FourTuple, int], remove: Collection[FourTuple]) -> None:
        """Take subflows of one IP version out of their classes, and put `add` into the classes with these minors.

        Raises KernelError.
        """
        program = self._attached("set the class of sockets")
        set_ = program.set_classes if self._has_qdisc else _leave
        _change(self._classes[ip_version], set_, program.remove_classes, add, remove)
        self._decide_now()

    def set_has_qdisc(self, has_qdisc: bool) -> None:
        """Whether our HTB may be there. Else no socket gets a class: to another qdisc its number may be a priority.

        Raises KernelError.
        """
        if has_qdisc == self._has_qdisc:
            return
        if self._program is not None:
            if has_qdisc:
                self._set_all_classes(self._program)
            else:
                for minors in self._classes.values():
                    self._program.remove_classes(minors)
        self._has_qdisc = has_qdisc
        self._decide_now()

    def _set_all_classes(self, program: SocketProgram) -> None:
        for minors in self._classes.values():
            program.set_classes(minors)

    def require(self) -> None:
        """Raise KernelError if the kernel does not load the program."""
        SocketProgram(self._proxies).detach()

    def _attached(self, purpose: str) -> SocketProgram:
        if self._program is None:
            raise KernelError(purpose, errno.ENODEV, "the program is not attached")
        return self._program

    def _decide_now(self) -> None:
        """Let the program decide for idle sockets, too: now, or at a later `read` if that would take too much time."""
        began = time.monotonic()
        self._is_decision_due = began < self._decide_at
        if self._program is not None and not self._is_decision_due:
            with suppress(KernelError):
                self._program.decide_now()
            ended = time.monotonic()
            self._decide_at = ended + (ended - began) / _DECIDING_MAX_FRACTION

    def closed_subflows(self) -> Iterator[ClosedSubflow]:
        """The subflows that have closed since the last call, one perhaps twice; for any thread."""
        program = self._program
        with suppress(IndexError):
            while True:
                yield self._closed.popleft()
        if program is not None:
            yield from program.closed_subflows()

    def decide_now(self) -> None:
        """Decide for all sockets, idle or not; for any thread. Raises KernelError."""
        program = self._program
        if program is not None:
            program.decide_unless_detached()

    def ended_connections(self) -> Iterator[EndedConnection]:
        return iter(()) if self._program is None else self._program.ended_connections()

    def ailments(self) -> dict[FourTuple, Ailment]:
        return {} if self._program is None else self._program.ailments()

    def free_sockets(self) -> int:
        """Free all sockets, trying for up to a second; the number that still have a pace. Raises KernelError."""
        self._networks = ()
        deadline = time.monotonic() + _RELEASE_SECONDS
        if self._program is not None:
            self._program.release()
        is_released = self._program is not None
        while True:
            # A proxy that is stopping has no listener any more, so that its cgroup is unknown: this needs none.
            is_released = is_released or self._release_unattached()
            paced = count_paced(self._ports)
            if (is_released and not paced) or time.monotonic() > deadline:
                return paced
            time.sleep(_RELEASE_POLL_SECONDS)

    def _release_unattached(self) -> bool:
        """Free all sockets by a program that is attached to no cgroup; false if another try may be needed.

        Sockets without a pace may have a limit of unsent data, which inet_diag does not show.
        """
        try:
            program = SocketProgram(self._proxies)
        except KernelError as error:
            return error.number in LASTING_ERRORS and not count_paced(self._ports)
        try:
            program.release()
        except KernelError:
            return False
        finally:
            program.detach()
        return True

    def close(self) -> None:
        """Detach the program and drop its maps."""
        if self._program is not None:
            self._closed.extend(self._program.closed_subflows())
            self._program.close()
            self._keep(None)
        self._program = None
        self._paces, self._classes = {}, _by_version({})
        self._snapshot = None


def _without_stages(network: AccessNetwork) -> tuple[Budget, ...]:
    """Its budgets and those of its devices, which then count, but lower no rate."""
    return tuple(replace(budget, stages=()) for budget in network.all_budgets)


def _leave(minors: Mapping[FourTuple, int]) -> None:
    """Give no socket a class."""


def _by_version(minors: Mapping[FourTuple, int]) -> dict[int, dict[FourTuple, int]]:
    return {version: of_version(minors, version) for version in IP_VERSIONS}


def _change(
    known: dict[FourTuple, int],
    set_: Callable[[Mapping[FourTuple, int]], None],
    remove_: Callable[[Collection[FourTuple]], None],
    add: Mapping[FourTuple, int],
    remove: Collection[FourTuple],
) -> None:
    remove_(remove)
    for ends in remove:
        known.pop(ends, None)
    try:
        set_(add)
    except KernelError:
        for ends in add:
            known.pop(ends, None)
        with suppress(KernelError):
            remove_(add)
        raise
    known.update(add)


def _identity(cgroup: Path) -> tuple[int, int]:
    """Device and inode number: they tell whether a path still leads to the same cgroup."""
    with os_errors(f"cgroup {cgroup}"):
        status = cgroup.stat()
        return status.st_dev, status.st_ino
