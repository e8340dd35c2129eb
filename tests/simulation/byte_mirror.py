"""What budgets must have counted: the bytes that sockets have carried, per budget, subject and period.

It is computed from the sockets of the modelled host, and written when the daemon writes. So after a kill it is known
what must be there: all that was written, with nothing of it lost, counted twice or counted in part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, tzinfo
from typing import Final, NamedTuple, Protocol

from disk import WRITTEN_BACK_SECONDS
from modelled_proxy import ModelSocket
from violation import Violation

from mptcp_throttle.model import AccessNetwork, Address, Budget, Counting, Every, FourTuple, NamedClient, Per
from mptcp_throttled.accounting.ledger import Ledger
from mptcp_throttled.vocabulary.budgets import AccountKey, Subject
from mptcp_throttled.vocabulary.traffic import ClosedSubflow

_PARTS: Final = {Every.DAY: (3600, 24), Every.WEEK: (6 * 3600, 28), Every.MONTH: (24 * 3600, 30)}
"""Of rolling budgets: seconds of a part, and how many count beside the present one (docs/howto/budgets.md)."""


class Carried(NamedTuple):
    """IP bytes of a socket to and from its client."""

    sent: int = 0
    received: int = 0


@dataclass
class Account:
    """What must be counted in a budget in its present period; of a rolling one, `parts` by subject and number.

    `is_provisional`: the period began by a clock that was not known to be right. What is used in it is then
    used in the period that the right clock shows, unless that follows it.
    """

    period: tuple[float, float] = (0.0, 0.0)
    is_provisional: bool = False
    used: dict[Subject, int] = field(default_factory=dict)
    parts: dict[tuple[Subject, int], int] = field(default_factory=dict)
    _kept: Account | None = field(default=None, repr=False, compare=False)

    def add(self, subject: Subject, amount: int, part: int | None) -> None:
        """Use as much, in this part of a rolling budget."""
        self._kept = None
        self.used[subject] = self.used.get(subject, 0) + amount
        if part is not None:
            self.parts[subject, part] = self.parts.get((subject, part), 0) + amount

    def drop(self, first: int) -> None:
        """Parts before this one do not count any more."""
        for (subject, part), amount in list(self.parts.items()):
            if part < first:
                self._kept = None
                del self.parts[subject, part]
                self.used[subject] -= amount
                if not self.used[subject]:
                    del self.used[subject]

    def move(self, by: int) -> None:
        """Let all parts be as many later."""
        self._kept = None
        self.parts = {(subject, part + by): amount for (subject, part), amount in self.parts.items()}

    def clear(self) -> None:
        """Nothing is used."""
        self._kept = None
        self.used = {}

    def copy(self) -> Account:
        """As it is now."""
        return Account(self.period, self.is_provisional, dict(self.used), dict(self.parts))

    def kept(self) -> Account:
        """As it is now, to be read only: the same value until something changes."""
        kept = self._kept
        if kept is None or (kept.period, kept.is_provisional) != (self.period, self.is_provisional):
            kept = self._kept = self.copy()
        return kept


@dataclass
class Written:
    """What a database must have: the accounts, and what was counted of each socket, by cookie."""

    accounts: dict[AccountKey, Account] = field(default_factory=dict)
    counted: dict[int, Carried] = field(default_factory=dict)
    at: float = 0.0
    is_first: bool = True


class Share(NamedTuple):
    """A budget in which a client has a part, as one of its subjects."""

    key: AccountKey
    budget: Budget
    subject: Subject


class Host(Protocol):
    """Has the sockets of a proxy."""

    sockets: dict[FourTuple, ModelSocket]


class ByteMirror:
    """Follows the observations of the daemon: `read` at each reading of sockets, `settle` when all that is counted."""

    def __init__(self, proxy: Host, is_free: Callable[[str, float], bool]) -> None:
        self._proxy = proxy
        self._is_free = is_free
        self.company = Company()
        self.zone: tzinfo | None = None
        self.present = Written()
        self.versions: list[Written] = [Written()]
        self.lost: int = 0
        """The bytes of sockets that no daemon has heard the end of."""
        self.waiting: set[AccountKey] = set()
        """The budgets of which no period begins now, since the clock may be wrong."""
        self._closed: list[tuple[ModelSocket, ClosedSubflow]] = []
        self._ended: dict[int, ModelSocket] = {}
        self._live: list[tuple[ModelSocket, Carried]] = []
        self.is_read = False
        self._started = False

    def ended(self, socket: ModelSocket) -> None:
        """A socket has closed: the daemon will hear of it, unless it is killed before."""
        self._ended[socket.cookie] = socket

    def heard(self, closed: Iterable[ClosedSubflow]) -> None:
        """The daemon hears of closed sockets, and counts them with its next observation."""
        for each in closed:
            self._closed.append((self._ended.pop(each.cookie), each))

    def read(self) -> None:
        """The daemon has read the sockets that live."""
        self._live = [(socket, carried(socket)) for socket in self._proxy.sockets.values() if not socket.closing]
        self.is_read = True

    def settle(self, ledger: Ledger, known: set[FourTuple], at: float) -> None:
        """The daemon has counted what it has read (`is_read`); `known` are the subflows that its decisions are about.

        `at` is what its wall clock shows, in seconds since the epoch. Raises Violation.
        """
        self.is_read = False
        counted = self.present.counted
        closed, self._closed = self._closed, []
        if not self._started:
            # What sockets have carried before the first instance does not count.
            self._started = True
            if self.present.is_first:
                counted.update((socket.cookie, total) for socket, total in self._live)
        for socket, _ in closed:
            self._charge(ledger, socket, carried(socket), counted.pop(socket.cookie, None), at)
        gone = {socket.cookie for socket, _ in closed}
        for socket, total in self._live:
            before = counted.get(socket.cookie)
            if socket.cookie in gone:
                continue
            if socket.token is not None and before is None and socket.ends not in known:
                continue  # perhaps a socket of another service
            self._charge(ledger, socket, total, before, at)
            counted[socket.cookie] = total
        self._follow_periods(ledger)

    def _charge(self, ledger: Ledger, socket: ModelSocket, total: Carried, before: Carried | None, at: float) -> None:
        added = Carried(total.sent - before.sent, total.received - before.received) if before else total
        place = self.company.place_of(socket)
        if place is None or self._is_free(place.network.name, at):
            return
        for key, budget, subject in place.shares:
            amount = _amount(budget, added)
            account = self.present.accounts.get(key)
            if key not in ledger._accounts:
                raise Violation(f"I11: {key} is not counted")
            if account is None:
                period = ledger._accounts[key].period
                account = self.present.accounts[key] = Account((period.start, period.end))
            if amount:
                part = int(account.period[0]) // _PARTS[budget.every][0] if budget.rolling else None
                account.add(subject, amount, part)

    def _follow_periods(self, ledger: Ledger) -> None:
        """What was used before the present period does not count any more."""
        is_confirmed = ledger._clock.is_confirmed
        self.waiting = set(ledger._overdue if ledger._clock.may_begin else ledger._accounts)
        for key, known in ledger._accounts.items():
            period = known.period.start, known.period.end
            account = self.present.accounts.get(key)
            if account is None:
                account = self.present.accounts[key] = Account(period)
            begin, end = account.period
            was_provisional, account.is_provisional = account.is_provisional, known.is_provisional
            if account.period == period:
                continue
            account.period = period
            is_moved = was_provisional and (is_confirmed or not begin <= period[0] <= end)
            if known.budget.rolling:
                seconds, number = _PARTS[known.budget.every]
                if is_moved:
                    account.move((int(period[0]) - int(begin)) // seconds)
                else:
                    account.drop(int(period[0]) // seconds - number)
            elif not is_moved:
                account.clear()

    def written(self, at: float) -> None:
        """The daemon has written all that it has counted; `at` in monotonic seconds."""
        self.present.is_first = False
        # Also the last one of before: a loss of power may take all that was written since.
        old = [each for each in self.versions if each.at <= at - WRITTEN_BACK_SECONDS]
        self.versions = [*old[-1:], *self.versions[len(old) :]]
        accounts = {key: account.kept() for key, account in self.present.accounts.items()}
        self.versions.append(Written(accounts, dict(self.present.counted), at, is_first=False))

    def killed(self) -> None:
        """The daemon is gone: sockets that close are not reported until there is another one."""
        self._closed.clear()
        self._live.clear()
        self.is_read = self._started = False

    def started(self, ledger: Ledger, kept: Sequence[Written], *, boots_again: bool) -> None:
        """Another instance has read what one of the versions `kept` has, wholly. Raises Violation."""
        present = uses_of(ledger)
        for version in reversed(kept):
            expected = {key: account.used for key, account in version.accounts.items()}
            if all(expected.get(key, {}) == used for key, used in present.items()):
                self.present = replace_at(version, version.at)
                break
        else:
            expected = {key: account.used for key, account in kept[-1].accounts.items()}
            raise Violation(f"I11: after a kill, budgets are what was never written: {_difference(present, expected)}")
        if boots_again:
            self.present.counted.clear()
            self.present.is_first = True
        self._ended.clear()
        self.versions = [replace_at(self.present, self.present.at)]
        self._follow_periods(ledger)

    def check(self, ledger: Ledger) -> None:
        """The ledger has counted each byte once. Raises Violation."""
        present, accounts = uses_of(ledger), self.present.accounts
        expected = {key: accounts[key].used if key in accounts else {} for key in present}
        if present != expected:
            raise Violation(f"I11: budgets differ from what was carried: {_difference(present, expected)}")

    def check_clients(self, ledger: Ledger, sockets: Iterable[ModelSocket]) -> None:
        """The same of the budgets of the clients of these sockets only."""
        for socket in sockets:
            place = self.company.place_of(socket)
            for key, _, subject in () if place is None else place.shares:
                if key not in ledger._accounts:
                    raise Violation(f"I11: {key} is not counted")
                known = ledger._accounts[key].uses.get(subject)
                account = self.present.accounts.get(key)
                used, expected = known.used if known else 0, account.used.get(subject, 0) if account else 0
                if used != expected:
                    raise Violation(f"I11: {key} of {subject}: {used} bytes are counted, {expected} were carried")


def replace_at(version: Written, at: float) -> Written:
    """A copy."""
    accounts = {key: account.copy() for key, account in version.accounts.items()}
    return Written(accounts, dict(version.counted), at, version.is_first)


def uses_of(ledger: Ledger) -> dict[AccountKey, dict[Subject, int]]:
    """What a ledger has counted."""
    return {
        key: {subject: use.used for subject, use in account.uses.items() if use.used}
        for key, account in ledger._accounts.items()
    }


def _difference(
    present: Mapping[AccountKey, Mapping[Subject, int]], expected: Mapping[AccountKey, Mapping[Subject, int]]
) -> str:
    lines = [
        f"{key.owner} {key.budget} {subject}: {present[key].get(subject, 0)} counted, {wanted.get(subject, 0)} carried"
        for key, wanted in sorted(expected.items())
        if key in present
        for subject in sorted({*present[key], *wanted}, key=str)
        if present[key].get(subject, 0) != wanted.get(subject, 0)
    ]
    return "; ".join(lines[:3]) + (f"; and {len(lines) - 3} more" if len(lines) > 3 else "")


def carried(socket: ModelSocket) -> Carried:
    """What a socket has carried until now."""
    return Carried(socket.ip_sent, socket.ip_received)


class Place(NamedTuple):
    """Where an address is: its network, the budgets in which it has a part, and the client, perhaps with a name."""

    network: AccessNetwork
    shares: list[Share]
    client: Address
    device: NamedClient | None


class Company:
    """The access networks of a configuration: where addresses are. Their subnets do not overlap."""

    def __init__(self, networks: Sequence[AccessNetwork] = ()) -> None:
        self._networks = networks
        self._known: dict[Address, Place | None] = {}

    def place_of(self, socket: ModelSocket) -> Place | None:
        """That of a socket's client; None: it is in no network."""
        known = socket.place
        if known is None or known[0] is not self:
            known = socket.place = self, self.place(socket.ends.client.address)
        return known[1]

    def place(self, address: Address) -> Place | None:
        """That of an address."""
        if address not in self._known:
            network = next((n for n in self._networks if any(address in subnet for subnet in n.subnets)), None)
            self._known[address] = None if network is None else _place(network, address)
        return self._known[address]


def shares_of_all(network: AccessNetwork) -> list[Share]:
    """The budgets of a network in which all its clients have a part together."""
    return [
        Share(AccountKey(network.name, budget.key), budget, None)
        for budget in network.budgets
        if budget.per is Per.NETWORK
    ]


def _place(network: AccessNetwork, address: Address) -> Place:
    return Place(network, _shares(network, address), network.client(address), network.devices.find(address))


def _shares(network: AccessNetwork, address: Address) -> list[Share]:
    client = network.client(address)
    own = [
        Share(AccountKey(network.name, budget.key), budget, client if budget.per is Per.CLIENT else None)
        for budget in network.budgets
    ]
    device = network.devices.find(address)
    if device is not None:
        own += [
            Share(AccountKey(device.name, budget.key), budget, None)
            for budget in device.budgets
            if network.name in budget.networks
        ]
    return own


def _amount(budget: Budget, added: Carried) -> int:
    match budget.counting:
        case Counting.DOWN:
            return added.sent
        case Counting.UP:
            return added.received
        case Counting.BOTH:
            return sum(added)


def calendar_period(budget: Budget, at: float, zone: tzinfo | None) -> tuple[float, float]:
    """The period of a budget with an instant, by the calendar, or the part of a rolling one."""
    if budget.rolling:
        seconds = _PARTS[budget.every][0]
        begin = at // seconds * seconds
        return begin, begin + seconds
    day = datetime.fromtimestamp(at, zone).date()
    match budget.every:
        case Every.DAY:
            first, last = day, day + timedelta(1)
        case Every.WEEK:
            first = day
            while first.weekday() != budget.starts:
                first -= timedelta(1)
            last = first + timedelta(7)
        case Every.MONTH:
            first = day
            while not _begins_month(first, budget.starts):
                first -= timedelta(1)
            last = day + timedelta(1)
            while not _begins_month(last, budget.starts):
                last += timedelta(1)
    begin, end = (datetime(d.year, d.month, d.day, tzinfo=zone).timestamp() for d in (first, last))
    return begin, end


def _begins_month(day: date, starts: int) -> bool:
    is_last = (day + timedelta(1)).day == 1
    return day.day == starts or (is_last and day.day < starts)
