"""The programs that keep clients from discarding what the proxy sends (`bpf/discards.bpf.c`), at its interfaces.

They are attached by links of this process (TCX), so nothing of them stays when it ends, however it ends.
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Final

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.libbpf import LASTING_ERRORS, BpfObject, Direction
from mptcp_throttle.model import AccessNetwork
from mptcp_throttled.accounting.program_counters import DiscardCounters
from mptcp_throttled.kernel.program_layout import OBJECTS, pack_settings, read_counters
from mptcp_throttled.kernel.socket_program import pack_networks
from mptcp_throttled.kernel.tc import Interface, find_interfaces

_PROGRAMS: Final[Mapping[str, Direction]] = {
    "lower_data_acks": Direction.INGRESS,
    "send_keep_alive": Direction.EGRESS,
}
# EINVAL: the kernel has no TCX.
_LASTING: Final = LASTING_ERRORS | {errno.EINVAL}
_LOOK_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 30.0


class DiscardProgram:
    """The two programs, for connections to these ports. Raises KernelError."""

    def __init__(self, ports: Sequence[int]) -> None:
        # They need neither the cookie of the namespace nor the handle of HTB.
        self._object = BpfObject(OBJECTS / "discards.bpf.o", pack_settings(0, ports, 0))
        try:
            self._networks = self._object.map("networks")
            self._counters = self._object.map("counters")
        except KernelError:
            self._object.close()
            raise
        self._prefixes: dict[bytes, bytes] = {}

    def set_networks(self, networks: Sequence[AccessNetwork]) -> None:
        """Change only what clients in these networks send, and what is sent to them. Raises KernelError."""
        wanted = pack_networks(networks)
        self._networks.update({key: value for key, value in wanted.items() if self._prefixes.get(key) != value})
        self._networks.delete_all(self._prefixes.keys() - wanted)
        self._prefixes = wanted

    def attach(self, interface: Interface) -> list[int]:
        """Attach them to an interface: the links, to be closed by the caller. Raises KernelError."""
        links: list[int] = []
        try:
            for name, direction in _PROGRAMS.items():
                links.append(self._object.attach_interface(name, interface.index, interface.name, direction))
        except KernelError:
            _close(links)
            raise
        return links

    def run(self, program: str, packet: bytes) -> tuple[int, bytes]:
        """The verdict of one of them about a packet with an Ethernet header, and the packet then.

        Raises KernelError.
        """
        return self._object.run(program, packet)

    def counters(self) -> DiscardCounters:
        """What the programs have counted. Raises KernelError."""
        return DiscardCounters(*read_counters(self._counters, len(fields(DiscardCounters))))

    def close(self) -> None:
        """Drop them; a link keeps the one that it attaches."""
        self._object.close()


class DiscardPrevention:
    """Attaches the programs to those of the interfaces that exist, while there are networks. For one thread.

    `counters` is what they had counted at the last look.
    """

    def __init__(self, interfaces: tuple[str, ...], ports: Sequence[int]) -> None:
        self.counters = DiscardCounters()
        self._names = interfaces
        self._ports = ports
        self._program: DiscardProgram | None = None
        self._networks: Sequence[AccessNetwork] = ()
        self._networks_set: Sequence[AccessNetwork] | None = None
        self._links: dict[Interface, list[int]] = {}
        self._problem: str | None = None
        self._look_at = -math.inf

    @property
    def problem(self) -> str | None:
        """Why the programs are missing on an interface; None if on none, and while there are no networks."""
        return self._problem if self._networks else None

    def set_networks(self, networks: Sequence[AccessNetwork]) -> None:
        """Prevent discards for clients in these networks from now on; by none, for nobody.

        To be called often: at most once a second it looks which interfaces there are.
        """
        now = time.monotonic()
        is_new = networks is not self._networks
        self._networks = networks
        if not networks:
            self._detach()
            return
        if self._look_at == math.inf or not (is_new or now >= self._look_at):
            return
        self._problem, self._look_at = None, now + _LOOK_SECONDS
        try:
            program = self._loaded()
            if networks is not self._networks_set:  # there may be thousands of subnets
                program.set_networks(networks)
                self._networks_set = networks
            self._follow_interfaces(program)
            self.counters = program.counters()
        except KernelError as error:
            self._detach()
            self._note(error, now + _RETRY_SECONDS)

    def _loaded(self) -> DiscardProgram:
        if self._program is None:
            self._program = DiscardProgram(self._ports)
        return self._program

    def _follow_interfaces(self, program: DiscardProgram) -> None:
        present = find_interfaces(self._names)
        for gone in self._links.keys() - present:
            _close(self._links.pop(gone))
        for interface in present:
            if interface not in self._links:
                try:
                    self._links[interface] = program.attach(interface)
                except KernelError as error:
                    self._note(error, self._look_at)

    def _note(self, error: KernelError, look_at: float) -> None:
        self._problem = self._problem or str(error)
        self._look_at = math.inf if error.number in _LASTING else look_at

    def _detach(self) -> None:
        for links in self._links.values():
            _close(links)
        self._links = {}

    def close(self) -> None:
        """Detach the programs, and drop them."""
        self._detach()
        if self._program is not None:
            self._program.close()
        self._program = None


def _close(links: Sequence[int]) -> None:
    for link in links:
        os.close(link)
