"""This proxy as a member of a fleet; imported only where `fleet.url` is configured."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from mptcp_throttle.config.fleet_section import FleetSection
from mptcp_throttle.valkey.connect import connect as open_connection
from mptcp_throttle.valkey.connection import ValkeyError, read_secret
from mptcp_throttle.valkey.server import ServerUrl
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.history import History
from mptcp_throttled.fleet.exchange import ExchangeError
from mptcp_throttled.fleet.keys import checked_secret, field_of
from mptcp_throttled.fleet.lease_book import LeaseBook
from mptcp_throttled.fleet.lease_server import LeaseServer
from mptcp_throttled.fleet.lease_thread import LeaseThread
from mptcp_throttled.fleet.members import Members
from mptcp_throttled.fleet.refusals import Refusals
from mptcp_throttled.fleet.totals_server import ANSWER_SECONDS, ValkeyExchange, connect
from mptcp_throttled.fleet.totals_thread import Identity, TotalsThread
from mptcp_throttled.lifecycle.kept_leases import KeptLeases
from mptcp_throttled.vocabulary.events import Event
from mptcp_throttled.vocabulary.fleet import LeaseState, Load, SharedRates


def fleet_member(
    fleet: FleetSection,
    url: ServerUrl,
    accounts: Accounts,
    history: History,
    refusals: Refusals,
    tell: Callable[[Event], None],
    load: Callable[[], Load],
) -> TotalsThread:
    """The thread that shares what is used of budgets, and what this proxy carries (`load`); it is not started.

    `tell` is told of its events.
    """
    name = str(fleet.name)

    def identify() -> Identity:
        ledger = history.ledger()
        if ledger is None:
            raise ExchangeError("the ledger of this proxy cannot be read")
        return Identity(field_of(name, ledger), _secret(fleet.key_file))

    def exchange(field: str, attempt: int) -> ValkeyExchange:
        return connect(url, fleet.credentials, field, attempt)

    link = fleet.link.bits_per_second / 8
    read_at = history.read_at
    exchanged_at = None if read_at is None else time.monotonic() - max(time.time() - read_at, 0.0)
    return TotalsThread(name, link, accounts, identify, exchange, refusals, tell, load, exchanged_at)


class SharedLeases:
    """The leases of this proxy of the rates that several share.

    `path` is the file for the next instance, on this `boot` of the host. `is_wanted` tells whether any rate is shared.
    `applied` tells what the kernel has of them; `changed` is called once that should be something else.
    """

    def __init__(
        self,
        fleet: FleetSection,
        url: ServerUrl,
        path: Path,
        boot: str,
        is_wanted: Callable[[], bool],
        applied: Callable[[], SharedRates | None],
        changed: Callable[[], None],
        refusals: Refusals,
    ) -> None:
        name, now = str(fleet.name), time.monotonic()
        self._file = KeptLeases(path, boot)
        kept = self._file.load(now)
        members = Members(name, now, kept.part, kept.known, kept.contact, kept.last_sent)
        self.book = LeaseBook(members, kept.leases, applied, changed, now)
        self.book.follow(now)

        def connect(attempt: int) -> LeaseServer:
            secret = _secret(fleet.key_file)
            return LeaseServer(open_connection(url, fleet.credentials, ANSWER_SECONDS, attempt), name, secret)

        self._thread = LeaseThread(self.book, connect, is_wanted, self._keep, refusals)

    @property
    def state(self) -> LeaseState:
        """For the operator; for any thread."""
        return self._thread.state

    def start(self) -> None:
        """Begin to exchange."""
        self._thread.start()

    def stop(self) -> None:
        """End, and let the next instance go on."""
        self._thread.stop()
        self._file.save(self.book.kept(), is_end=True)

    def _keep(self) -> None:
        self._file.save(self.book.kept(), is_end=False)


def _secret(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return checked_secret(read_secret(path))
    except ValkeyError as error:
        raise ExchangeError(f"fleet.key_file: {error}") from error
    except ValueError as error:
        raise ExchangeError(f"fleet.key_file: {path}: {error}") from error
