"""The programs that prevent discards (`bpf/discards.bpf.c`), at the proxy's interfaces.

They are attached by links (TCX) of which this process alone has descriptors, so nothing of them stays when it ends,
however it ends.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Final

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.libbpf import LASTING_ERRORS, AttachType, BpfObject, is_attached
from mptcp_throttle.model import AccessNetwork
from mptcp_throttle.proxies import Proxies
from mptcp_throttled.kernel.interfaces import Interface, find_interfaces
from mptcp_throttled.kernel.networks_map import NetworksMap
from mptcp_throttled.kernel.program_layout import OBJECTS, pack_settings, read_counters
from mptcp_throttled.kernel.tcx_programs import note_own
from mptcp_throttled.vocabulary.counters import DiscardCounters, numbers_of
from mptcp_throttled.vocabulary.features import FeatureState, Situation

_log = logging.getLogger("mptcp-throttled")

_PROGRAMS: Final[Mapping[str, AttachType]] = {
    "lower_data_acks": AttachType.TCX_INGRESS,
    "divide_window": AttachType.TCX_INGRESS,
    "send_keep_alive": AttachType.TCX_EGRESS,
}
# EINVAL: the kernel has no TCX, or another layout of a structure.
_LASTING: Final = LASTING_ERRORS | {errno.EINVAL}
_LOOK_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 30.0


class DiscardPrograms:
    """The programs, for connections to these proxies. All methods raise KernelError."""

    def __init__(self, proxies: Proxies) -> None:
        # They need neither the cookie of the namespace nor the handle of HTB.
        self.object = BpfObject(OBJECTS / "discards.bpf.o", pack_settings(0, proxies, 0))
        try:
            self._networks = NetworksMap(self.object.map("networks"), proxies)
            self._counters = self.object.map("counters")
        except KernelError:
            self.object.close()
            raise

    def set_networks(self, networks: Sequence[AccessNetwork]) -> None:
        """Change only what clients in these networks send, and what is sent to them."""
        self._networks.set(networks)

    def attach(self, interface: Interface) -> list[int]:
        """Attach them to an interface; returns the links, which the caller closes."""
        links: list[int] = []
        try:
            for name, attach_type in _PROGRAMS.items():
                note_own(self.object.program(name))
                links.append(self.object.attach_interface(name, interface.index, interface.name, attach_type))
        except KernelError:
            _close(links)
            raise
        return links

    def counters(self) -> DiscardCounters:
        """What the programs have counted."""
        return read_counters(self._counters, DiscardCounters)

    def close(self) -> None:
        """Unload them; one that a link holds stays attached."""
        self.object.close()


class DiscardPrevention:
    """The feature: attaches the programs to those of the interfaces that exist, while there are networks.

    It goes on while the sniffer does not answer, and stops while the operator pauses.
    """

    def __init__(self, proxies: Proxies) -> None:
        self._counters = DiscardCounters()
        self._names = proxies.together.interfaces
        self._proxies = proxies
        self._programs: DiscardPrograms | None = None
        self._networks: Sequence[AccessNetwork] = ()
        self._links: dict[Interface, list[int]] = {}
        self._problem: str | None = None
        self._look_at = -math.inf
        self._has_given_up = False

    @property
    def state(self) -> FeatureState:
        """Why the programs cannot be loaded, or are missing on an interface that exists; what they have counted."""
        return FeatureState(self._problem if self._networks else None, numbers_of(self._counters))

    def follow(self, situation: Situation) -> None:
        """At most once a second, look which interfaces there are, and whether they still have the programs."""
        networks = () if situation.paused else situation.networks
        now = time.monotonic()
        is_new = networks is not self._networks
        self._networks = networks
        if not networks:
            self._detach()
        elif not self._has_given_up and (is_new or now >= self._look_at):
            self._problem, self._look_at = None, now + _LOOK_SECONDS
            try:
                self._attach()
            except KernelError as error:
                self._detach()
                self._problem, self._look_at = str(error), now + _RETRY_SECONDS
                self._has_given_up = error.number in _LASTING

    def _attach(self) -> None:
        if self._programs is None:
            self._programs = DiscardPrograms(self._proxies)
        self._programs.set_networks(self._networks)
        present = find_interfaces(self._names)
        for gone in self._links.keys() - present:
            _close(self._links.pop(gone))
        detached = [interface for interface, links in self._links.items() if not all(map(is_attached, links))]
        for interface in detached:
            _close(self._links.pop(interface))
        for interface in present:
            if interface not in self._links:
                try:
                    self._links[interface] = self._programs.attach(interface)
                except KernelError as error:
                    if error.number in _LASTING:
                        raise
                    self._problem = self._problem or str(error)
        for interface in detached:
            _log.warning("%s: another program had detached a discard-prevention program", interface.name)
        self._counters = self._programs.counters()

    def _detach(self) -> None:
        for links in self._links.values():
            _close(links)
        self._links = {}

    def release(self) -> tuple[str, ...]:
        self._detach()
        if self._programs is not None:
            self._programs.close()
        self._programs = None
        return ()


def _close(links: Sequence[int]) -> None:
    for link in links:
        os.close(link)
