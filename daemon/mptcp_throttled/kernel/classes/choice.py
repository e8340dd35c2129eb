"""The choice between the classifiers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import ClassifierKind, FourTuple
from mptcp_throttle.own_chains import BEFORE_NAT
from mptcp_throttled.kernel.classes.classifier import Classifier
from mptcp_throttled.kernel.classes.nft import NftClassifier
from mptcp_throttled.kernel.classes.rules import RulesClassifier
from mptcp_throttled.kernel.classes.socket import SocketClassifier
from mptcp_throttled.kernel.sockets.pacing import PacedSockets

_log = logging.getLogger("mptcp-throttled")


class ClassifierChoice:
    """`by_socket` while its kernel program is attached, else `otherwise`."""

    def __init__(self, otherwise: Classifier, by_socket: SocketClassifier | None = None) -> None:
        self._otherwise = otherwise
        self._by_socket = by_socket

    @property
    def present(self) -> Classifier:
        """The classifier to be used now: it changes when the program is attached or detached."""
        if self._by_socket is not None and self._by_socket.usable:
            return self._by_socket
        return self._otherwise

    def adopt(self, classes: Mapping[FourTuple, int]) -> None:
        """Before the first use: begin with the classes in which an earlier instance has put sockets."""
        if self._by_socket is not None:
            self._by_socket.adopt(classes)

    def require(self) -> None:
        """Raise KernelError if neither can be used."""
        if self._by_socket is not None:
            with suppress(KernelError):
                return self._by_socket.require()
        return self._otherwise.require()


def choose_classifier(
    wanted: ClassifierKind, mark_mask: int, sockets: PacedSockets | None, priority: int = BEFORE_NAT
) -> ClassifierChoice:
    """The classifier that is `wanted`; for `auto`: sockets while the kernel program is attached, else nft, else rules.

    `sockets` is None if no subflow ends at a socket of this host, or none is to be paced; `priority` is that of chains
    of `nft`. A new classifier is registered here. Which classifiers other programs use may change at any time, and does
    not matter.
    """
    match wanted:
        case ClassifierKind.RULES:
            return ClassifierChoice(RulesClassifier(mark_mask))
        case ClassifierKind.NFT:
            return ClassifierChoice(NftClassifier(priority))
        case ClassifierKind.SOCKET if sockets is not None:
            return ClassifierChoice(SocketClassifier(sockets, RulesClassifier(mark_mask)))
    by_packet = _by_packet(mark_mask, priority)
    return ClassifierChoice(by_packet, None if sockets is None else SocketClassifier(sockets, by_packet))


def _by_packet(mark_mask: int, priority: int) -> Classifier:
    by_map = NftClassifier(priority)
    try:
        by_map.require()
    except KernelError as error:
        by_map.close()
        _log.warning("nftables is not available, so classifier `rules` is used where `socket` cannot be: %s", error)
        return RulesClassifier(mark_mask)
    return by_map
