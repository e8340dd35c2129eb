"""The programs that keep clients from discarding what the proxy sends (`bpf/discards.bpf.c`), at its interfaces.

They are attached by links of this process (TCX), so nothing of them stays when it ends, however it ends.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Final

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.linux.libbpf import BpfMap, BpfObject, Direction
from mptcp_throttle.model import AccessNetwork
from mptcp_throttled.accounting.program_counters import DiscardCounters
from mptcp_throttled.kernel.program_layout import OBJECTS, pack_settings, read_counters
from mptcp_throttled.kernel.socket_program import pack_networks
from mptcp_throttled.kernel.tc import find_interfaces

_PROGRAMS: Final[Mapping[str, Direction]] = {
    "lower_data_acks": Direction.INGRESS,
    "probe_joined": Direction.EGRESS,
}
_FIND_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 30.0


class DiscardProgram:
    """The two programs, for connections to these ports. Raises KernelError."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._object = BpfObject(OBJECTS / "discards.bpf.o", pack_settings(0, ports, 0))
        self._networks: BpfMap = self._object.map("networks")
        self._counters = self._object.map("counters")
        self._prefixes: dict[bytes, bytes] = {}

    def set_networks(self, networks: Sequence[AccessNetwork]) -> None:
        """Touch only what clients in these networks send, and what is sent to them. Raises KernelError."""
        wanted = pack_networks(networks)
        self._networks.update({key: value for key, value in wanted.items() if self._prefixes.get(key) != value})
        self._networks.delete_all(self._prefixes.keys() - wanted)
        self._prefixes = wanted

    def attach(self, interface: int) -> list[int]:
        """Attach them to the interface with that index: the links, to be closed by the caller. Raises KernelError."""
        links: list[int] = []
        try:
            for name, direction in _PROGRAMS.items():
                links.append(self._object.attach_interface(name, interface, direction))
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
    """Attaches the programs to the interfaces with these names while there are networks. For one thread.

    `problem` is why a program is missing on any of them; None if there is none.
    """

    def __init__(self, interfaces: tuple[str, ...], ports: Sequence[int]) -> None:
        self.problem: str | None = None
        self._names = interfaces
        self._ports = ports
        self._program: DiscardProgram | None = None
        self._networks: Sequence[AccessNetwork] = ()
        self._links: dict[int, list[int]] = {}
        self._look_at = -math.inf

    def set_networks(self, networks: Sequence[AccessNetwork]) -> None:
        """Prevent discards for clients in these networks from now on; for none, of nobody.

        To be called often: it follows interfaces that come and go, once a second.
        """
        now = time.monotonic()
        is_new = networks is not self._networks
        if not is_new and now < self._look_at:
            return
        self._networks = networks
        if not networks:
            self.close()
            return
        try:
            self._attach(is_new=is_new)
            self.problem, self._look_at = None, now + _FIND_SECONDS
        except KernelError as error:
            self.close()
            self.problem, self._look_at = str(error), now + _RETRY_SECONDS

    def _attach(self, *, is_new: bool) -> None:
        program = self._program
        if program is None:
            program = self._program = DiscardProgram(self._ports)
            is_new = True
        if is_new:
            program.set_networks(self._networks)
        present = {interface.index for interface in find_interfaces(self._names)}
        for gone in self._links.keys() - present:
            _close(self._links.pop(gone))
        for index in present - self._links.keys():
            self._links[index] = program.attach(index)

    def close(self) -> None:
        """Detach the programs, and drop them."""
        for links in self._links.values():
            _close(links)
        self._links = {}
        if self._program is not None:
            self._program.close()
        self._program = None


def _close(links: Sequence[int]) -> None:
    for link in links:
        os.close(link)
