"""Attacks by a host off the path, which knows the four-tuple of a victim's subflow."""

from __future__ import annotations

import itertools
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from mptcp_lab.adversary.attack import LIMITED, Act, Adversary, Attack, Begin, Site, downloading
from mptcp_lab.lab_errors import LabError
from mptcp_lab.squid import PORT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mptcp_lab.process import Process
    from mptcp_lab.services import SubflowStatus

_PER_SECOND: Final = 10.0
_LIFTING: Final = {
    "fin": "FIN",
    "rst": "RST",
    "rst-with-reason": "RST with MP_TCPRST",
    "syn": "SYN with MP_CAPABLE",
    "backup": "MP_PRIO(B=1)",
    "remove-address-0": "REMOVE_ADDR(0)",
    "remove-addresses": "REMOVE_ADDR(1 to 8)",
    "add-address": "ADD_ADDR",
    "fail": "MP_FAIL",
    "fast-close": "MP_FASTCLOSE with a guessed key",
}
_ENDING: Final = frozenset({"fin", "rst", "backup", "remove-address-0", "remove-addresses"})
_serial: Final = itertools.count(1)


@contextmanager
def _forging(site: Site, kind: str, *arguments: object) -> Iterator[None]:
    forger = start_forger(site, kind, *arguments)
    try:
        yield
    finally:
        forger.stop()


def start_forger(site: Site, kind: str, *arguments: object) -> Process:
    """Start `forger`, which sends to the proxy until it is stopped; returns once it does."""
    program = (sys.executable, "-m", "mptcp_lab.adversary.forger", kind, str(site.lab.proxy_address(4)), str(PORT))
    process = site.lab.clients["forger"].start(f"forger-{next(_serial)}", *program, *map(str, arguments))
    process.wait_until(lambda: "sending" in process.log_text(), "sending")
    return process


def _subflow(site: Site, network: str) -> SubflowStatus:
    subflows = [subflow for subflow in site.services.subflows() if subflow.network == network]
    if len(subflows) != 1:
        raise LabError(f"{len(subflows)} subflows over {network} instead of 1")
    return subflows[0]


def _signals(client: str, network: str, name: str, per_second: float = _PER_SECOND) -> Begin:
    """Segments in the name of a client that downloads, on its subflow over that network."""

    @contextmanager
    def begin(site: Site) -> Iterator[Act]:
        @contextmanager
        def act() -> Iterator[None]:
            target = _subflow(site, network)
            with _forging(site, "signals", target.client, target.client_port, name, per_second):
                yield

        with downloading(site, client):
            yield act

    return begin


@contextmanager
def _fabricating(site: Site) -> Iterator[Act]:
    with downloading(site, "reserve"):
        yield lambda: _forging(site, "connection", _PER_SECOND)


IMPOSED: Final = Attack(
    "imposed-cap",
    "3.3 MP_PRIO(B=0) per second on a backup path over Wi-Fi",
    Adversary.OFF_PATH,
    "reserve",
    _signals("reserve", "wifi", "regular", 3.3),
    throttled=False,
)

LIFTED: Final = tuple(
    Attack(
        f"lifted-cap-{name}-{network}",
        f"10 {what} per second on {'Wi-Fi' if network == 'wifi' else 'the capped path'}",
        Adversary.OFF_PATH,
        "victim",
        _signals("victim", network, name),
    )
    for name, what in _LIFTING.items()
    for network in (("wifi", "ethernet") if name in _ENDING else ("wifi",))
)

LIFTED_LIMIT: Final = Attack(
    "lifted-limit-rst",
    "10 RST per second on a limited path",
    Adversary.OFF_PATH,
    "reserve",
    _signals("reserve", "ethernet", "rst"),
    networks=LIMITED,
)

FABRICATED: Final = Attack(
    "fabricated-connection",
    "a whole handshake of the proxy with itself, 10 times per second",
    Adversary.OFF_PATH,
    "reserve",
    _fabricating,
    throttled=False,
)
