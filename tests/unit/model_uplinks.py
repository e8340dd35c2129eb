"""Uplinks in memory, for tests of pure code: they refuse what they are told to refuse."""

from __future__ import annotations

import errno
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import FourTuple
from mptcp_throttled.vocabulary.counters import UplinkCounters
from mptcp_throttled.vocabulary.decision import Throttle


@dataclass
class ModelUplinks:
    """What the reconciler of the uplinks sees of the kernel.

    `refuse` has what fails: names of methods, and the subflows that cannot be throttled. `untold` is how many clients
    must still be told that they are free. `sockets` has the subflows with one on this host. `calls` are the methods
    that were called, `tried` the subflows of each request.
    """

    throttled: dict[FourTuple, Throttle] = field(default_factory=dict)
    refuse: set[str | FourTuple] = field(default_factory=set)
    has_filter: bool = False
    was_attached: bool = False
    linger: float = 0.0
    policed: frozenset[FourTuple] = frozenset()
    unreached: frozenset[FourTuple] = frozenset()
    counters: UplinkCounters = field(default_factory=UplinkCounters)
    window_problem: str | None = None
    untold: int = 0
    sockets: frozenset[FourTuple] = frozenset()
    calls: list[str] = field(default_factory=list)
    tried: list[set[FourTuple]] = field(default_factory=list)

    def attach(self) -> bool:
        self._call("attach")
        is_repaired, self.has_filter, self.was_attached = self.was_attached and not self.has_filter, True, True
        return is_repaired

    def throttle(self, uplinks: Mapping[FourTuple, Throttle | None]) -> None:
        self.tried.append({*uplinks})
        self._call("throttle")
        for ends, throttle in uplinks.items():
            if throttle is None:
                self.throttled.pop(ends, None)
            elif ends in self.refuse:
                raise KernelError(f"throttle {ends.client}", errno.E2BIG)
            else:
                self.throttled[ends] = throttle

    def forget(self, untold: Collection[FourTuple]) -> None:
        self._call("forget")
        for ends in untold:
            self.throttled.pop(ends, None)
        self.untold = max(self.untold - len(untold), 0)
        self.unreached = self.unreached.difference(untold)

    def forget_ended(self, subflows: Collection[FourTuple]) -> None:
        self.forget([ends for ends in subflows if ends not in self.sockets])

    def detach_if_told(self) -> bool:
        self._call("detach_if_told")
        if self.untold or self.unreached:
            return False
        self.has_filter = self.was_attached = False
        return True

    def release(self) -> None:
        self._call("release")
        self.throttled.clear()
        self.has_filter = self.was_attached = False

    def _call(self, method: str) -> None:
        self.calls.append(method)
        if method in self.refuse:
            raise KernelError(method, errno.ENOMEM)
