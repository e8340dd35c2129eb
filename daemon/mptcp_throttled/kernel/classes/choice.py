"""The choice between the mark back ends."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import FourTuple, MarkMethod
from mptcp_throttled.kernel.classes.classifier import MarkingBackEnd
from mptcp_throttled.kernel.classes.nft import NftMarking
from mptcp_throttled.kernel.classes.rules import RuleMarking
from mptcp_throttled.kernel.classes.sets import IpsetMarking
from mptcp_throttled.kernel.classes.socket import SocketMarking
from mptcp_throttled.kernel.sockets.pacing import PacedSockets
from mptcp_throttled.vocabulary.class_ids import MarkedTraffic

_log = logging.getLogger("mptcp-throttled")


class MarkingChoice:
    """`by_socket` while its kernel program is attached, else `otherwise`."""

    def __init__(self, otherwise: MarkingBackEnd, by_socket: SocketMarking | None = None) -> None:
        self._otherwise = otherwise
        self._by_socket = by_socket

    @property
    def present(self) -> MarkingBackEnd:
        """The back end to be used now: it changes when the program is attached or detached."""
        if self._by_socket is not None and self._by_socket.usable:
            return self._by_socket
        return self._otherwise

    def adopt(self, classes: Mapping[FourTuple, int]) -> None:
        """Before the first use: begin with the classes in which an earlier instance has put sockets."""
        if self._by_socket is not None:
            self._by_socket.adopt(classes)

    def require(self) -> None:
        """Raise KernelError if no back end can be used."""
        if self._by_socket is not None:
            with suppress(KernelError):
                return self._by_socket.require()
        return self._otherwise.require()


def choose_marking(wanted: MarkMethod, marking: MarkedTraffic, sockets: PacedSockets | None) -> MarkingChoice:
    """The back end that is `wanted`; for `auto`: sockets while the kernel program is attached, else nft, ipset, rules.

    The first of these that the kernel has: what other programs use may change at any time, and does not matter.

    `sockets` is None if no subflow ends at a socket of this host, or the program is not to decide.
    """
    match wanted:
        case MarkMethod.RULES:
            return MarkingChoice(RuleMarking(marking.mask))
        case MarkMethod.IPSET:
            return MarkingChoice(IpsetMarking(marking))
        case MarkMethod.NFT:
            return MarkingChoice(NftMarking())
        case MarkMethod.SOCKET if sockets is not None:
            return MarkingChoice(SocketMarking(sockets, RuleMarking(marking.mask)))
    by_packet = _by_packet(marking)
    return MarkingChoice(by_packet, None if sockets is None else SocketMarking(sockets, by_packet))


def _by_packet(marking: MarkedTraffic) -> MarkingBackEnd:
    by_map = NftMarking()
    problem = _problem(by_map)
    if problem is None:
        return by_map
    _log.info("nftables is not available: where packets are marked, iptables marks them: %s", problem)
    by_set = IpsetMarking(marking)
    problem = _problem(by_set)
    if problem is None:
        return by_set
    _log.warning(
        "ipset is not available: where packets are marked, there is one iptables rule per subflow: %s", problem
    )
    return RuleMarking(marking.mask)


def _problem(back_end: MarkingBackEnd) -> KernelError | None:
    """Why it cannot be used; it is closed then."""
    try:
        back_end.require()
    except KernelError as error:
        back_end.close()
        return error
    return None
