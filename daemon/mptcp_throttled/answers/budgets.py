"""The answers about budgets, and the arguments of these requests: whose budget, how much, until when."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Final, NamedTuple

from mptcp_throttle.config.schema import Config
from mptcp_throttle.config.subnets import parse_address
from mptcp_throttle.errors import UserError, shown
from mptcp_throttle.model import Counting, Every, Per, RateKind
from mptcp_throttle.rpc import Json
from mptcp_throttle.units import VOLUME_SYNTAX, Rate, format_volume, parse_volume
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.budget_account import BudgetUse
from mptcp_throttled.accounting.forecast import forecast
from mptcp_throttled.accounting.ledger import Choice, Ledger
from mptcp_throttled.answers.status import zone_name
from mptcp_throttled.vocabulary.budgets import AccountKey, Addition, BudgetChange, Subject
from mptcp_throttled.vocabulary.fleet import Elsewhere, proxy_of
from mptcp_throttled.vocabulary.locator import Locators
from mptcp_throttled.vocabulary.snapshot import Snapshot

_log = logging.getLogger("mptcp-throttled")

MAX_USES: Final = 1000
"""The most budgets in an answer."""

_MAX_ADDITIONS: Final = 16
_MAX_UNTIL_SECONDS: Final = 3650 * 86400.0


class Owner(NamedTuple):
    """Whose budgets are meant.

    `subjects` has by network the client there; None: the network's own budgets and those of all its clients.
    `is_device`: the operator has named a device, whose own budgets come before those of networks.
    """

    name: str
    subjects: Mapping[str, Subject]
    is_device: bool = False

    @property
    def is_network(self) -> bool:
        """Whether a whole network is meant."""
        return None in self.subjects.values()


def requested_owner(name: Json, config: Config) -> Owner:
    """A network or a device by its name, or a client by one of its addresses. Raises UserError with what is allowed."""
    if name in [network.name for network in config.networks]:
        return Owner(name, {name: None})
    if not isinstance(name, str):
        name = ""
    devices = _firsts(name, config)
    if devices:
        return Owner(name, devices, is_device=True)
    allowed = f"{', '.join(network.name for network in config.networks)}, a device, or an address"
    try:
        address = parse_address(name)
    except ValueError as error:
        raise UserError(f"{shown(name)}: no such network, device or address; allowed: {allowed}") from error
    located = [locate for locate in Locators(config.networks, config.proxies).each if locate(address) is not None]
    device = next((each for locate in located if (each := locate.device(address)) is not None), None)
    if device is not None:
        return Owner(name, _firsts(device, config))
    firsts: dict[str, Subject] = {
        network.name: locate.client(address) for locate in located if (network := locate(address)) is not None
    }
    if len({*firsts.values()}) != 1:
        problem = "is in no access network" if not firsts else "is of several clients, in networks with other prefixes"
        raise UserError(f"{address}: {problem}; allowed: {allowed} of a client")
    return Owner(name, firsts)


def _firsts(device: str, config: Config) -> dict[str, Subject]:
    """The first address of a device in each network; none if there is no such device."""
    return {n.name: n.devices.by_name[device].first for n in config.networks if device in n.devices.by_name}


def requested_choice(every: Json, direction: Json) -> Choice:
    """Which budgets are meant, by period and direction; null: any. Raises UserError with what is allowed."""
    if every is not None and every not in list(Every):
        raise UserError(f"every: {shown(every)}: allowed: {', '.join(Every)}, or null")
    if direction is not None and direction not in list(Counting):
        raise UserError(f"direction: {shown(direction)}: allowed: {', '.join(Counting)}, or null")
    return Choice(None if every is None else Every(every), None if direction is None else Counting(direction))


def requested_volume(amount: Json, *, or_nothing: bool = False) -> int:
    """A number of bytes. Raises UserError with what is allowed."""
    if or_nothing and amount == "0":
        return 0
    try:
        return parse_volume(amount if isinstance(amount, str) else "")
    except ValueError as error:
        zero = "; or 0" if or_nothing else ""
        raise UserError(f"amount: {shown(amount)}: is no volume; allowed: {VOLUME_SYNTAX}{zero}") from error


def requested_until(until: Json, zone: tzinfo | None, now: float) -> float | None:
    """A date, or a date and a time, in seconds since the epoch; null: None. Raises UserError with what is allowed."""
    if until is None:
        return None
    allowed = "allowed: a date, or a date and a time, such as 2026-12-31 or 2026-12-31T18:00, within ten years"
    try:
        local = datetime.fromisoformat(until)
        at = local.replace(tzinfo=zone if local.tzinfo is None else local.tzinfo).timestamp()
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise UserError(f"until: {shown(until)}: is no date; {allowed}") from error
    if not now < at < now + _MAX_UNTIL_SECONDS:
        raise UserError(f"until: {shown(until)}: is over, or too far away; {allowed}")
    return at


def add(accounts: Accounts, owner: Owner, choice: Choice, addition: Addition) -> None:
    """Add to the one budget that is meant. Raises UserError if it is none or several, or cannot be written."""

    def change(ledger: Ledger, at: float) -> Sequence[BudgetChange]:
        key, subject = _only(ledger, owner, choice)
        present = ledger.additions_of(key, subject, at)
        if len(present) >= _MAX_ADDITIONS:
            raise UserError(f"{owner.name}: has {len(present)} additions that are not used; allowed: {_MAX_ADDITIONS}")
        return ledger.add(key, subject, addition, at)

    _change(accounts, change, f"{owner.name}: {format_volume(addition.amount)} added")


def take_back(accounts: Accounts, owner: Owner, choice: Choice, amount: int, until: float | None) -> None:
    """Take back what was added to the one budget that is meant. Raises UserError if it is none or several, if no such
    amount was added, or if that cannot be written."""

    def change(ledger: Ledger, at: float) -> Sequence[BudgetChange]:
        key, subject = _only(ledger, owner, choice)
        present = ledger.additions_of(key, subject, at)
        taken = next((each for each in reversed(present) if (each.amount, each.until) == (amount, until)), None)
        if taken is None:
            volumes = ", ".join(format_volume(each.amount) for each in present) or "none: nothing was added"
            raise UserError(f"amount: {format_volume(amount)}: was not added, or is all used; allowed: {volumes}")
        return ledger.take_back(key, subject, taken, at)

    _change(accounts, change, f"{owner.name}: {format_volume(amount)} taken back")


def set_used(accounts: Accounts, owner: Owner, choice: Choice, used: int) -> None:
    """Set what is used of the one budget that is meant.

    Raises UserError as `add` does, or if other proxies have counted more.
    """

    def change(ledger: Ledger, at: float) -> Sequence[BudgetChange]:
        key, subject = _only(ledger, owner, choice)
        elsewhere = ledger.used_elsewhere(key, subject)
        if used < elsewhere:
            counted = format_volume(elsewhere)
            raise UserError(
                f"amount: {format_volume(used)}: other proxies have counted {counted}; allowed: that or more"
            )
        return ledger.set_used(key, subject, used - elsewhere, at)

    _change(accounts, change, f"{owner.name}: {format_volume(used)} used")


def reset(accounts: Accounts, owner: Owner, choice: Choice) -> None:
    """Begin again the budgets of a network and of all its clients, or those of a client or device.

    Raises UserError if there are none, or if that cannot be written.
    """

    def change(ledger: Ledger, at: float) -> Sequence[BudgetChange]:
        if owner.is_network:
            begun = [each for network in owner.subjects for each in ledger.reset(network, choice, at)]
            if not begun:
                raise UserError(_none(owner, choice))
            return begun
        chosen = {**_of_clients(ledger, owner, choice), **_of_device(ledger, owner, choice)}
        if not chosen:
            raise UserError(_none(owner, choice))
        return [level for key, subject in chosen.items() for level in ledger.set_used(key, subject, 0, at)]

    _change(accounts, change, f"{owner.name}: begun again")


def uses_of(accounts: Accounts, owner: Owner | None) -> list[BudgetUse]:
    """The budgets of `owner` as they are now; None: all budgets. Those of one client are there even without use."""
    if owner is None or owner.is_network:
        uses = accounts.budget_uses()
        return uses if owner is None else [use for use in uses if use.owner in owner.subjects]
    chosen = (
        use
        for network, client in owner.subjects.items()
        if client is not None
        for use in accounts.budget_uses_of(network, client)
        if use.budget.owner != Per.NETWORK
    )
    # A budget of a device is in each of its networks.
    return list({(use.owner, use.budget.key): use for use in chosen}.values())


def describe(
    uses: Iterable[BudgetUse], snapshot: Snapshot, problem: str | None = None, proxy: str | None = None
) -> Json:
    """The answer to `budgets`, those used most first. `problem` is why no period begins; `proxy` the name of this proxy
    in its fleet."""
    chosen = sorted(uses, key=lambda use: (-use.use.used / use.budget.amount, use.owner, str(use.subject)))
    return {
        "budgets": [describe_use(use, snapshot, proxy) for use in chosen[:MAX_USES]],
        "omitted": max(len(chosen) - MAX_USES, 0),
        "problem": problem,
        "time_zone": zone_name(snapshot.facts.wall_clock.zone),
    }


def describe_use(use: BudgetUse, snapshot: Snapshot, proxy: str | None = None) -> Json:
    """A budget in the answer to `budgets`; bytes, and times in seconds since the epoch. `proxy` is as in `describe`."""
    budget = use.budget
    allowed, foreseen = budget.allowed(use.spent_stages), forecast(use)
    device = use.owner if budget.networks else None
    if use.subject is not None:
        device = snapshot.device(use.owner, use.subject)
    return {
        "network": None if budget.networks else use.owner,
        "networks": list(budget.networks or (use.owner,)),
        "client": None if use.subject is None else str(use.subject),
        "device": device,
        "per": budget.owner,
        "direction": budget.counting,
        "every": budget.every,
        "rolling": budget.rolling,
        "amount": budget.amount,
        "used": use.use.used,
        "used_elsewhere": None if use.elsewhere is None else use.elsewhere.used,
        "used_by_proxy": None if use.elsewhere is None else _by_proxy(use.use.used, use.elsewhere, proxy),
        "used_without_mptcp": use.use.without_mptcp,
        "left": use.left,
        "added": [
            {"amount": addition.amount, "left": addition.left, "until": addition.until} for addition in use.additions
        ],
        "period": {"start": use.period.start, "end": use.period.end},
        "forecast": None if foreseen is None else foreseen._asdict(),
        "overdue": use.is_overdue,
        "starts": budget.starts,
        "rollover": budget.rollover,
        "warn_at": budget.warn_at,
        "stages": [{"at": stage.at, "rates": _rates(stage.rates)} for stage in budget.stages],
        "stages_reached": use.spent_stages,
        "free_window": None if use.free is None else str(use.free.when),
        "allowed": _rates(allowed),
    }


def _by_proxy(used: int, elsewhere: Elsewhere, own: str | None) -> list[Json]:
    """What each proxy has counted, the most first; proxies that have counted nothing are left out, except this one."""
    parts = {} if own is None else {own: used - elsewhere.used}
    for field, part in elsewhere.by_field:
        name = proxy_of(field)
        parts[name] = parts.get(name, 0) + part
    shown = sorted(parts.items(), key=lambda item: (-item[1], item[0]))
    return [{"name": name, "used": part} for name, part in shown if part or name == own]


def _rates(rates: Mapping[RateKind, Rate]) -> list[Json]:
    return [{"direction": kind.direction, "kind": kind.word, "rate": str(rate)} for kind, rate in rates.items()]


def _change(accounts: Accounts, change: Callable[[Ledger, float], Sequence[BudgetChange]], text: str) -> None:
    is_written = accounts.change_budgets(change)
    _log.info("budget set by hand: %s", text)
    if not is_written:
        raise UserError("applied, but not written: a restart may forget it; see the log")


def _of_clients(ledger: Ledger, owner: Owner, choice: Choice) -> dict[AccountKey, Subject]:
    """The chosen budgets of networks, each with the subject that is meant."""
    return {
        key: subject for network, subject in owner.subjects.items() for key in ledger.matching(network, subject, choice)
    }


def _of_device(ledger: Ledger, owner: Owner, choice: Choice) -> dict[AccountKey, Subject]:
    """The chosen budgets that devices have of their own; their subject is None."""
    return {
        key: None
        for network, first in owner.subjects.items()
        if first is not None
        for key in ledger.of_device(network, first, choice)
    }


def _only(ledger: Ledger, owner: Owner, choice: Choice) -> tuple[AccountKey, Subject]:
    """The one budget that is meant. A device by its name has its own first, a client by an address the network's.

    Raises UserError if there is none, or several.
    """
    kinds = [_of_device, _of_clients] if owner.is_device else [_of_clients, _of_device]
    chosen = next((keys for kind in kinds if (keys := kind(ledger, owner, choice))), {})
    if not chosen:
        raise UserError(_none(owner, choice))
    if len(chosen) > 1:
        texts = ", ".join(f"{key.owner} ({key.budget})" for key in chosen)
        raise UserError(f"{owner.name}: has several budgets: {texts}; allowed: one, chosen by --every and --direction")
    return next(iter(chosen.items()))


def _none(owner: Owner, choice: Choice) -> str:
    kind = "" if choice.every is None else f" for each {choice.every}"
    kind += "" if choice.counting is None else f" with direction: {choice.counting}"
    if owner.is_network:
        return f"{owner.name}: has no budget{kind} with per: network; allowed: one that has, or the address of a client"
    return f"{owner.name}: has no budget{kind} with per: client; allowed: a network or client with one"
