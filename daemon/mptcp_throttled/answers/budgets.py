"""The answers about budgets, and what an operator asks for: whose budget, how much, until when."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Final, NamedTuple

from mptcp_throttle.config.schema import Config
from mptcp_throttle.config.subnets import parse_address
from mptcp_throttle.errors import UserError, shown
from mptcp_throttle.model import Every
from mptcp_throttle.rpc import Json
from mptcp_throttle.units import VOLUME_SYNTAX, format_volume, parse_volume
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.accounting.ledger import BudgetUse, Ledger
from mptcp_throttled.vocabulary.budgets import AccountKey, Addition, Begun, Level, Subject
from mptcp_throttled.vocabulary.locator import Locators
from mptcp_throttled.vocabulary.snapshot import Snapshot

_log = logging.getLogger("mptcp-throttled")

MAX_USES: Final = 1000
"""How many budgets are in an answer."""

_MAX_ADDITIONS: Final = 16
_MAX_UNTIL_SECONDS: Final = 3650 * 86400.0


class Owner(NamedTuple):
    """Whose budgets are meant: by network, the client there, None: the network's own and those of all its clients."""

    name: str
    subjects: Mapping[str, Subject]

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
    devices = {n.name: n.devices.by_name[name].first for n in config.networks if name in n.devices.by_name}
    if devices:
        return Owner(name, devices)
    allowed = f"{', '.join(network.name for network in config.networks)}, a device, or an address"
    try:
        address = parse_address(name)
    except ValueError as error:
        raise UserError(f"{shown(name)}: no such network, device or address; allowed: {allowed}") from error
    located = [locate for locate in Locators(config.networks, config.proxies).each if locate(address) is not None]
    device = next((each for locate in located if (each := locate.device(address)) is not None), None)
    if device is not None:
        return requested_owner(device, config)
    firsts: dict[str, Subject] = {
        network.name: locate.client(address) for locate in located if (network := locate(address)) is not None
    }
    if len({*firsts.values()}) != 1:
        problem = "is in no access network" if not firsts else "is of several clients, in networks with other prefixes"
        raise UserError(f"{address}: {problem}; allowed: {allowed} of a client")
    return Owner(name, firsts)


def requested_every(every: Json) -> Every | None:
    """The periods of the budgets that are meant; None: of any length. Raises UserError with what is allowed."""
    if every is None or every in list(Every):
        return None if every is None else Every(every)
    raise UserError(f"every: {shown(every)}: allowed: {', '.join(Every)}, or null")


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


def add(accounts: Accounts, owner: Owner, every: Every | None, addition: Addition) -> None:
    """Add to the one budget that is meant. Raises UserError if it is none or several, or cannot be written."""

    def change(ledger: Ledger, at: float) -> Sequence[Level | Begun]:
        key = _only(ledger, owner, every)
        subject = owner.subjects[key.network]
        present = ledger.additions_of(key, subject, at)
        if len(present) >= _MAX_ADDITIONS:
            raise UserError(f"{owner.name}: has {len(present)} additions that are not used; allowed: {_MAX_ADDITIONS}")
        return ledger.add(key, subject, addition, at)

    _change(accounts, change, f"{owner.name}: {format_volume(addition.amount)} added")


def set_used(accounts: Accounts, owner: Owner, every: Every | None, used: int) -> None:
    """Set what is used of the one budget that is meant. Raises UserError as `add` does."""

    def change(ledger: Ledger, at: float) -> Sequence[Level | Begun]:
        key = _only(ledger, owner, every)
        return ledger.set_used(key, owner.subjects[key.network], used, at)

    _change(accounts, change, f"{owner.name}: {format_volume(used)} used")


def reset(accounts: Accounts, owner: Owner, every: Every | None) -> None:
    """Begin the budgets of a network again, those of all its clients too, or those of a client.

    Raises UserError if there are none, or if that cannot be written.
    """

    def change(ledger: Ledger, at: float) -> Sequence[Level | Begun]:
        if owner.is_network:
            begun = [each for network in owner.subjects for each in ledger.reset(network, every, at)]
            if not begun:
                raise UserError(_none(owner, every))
            return begun
        keys = _matching(ledger, owner, every)
        if not keys:
            raise UserError(_none(owner, every))
        return [level for key in keys for level in ledger.set_used(key, owner.subjects[key.network], 0, at)]

    _change(accounts, change, f"{owner.name}: begun again")


def describe(uses: Iterable[BudgetUse], owner: Owner | None, snapshot: Snapshot) -> Json:
    """The answer to `budgets`: those of `owner`, None: all, those first of which most is used."""
    chosen = [use for use in uses if owner is None or _is_owned(use, owner)]
    chosen.sort(key=lambda use: (-use.use.used / use.budget.amount, use.network, str(use.subject)))
    return {
        "budgets": [describe_use(use, snapshot) for use in chosen[:MAX_USES]],
        "omitted": max(len(chosen) - MAX_USES, 0),
    }


def describe_use(use: BudgetUse, snapshot: Snapshot) -> Json:
    """A budget in the answer to `budgets`; bytes, and times in seconds since the epoch."""
    budget = use.budget
    allowed = budget.allowed(use.spent_stages)
    return {
        "network": use.network,
        "client": None if use.subject is None else str(use.subject),
        "device": None if use.subject is None else snapshot.device(use.network, use.subject),
        "per": budget.per,
        "direction": budget.counting,
        "every": budget.every,
        "amount": budget.amount,
        "used": use.use.used,
        "used_without_mptcp": use.use.without_mptcp,
        "left": use.left,
        "added": [
            {"amount": addition.amount, "left": addition.left, "until": addition.until} for addition in use.additions
        ],
        "period": {"start": use.period.start, "end": use.period.end},
        "stages_reached": use.spent_stages,
        "allowed": [
            {"direction": kind.direction, "kind": kind.word, "rate": str(rate)} for kind, rate in allowed.items()
        ],
    }


def _change(accounts: Accounts, change: Callable[[Ledger, float], Sequence[Level | Begun]], text: str) -> None:
    is_written = accounts.change_budgets(change)
    _log.info("budget set by hand: %s", text)
    if not is_written:
        raise UserError("applied, but not written: a restart may forget it; see the log")


def _is_owned(use: BudgetUse, owner: Owner) -> bool:
    return use.network in owner.subjects and owner.subjects[use.network] in (None, use.subject)


def _matching(ledger: Ledger, owner: Owner, every: Every | None) -> list[AccountKey]:
    return [key for network, subject in owner.subjects.items() for key in ledger.matching(network, subject, every)]


def _only(ledger: Ledger, owner: Owner, every: Every | None) -> AccountKey:
    keys = _matching(ledger, owner, every)
    if not keys:
        raise UserError(_none(owner, every))
    if len(keys) > 1:
        texts = ", ".join(f"{key.network} ({key.budget})" for key in keys)
        raise UserError(f"{owner.name}: has several budgets: {texts}; allowed: one, chosen by its period")
    return keys[0]


def _none(owner: Owner, every: Every | None) -> str:
    kind = "" if every is None else f" for each {every}"
    if owner.is_network:
        return f"{owner.name}: has no budget{kind} with per: network; allowed: one that has, or the address of a client"
    return f"{owner.name}: has no budget{kind} with per: client; allowed: a network or client with one"
