"""The feature: capped subflows of downloads are held back by programs at the proxy's interfaces.

The programs decide alone; the daemon gives them the access networks, and shares to the subflows that last. A capped
subflow without a share sends nothing while a preferred one lives. The filters stay when this process is killed, and the
programs go on deciding; the next instance adopts what they have told MPTCP.
"""

from __future__ import annotations

import errno
import logging
import math
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.libbpf import LASTING_ERRORS, BpfMap
from mptcp_throttle.model import AccessNetwork, FourTuple, RateKind
from mptcp_throttle.ports import Ports
from mptcp_throttle.proxies import Proxies
from mptcp_throttled.kernel.clsact_filters import ClsactFilters, Hook
from mptcp_throttled.kernel.interfaces import Interface, find_interfaces, read_link_header
from mptcp_throttled.kernel.networks_map import by_name
from mptcp_throttled.kernel.reminder import Reminder
from mptcp_throttled.kernel.share_numbers import ShareNumbers
from mptcp_throttled.kernel.steering.program import SteeringProgram
from mptcp_throttled.vocabulary.control_group import NO_CONTROL_GROUP, ControlGroup
from mptcp_throttled.vocabulary.counters import SteeringCounters, numbers_of
from mptcp_throttled.vocabulary.decision import Throttle
from mptcp_throttled.vocabulary.features import Absent, FeatureState, Situation
from mptcp_throttled.vocabulary.traffic import SteeredTotals

_log = logging.getLogger("mptcp-throttled")

_LOOK_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 30.0
_FREEING_SECONDS: Final = 1.0
_FREEING_POLL_SECONDS: Final = 0.01


class Steering:
    """The programs at those of the interfaces that exist, while a network has a cap, or budgets with stages.

    For one thread. They hold back no subflow of a connection in the control group. `allowances` are the maps of
    budgets, by name.
    """

    def __init__(
        self,
        proxies: Proxies,
        filters: ClsactFilters,
        control_group: ControlGroup,
        allowances: Mapping[str, BpfMap] | None = None,
    ) -> None:
        self._names, self._ports = proxies.together.interfaces, proxies.together.ports
        self._proxies = proxies
        self._filters = filters
        self._control_group = control_group
        self._allowances = allowances
        self._counters = SteeringCounters()
        self._program: SteeringProgram | None = None
        self._reminder: Reminder | None = None
        self._attached: frozenset[Interface] | None = None
        self._throttling: tuple[AccessNetwork, ...] = ()
        self._networks: tuple[AccessNetwork, ...] = ()
        # By the network, not by the port of a subflow: its connection may belong to another proxy.
        self._proxy_of: dict[str, str | None] = {}
        self._wanted: dict[FourTuple, Throttle] = {}
        self._shares = ShareNumbers()
        self._problem: str | None = None
        self._look_at = -math.inf
        self._has_given_up = False
        self._may_have_leftovers = True  # of an earlier instance

    @property
    def shared_maps(self) -> Mapping[str, BpfMap] | None:
        """The maps that `throttle.bpf.c` shares, by name, while subflows are held back; None while they need a pace."""
        return None if self._program is None else self._program.shared_maps

    @property
    def ports(self) -> frozenset[int]:
        """The netlink ports (nlmsg_pid) of our requests."""
        return self._filters.ports

    @property
    def state(self) -> FeatureState:
        """Why no subflow is held back although a network has a cap; what was counted; how many are held back."""
        problem = self._problem if self._networks else None
        return FeatureState(problem, numbers_of(self._counters), held=len(self._shares.subflows))

    def follow(self, situation: Situation) -> None:
        """At most once a second, look whether the filters are there."""
        throttling = situation.networks if situation.throttling else ()
        is_new = throttling is not self._throttling
        if is_new:
            self._throttling = throttling
            may_hold = any(RateKind.CAP in network.rates or network.may_be_narrowed for network in throttling)
            self._networks = throttling if may_hold else ()
            self._proxy_of = {name: network.proxy for name, network in by_name(self._networks).items()}
        self._shares.linger = situation.linger
        now = time.monotonic()
        if not self._networks:
            self._remove_all()
        elif not self._has_given_up and (is_new or now >= self._look_at):
            self._problem, self._look_at = None, now + _LOOK_SECONDS
            try:
                self._attach()
            except KernelError as error:
                self._fail(error)

    def _remove_all(self) -> None:
        with _logged_if_refused():
            self._detach()
        if self._may_have_leftovers:
            remove_leftovers(self._filters, self._ports)
            self._may_have_leftovers = False

    def assign(self, throttles: Mapping[FourTuple, Throttle | None]) -> None:
        """Let capped subflows send to these rates; None: nothing while they are capped."""
        for ends, throttle in throttles.items():
            if throttle is None:
                self._wanted.pop(ends, None)
            else:
                self._wanted[ends] = throttle
        if self._program is not None and self._attached is not None and throttles:
            try:
                self._assign(self._program, throttles)
            except KernelError as error:
                self._fail(error)

    def priority_of(self, ends: FourTuple) -> bool | None:
        """Whether the client wants the subflow as a backup; None if the programs do not know.

        The kernel's own flag says what the programs have told it, and what the sniffer sees on the wire may be forged.
        """
        try:
            return None if self._program is None else self._program.wants_backup(ends)
        except KernelError:
            return None

    def held_since(self, ends: FourTuple) -> float | None:
        """When the programs began to hold the subflow back, in monotonic seconds; None if they do not."""
        try:
            return None if self._program is None else self._program.capped_since(ends)
        except KernelError:
            return None

    def totals(self) -> Mapping[FourTuple, SteeredTotals]:
        """What the programs have counted since they were loaded, by subflow. For any thread. Raises KernelError."""
        program = self._program
        return {} if program is None else program.totals()

    def release(self) -> tuple[str, ...]:
        """Free all subflows, and detach the filters; what could not be restored."""
        self._networks = ()
        try:
            self._end()
        except KernelError as error:
            return (str(error),)
        return ()

    def _assign(self, program: SteeringProgram, throttles: Mapping[FourTuple, Throttle | None]) -> None:
        program.set_shares(self._shares.new_rates(throttles.values()))
        self._shares.note_rates(throttles.values())
        program.unassign([ends for ends, throttle in throttles.items() if throttle is None])
        assigned = {ends: throttle.share for ends, throttle in throttles.items() if throttle is not None}
        numbers = {ends: self._shares.number(throttle) for ends, throttle in throttles.items() if throttle is not None}
        program.assign(numbers)
        shared = {ends: number for ends, number in numbers.items() if assigned[ends].who != str(ends)}
        program.assign_clients(
            {
                (proxy, ends.client.address): number
                for ends, number in shared.items()
                for proxy in self._proxies.numbers_of(self._proxy_of.get(assigned[ends].network))
            }
        )
        self._shares.note(throttles)
        program.remove_shares(self._shares.take_unused())

    def _attach(self) -> None:
        program = self._program = self._program or SteeringProgram(self._proxies, self._control_group, self._allowances)
        program.set_networks(self._networks)
        before = self._attached
        self._attached = before or frozenset()
        self._attach_filters(program, self._attached)
        if before is None:
            program.adopt()
            self._may_have_leftovers = False
            self._assign(program, self._wanted)
        program.remove_shares(self._shares.take_unused())
        self._counters = program.counters()
        if self._reminder is None:
            drawback = "capped subflows that send nothing are not looked at"
            self._reminder = Reminder(program.remind, program.close, drawback)
            self._reminder.start()

    def _attach_filters(self, program: SteeringProgram, before: frozenset[Interface]) -> None:
        present = frozenset(find_interfaces(self._names))
        if not present:
            return  # one that was renamed keeps its filters: without them no subflow there could be freed
        for interface in present:
            if read_link_header(interface) is None:
                what = f"steer downloads on {interface.name}, whose link type is not supported"
                raise KernelError(what, errno.EOPNOTSUPP)
        if present != before:
            if present & before:
                program.set_interfaces(present & before)
            for interface in self._filters.with_filters():
                if interface not in present:
                    self._filters.detach(interface)
            self._filters.forget_stale()
        programs = {Hook.EGRESS: program.egress, Hook.INGRESS: program.ingress}
        for interface in present:
            is_known = interface in before
            if is_known and self._filters.attached(interface) == programs.keys():
                continue
            self._filters.attach(interface, programs)
            if is_known:
                _log.warning("%s: another program had removed or displaced a filter of steering", interface.name)
        if present != before:
            program.set_interfaces(present)
        self._attached = present

    def _fail(self, error: KernelError) -> None:
        try:
            self._end()
        except KernelError:
            _log.warning("filters of steering may remain: %s", error)
        self._problem, self._look_at = str(error), time.monotonic() + _RETRY_SECONDS
        self._has_given_up = error.number in LASTING_ERRORS

    def _end(self) -> None:
        """Free all subflows, detach the filters, and drop the programs."""
        try:
            self._detach()
        finally:
            program, self._program = self._program, None
            reminder, self._reminder = self._reminder, None
            if reminder is not None:
                reminder.stop()
            elif program is not None:
                program.close()

    def _detach(self) -> None:
        """Free all subflows, and detach the filters. The programs stay loaded: that takes long."""
        program = self._program
        if program is None or self._attached is None:
            return
        self._attached = None
        self._shares.clear()
        try:
            free(program)
            program.clear_shares()
        finally:
            for interface in self._filters.interfaces():
                self._filters.detach(interface)


class NoSteering(Absent):
    """Steering that the configuration switches off."""

    shared_maps: Final = None
    ports: Final[frozenset[int]] = frozenset()

    def assign(self, throttles: Mapping[FourTuple, Throttle | None]) -> None:
        """Hold nothing back."""

    def priority_of(self, _ends: FourTuple) -> bool | None:
        """Know nothing."""
        return None

    def held_since(self, _ends: FourTuple) -> float | None:
        """Hold nothing back."""
        return None

    def totals(self) -> Mapping[FourTuple, SteeredTotals]:
        """None."""
        return {}


def free(program: SteeringProgram) -> None:
    """Tell MPTCP that all subflows that the programs hold back are regular. Raises KernelError."""
    program.set_networks(())
    end = time.monotonic() + _FREEING_SECONDS
    program.remind()
    while not program.are_all_free():
        if time.monotonic() > end:
            _log.warning("subflows may stay backups, and carry nothing beside others")
            return
        time.sleep(_FREEING_POLL_SECONDS)
        program.remind()


def remove_leftovers(filters: ClsactFilters, ports: Ports) -> None:
    """Free the subflows that a killed instance has held back, and detach its filters; what is refused is logged."""
    with _logged_if_refused():
        interfaces = filters.with_filters()
        if interfaces:
            _remove_leftovers(filters, interfaces, ports)


@contextmanager
def _logged_if_refused() -> Iterator[None]:
    try:
        yield
    except KernelError as error:
        _log.warning("subflows may stay backups, and carry nothing beside others: %s", error)


def _remove_leftovers(filters: ClsactFilters, interfaces: Collection[Interface], ports: Ports) -> None:
    try:
        program = SteeringProgram(Proxies.only(ports), NO_CONTROL_GROUP)
        try:
            program.set_interfaces(interfaces)
            for interface in interfaces:
                filters.attach(interface, {Hook.EGRESS: program.egress, Hook.INGRESS: program.ingress})
            program.adopt()
            free(program)
        finally:
            program.close()
    finally:
        for interface in filters.interfaces():
            filters.detach(interface)
