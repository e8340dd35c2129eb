"""The choice between the assignment back ends."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import ClassifierKind, FourTuple
from mptcp_throttled.kernel.classes.classifier import Classifier
from mptcp_throttled.kernel.classes.nft import NftClassifier
from mptcp_throttled.kernel.classes.rules import RulesClassifier
from mptcp_throttled.kernel.classes.sets import IpsetClassifier
from mptcp_throttled.kernel.classes.socket import SocketClassifier
from mptcp_throttled.kernel.sockets.pacing import PacedSockets
from mptcp_throttled.vocabulary.class_ids import MarkedTraffic

_log = logging.getLogger("mptcp-throttled")


class ClassifierChoice:
    """`by_socket` while its kernel program is attached, else `otherwise`."""

    def __init__(self, otherwise: Classifier, by_socket: SocketClassifier | None = None) -> None:
        self._otherwise = otherwise
        self._by_socket = by_socket

    @property
    def present(self) -> Classifier:
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


def choose_classifier(wanted: ClassifierKind, marking: MarkedTraffic, sockets: PacedSockets | None) -> ClassifierChoice:
    """The back end that is `wanted`; for `auto`: sockets while the kernel program is attached, else nft, ipset, rules.

    The first of these that the kernel has: what other programs use may change at any time, and does not matter.

    `sockets` is None if no subflow ends at a socket of this host, or the program is not to decide.
    """
    match wanted:
        case ClassifierKind.RULES:
            return ClassifierChoice(RulesClassifier(marking.mask))
        case ClassifierKind.IPSET:
            return ClassifierChoice(IpsetClassifier(marking))
        case ClassifierKind.NFT:
            return ClassifierChoice(NftClassifier())
        case ClassifierKind.SOCKET if sockets is not None:
            return ClassifierChoice(SocketClassifier(sockets, RulesClassifier(marking.mask)))
    by_packet = _by_packet(marking)
    return ClassifierChoice(by_packet, None if sockets is None else SocketClassifier(sockets, by_packet))


def _by_packet(marking: MarkedTraffic) -> Classifier:
    by_map = NftClassifier()
    problem = _problem(by_map)
    if problem is None:
        return by_map
    _log.info("nftables is not available: where packets are marked, iptables marks them: %s", problem)
    by_set = IpsetClassifier(marking)
    problem = _problem(by_set)
    if problem is None:
        return by_set
    _log.warning(
        "ipset is not available: where packets are marked, there is one iptables rule per subflow: %s", problem
    )
    return RulesClassifier(marking.mask)


def _problem(back_end: Classifier) -> KernelError | None:
    """Why it cannot be used; it is closed then."""
    try:
        back_end.require()
    except KernelError as error:
        back_end.close()
        return error
    return None
