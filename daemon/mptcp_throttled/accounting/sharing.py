"""How the account of a budget shares totals with other proxies: which it tells them, and what it takes from them.

Budgets that are rolling, or roll over, are not shared: what is left of them depends on more than one total.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Final

from mptcp_throttled.accounting.budget_account import BudgetAccount
from mptcp_throttled.accounting.shared_subjects import SharedSubjects
from mptcp_throttled.vocabulary.budgets import Subject, Use
from mptcp_throttled.vocabulary.fleet import OwnTotal, Scope, UsedElsewhere

NEAR_SECONDS: Final = 8.0
"""Kernel programs are told at once of what was used elsewhere when a stage is nearer than this."""

PORTION: Final = 4096
"""The most totals that are told at once, which takes some milliseconds."""

_NO_USE: Final = Use()


def configure(account: BudgetAccount, *, is_shared: bool) -> None:
    """Begin or stop sharing the budget of an account: it is shared if `is_shared` and if budgets of its kind can be."""
    if not is_shared or account.budget.rolling or account.budget.rollover:
        account.shared = None
        account.forget_elsewhere()
    elif account.shared is None:
        account.shared = SharedSubjects(account.uses)


def begin_period(account: BudgetAccount) -> None:
    """A period begins, of which nothing is used, here or elsewhere."""
    account.forget_elsewhere()
    if account.shared is not None:
        account.shared.clear()


def own_totals(account: BudgetAccount, scope: Scope, *, may_begin: bool) -> Iterator[list[OwnTotal]]:
    """The totals of the account that other proxies are to know, in portions; it may change between two of them.

    There are none of a provisional period while no period `may_begin`: the clock is not synchronised, so that another
    period may be meant.
    """
    if account.shared is None or (account.is_provisional and not may_begin):
        return
    if scope is Scope.ALL:
        # A union of dictionaries takes over their hashes: to compute that of an address takes long.
        subjects = dict.fromkeys(account.uses, math.inf) | dict.fromkeys(account.shared.forgotten, math.inf)
    else:
        subjects = account.shared.take(scope)
    if account.has_clients:
        subjects.pop(None, None)
    key, period, rest = account.key, account.period, iter(subjects.items())
    while account.period == period and (portion := [*islice(rest, PORTION)]):
        uses, unread = account.uses, account.kept_elsewhere
        yield [
            OwnTotal(
                key,
                subject,
                period,
                uses.get(subject, _NO_USE).used,
                seconds,
                account.elsewhere[subject].by_field if subject in unread else (),
            )
            for subject, seconds in portion
        ]


def note_own(account: BudgetAccount, subject: Subject, seconds: float) -> None:
    """The use of a subject has changed; it reaches its next stage in `seconds`."""
    if account.shared is not None:
        account.shared.note(subject, seconds)


def note_elsewhere(account: BudgetAccount, used: UsedElsewhere, now: float) -> bool:
    """Take what was `used` at other proxies, known at `now` (monotonic seconds); whether it counts now."""
    if account.shared is None or account.period.start != used.start:
        return False
    before, account.elsewhere[used.subject] = account.elsewhere.get(used.subject), used.elsewhere
    if before is None or used.elsewhere._replace(rate=before.rate) != before:
        account.changed_elsewhere.add(used.subject)
    # What was used before this proxy knew of it was not used lately.
    if before is not None and used.elsewhere.used > before.used and used.subject not in account.kept_elsewhere:
        account.recent.add(used.subject, used.elsewhere.used - before.used, now)
    account.kept_elsewhere.discard(used.subject)
    return True


def rate_elsewhere(account: BudgetAccount, subject: Subject) -> float:
    """How fast a subject uses the budget at other proxies, in bytes/s."""
    elsewhere = account.elsewhere.get(subject)
    return 0.0 if elsewhere is None else elsewhere.rate
