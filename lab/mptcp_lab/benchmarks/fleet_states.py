"""A proxy that shares budgets by a server which is healthy, or is not while something else is measured."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mptcp_lab.dropped_packets import dropped
from mptcp_lab.process import wait_until
from mptcp_lab.valkey_server import ValkeyServer
from mptcp_throttle.model import Budget, Counting, Every, Per, RateKind, Stage
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mptcp_lab.services import Services
    from mptcp_throttle.model import AccessNetwork

ALONE: Final = "alone"
STATES: Final = (ALONE, "healthy", "killed", "slow", "partitioned")
"""Nothing is shared; the server answers; it was killed; it answers after 5 s; packets to it are lost."""

_ADDRESS: Final = "127.0.0.2"
_SLOW_SECONDS: Final = 5.0
_AWAKE_SECONDS: Final = 0.1
# None reaches a stage.
_BUDGET: Final = Budget(
    10**14, Per.CLIENT, Counting.BOTH, Every.MONTH, 1, None, (Stage(1.0, {RateKind.LIMIT: Rate(1_000_000)}),)
)


def with_budgets(networks: Sequence[AccessNetwork], state: str) -> Sequence[AccessNetwork]:
    """The networks, with budgets unless nothing is shared."""
    return networks if state == ALONE else [replace(network, budgets=(_BUDGET,)) for network in networks]


@contextmanager
def sharing(services: Services, state: str) -> Iterator[FleetServer | None]:
    """Inside the block, the services share by a server on their host, once they are started; None: they do not."""
    if state == ALONE:
        yield None
        return
    server = ValkeyServer(services.directory / "valkey", host=services.proxy, address=_ADDRESS)
    server.start()
    try:
        services.configure_section("fleet", url=server.url, name="proxy-1", share_clients=True)
        services.configure_daemon(wait_for_clock=False)
        yield FleetServer(services, server, state)
    finally:
        server.stop()


class FleetServer:
    """The server of running services, which `in_state` brings into the state."""

    def __init__(self, services: Services, server: ValkeyServer, state: str) -> None:
        self._services = services
        self._server = server
        self._state = state

    @contextmanager
    def in_state(self) -> Iterator[None]:
        """Inside the block, once the services are connected, it is in its state, which the services have noticed."""
        wait_until(lambda: self._fleet("age") is not None, "connected to the server", 30)
        with ExitStack() as stack:
            match self._state:
                case "killed":
                    self._server.stop()
                case "slow":
                    stack.enter_context(self._slow())
                case "partitioned":
                    stack.enter_context(
                        dropped(self._services.proxy, "INPUT", "-d", _ADDRESS, commands=("iptables-legacy",))
                    )
            if self._state != "healthy":
                wait_until(lambda: self._fleet("problem") is not None, "missed the server", 30)
            yield

    def _fleet(self, name: str) -> object:
        return self._services.status()["daemon"]["fleet"][name]

    @contextmanager
    def _slow(self) -> Iterator[None]:
        ended = threading.Event()

        def stop_and_go() -> None:
            while not ended.wait(_AWAKE_SECONDS):
                with self._server.process.suspended():
                    ended.wait(_SLOW_SECONDS)

        thread = threading.Thread(target=stop_and_go, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@contextmanager
def in_state(server: FleetServer | None) -> Iterator[None]:
    """As `FleetServer.in_state`, if there is a server."""
    if server is None:
        yield
        return
    with server.in_state():
        yield
