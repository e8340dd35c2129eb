"""The ledger of a proxy, as the thread of totals knows it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from mptcp_throttle.periods import Period
from mptcp_throttled.vocabulary.budgets import AccountKey, Subject
from mptcp_throttled.vocabulary.fleet import FAR_SECONDS, OwnTotal, Scope, UsedElsewhere

if TYPE_CHECKING:
    from collections.abc import Sequence

# Long before and after whenever a test runs.
PERIOD: Final = Period(0.0, 1e11)
KEY: Final = AccountKey("lte", "client both month")


@dataclass
class ModelLedger:
    """What a proxy has counted, and what it was told. For any thread."""

    totals: dict[Subject, OwnTotal] = field(default_factory=dict)
    changed: set[Subject] = field(default_factory=set)
    told: set[Subject] = field(default_factory=set)
    elsewhere: dict[Subject, UsedElsewhere] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def carry(self, client: str, amount: int, seconds: float = 100.0) -> None:
        """A client carries `amount` bytes, and reaches its next stage in `seconds`."""
        subject = ip_address(client)
        with self.lock:
            before = self.totals.get(subject)
            used = amount + (0 if before is None else before.used)
            self.totals[subject] = OwnTotal(KEY, subject, PERIOD, used, seconds)
            self.changed.add(subject)

    def used(self, client: str) -> int:
        """What a client has used here."""
        with self.lock:
            total = self.totals.get(ip_address(client))
            return 0 if total is None else total.used

    def own_totals(self, scope: Scope) -> list[OwnTotal]:
        """As `Ledger` of the thread."""
        with self.lock:
            chosen = [*(self.totals if scope is Scope.ALL else self.changed)]
            if scope is Scope.URGENT:
                chosen = [each for each in chosen if self.totals[each].seconds < FAR_SECONDS or each not in self.told]
            if scope is not Scope.ALL:
                self.told |= {*chosen}
                self.changed -= {*chosen}
            return [self.totals[subject] for subject in chosen]

    def note_elsewhere(self, used: Sequence[UsedElsewhere]) -> None:
        """As `Ledger` of the thread."""
        with self.lock:
            self.elsewhere.update({each.subject: each for each in used})

    def used_elsewhere(self, client: str) -> int:
        """What it was told of a client last."""
        each = self.elsewhere.get(ip_address(client))
        return 0 if each is None else each.elsewhere.used
