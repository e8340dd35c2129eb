"""Keeps allowances in kernel programs: these count what is left of budgets, and begin the next stage by themselves."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager, suppress

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import AccessNetwork
from mptcp_throttle.proxies import Proxies
from mptcp_throttled.accounting.accounts import Accounts
from mptcp_throttled.kernel.allowances import Allowances, Counts
from mptcp_throttled.policy.next_stage import allowances, subnet_allowances
from mptcp_throttled.reporting.instruments import count_errors
from mptcp_throttled.vocabulary.allowances import AllowanceKey, SubnetAllowances
from mptcp_throttled.vocabulary.clock import Clock
from mptcp_throttled.vocabulary.snapshot import Snapshots

_log = logging.getLogger("mptcp-throttled")


class Charging:
    """Updates the allowances of the subjects near to a stage. Without `maps`, does nothing. For any thread."""

    def __init__(
        self, maps: Allowances | None, accounts: Accounts, snapshots: Snapshots, proxies: Proxies, clock: Clock
    ) -> None:
        self._maps = maps
        self._accounts = accounts
        self._snapshots = snapshots
        self._proxies = proxies
        self._clock = clock
        self._lock = threading.Lock()
        self._before: Counts = {}
        self._after: Counts = {}
        self._networks: Sequence[AccessNetwork] = ()
        self._keys: Set[AllowanceKey] = frozenset()
        self._rows: Sequence[SubnetAllowances] = ()

    @contextmanager
    def reading_sockets(self) -> Iterator[None]:
        """Use this context to read the proxy's sockets.

        What programs count in the meantime may be in the totals of the sockets already, or may not.
        """
        before = self._counts()
        yield
        self._before, self._after = before, self._counts()

    def _counts(self) -> Counts:
        if self._maps is None:
            return {}
        with self._lock, suppress(KernelError):
            return self._maps.counts()
        return {}

    def update(self) -> None:
        """Give the programs the present allowances. Call it after each observation and each change of budgets."""
        if self._maps is None:
            return
        with self._lock:
            try:
                self._update(self._maps)
            except KernelError as error:
                _log.debug("budgets are not counted in the kernel: %s", error)
                count_errors("budgets")

    def _update(self, maps: Allowances) -> None:
        snapshot = self._snapshots.snapshot
        ahead = self._accounts.stages_ahead(snapshot.facts.spent)
        made = allowances(snapshot.networks, ahead, self._clock.monotonic(), snapshot.facts)
        by_key = {allowance.key: allowance for allowance in made}
        if snapshot.networks is not self._networks or by_key.keys() != self._keys:
            self._networks, self._keys = snapshot.networks, by_key.keys()
            self._rows = subnet_allowances(snapshot.networks, by_key, self._proxies)
        maps.set(made, self._rows, self._before, self._after)
