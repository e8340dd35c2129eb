"""What of the accounts of budgets is not in the database yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mptcp_throttled.accounting.budget_account import BudgetAccount
from mptcp_throttled.accounting.ledger_rows import LedgerChanges, StoredPeriod


def changes_of(accounts: Sequence[BudgetAccount], read_at: float | None) -> LedgerChanges:
    """What has changed since `note_written` was called; `read_at` is as in `LedgerChanges`."""
    rolling = {account.key: account.rolling for account in accounts if account.rolling is not None}
    return LedgerChanges(
        periods={
            account.key: StoredPeriod(account.period, account.rolled_over, account.is_provisional)
            for account in accounts
            if account.is_new
        },
        uses={
            account.key: {subject: account.uses[subject] for subject in account.changed}
            for account in accounts
            if account.rolling is None
        },
        additions={
            account.key: {subject: account.additions.get(subject, ()) for subject in account.changed_additions}
            for account in accounts
        },
        parts={key: use.changes() for key, use in rolling.items()},
        dropped={key: use.dropped for key, use in rolling.items()},
        elsewhere={
            account.key: {
                subject: account.elsewhere[subject]
                for subject in (account.elsewhere if account.is_new else account.changed_elsewhere)
            }
            for account in accounts
        },
        read_at=read_at,
    )


def note_written(accounts: Iterable[BudgetAccount]) -> None:
    """The changes are in the database."""
    for account in accounts:
        account.is_new, account.changed, account.changed_additions = False, set(), set()
        account.changed_elsewhere = set()
        if account.rolling is not None:
            account.rolling.written()


def write_all_again(accounts: Iterable[BudgetAccount]) -> None:
    """The database is a new one: everything counts as changed."""
    for account in accounts:
        account.is_new, account.changed, account.changed_additions = True, {*account.uses}, {*account.additions}
        if account.rolling is not None:
            account.rolling.write_all_again()
