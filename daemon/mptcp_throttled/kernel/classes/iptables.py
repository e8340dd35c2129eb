"""Our chain in the mangle tables, through python-iptables; the classifier `rules` decides which rules it has.

`-t mangle -I POSTROUTING -p tcp -j MPTCP-THROTTLE` leads to it. POSTROUTING, because the kernel repeats the route
lookup of each packet whose mark changes in OUTPUT (net/ipv4/netfilter/iptable_mangle.c).
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from mptcp_throttle.linux.kernel_error import KernelError, fault_point
from mptcp_throttle.own_chains import OWN_CHAIN
from mptcp_throttled.kernel.classes.mangle_table import may_have_chain
from mptcp_throttled.vocabulary.kernel_state import AssignmentState

TOOLS: Final = {4: "iptables-legacy", 6: "ip6tables-legacy"}

_TABLE_NAMES: Final = {
    4: Path("/proc/thread-self/net/ip_tables_names"),
    6: Path("/proc/thread-self/net/ip6_tables_names"),
}
_LOADED_MODULES: Final = Path("/sys/module")
_MODULES: Final = {4: ("ip_tables", "iptable_mangle"), 6: ("ip6_tables", "ip6table_mangle")}
_HOOK: Final = "POSTROUTING"
_HOOKS: Final = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
_TERMINATING: Final = frozenset({"ACCEPT", "DROP", "RETURN", "QUEUE", "NFQUEUE"})
_NO_TABLE: Final = frozenset({errno.ENOENT, errno.ENOPROTOOPT, errno.EAFNOSUPPORT})
_XTABLES_LOCK: Final = os.environ.get("XTABLES_LOCKFILE") or "/run/xtables.lock"
"""The lock file of iptables(8) (iptables/xshared.c, xtables_lock); libiptc itself takes no lock."""

_LOCK_SECONDS: Final = 0.5
_LOCK_REMEDY: Final = "tmpfiles.d/mptcp-throttle.conf makes it writable for mptcp-xtables"

_COMMIT_ATTEMPTS: Final = 20
_COMMIT_PAUSE_SECONDS: Final = 0.01

_NOT_UNDERSTOOD: Final = (AttributeError, TypeError, ValueError)
"""What python-iptables raises for rules that it does not understand."""

_MANGLE: Final = "mangle"


@functools.cache
def _iptc() -> Any:
    """python-iptables, imported when it is needed first: it takes a seventh of the daemon's start."""
    import iptc

    for table in (iptc.Table, iptc.Table6):
        # To tell whether a jump's target is a chain, it opens every table that it believes available. Opening a table
        # creates it, and creating `nat` turns on connection tracking for the whole host.
        table.existing_table_names.update({name: name == _MANGLE for name in table.ALL})
    return iptc


class OwnChain:
    """Our chain in the mangle table of one IP version. For one thread only; all methods raise KernelError.

    libiptc writes the whole table at each commit, and fails with EAGAIN if another program has written since the
    last read; then the table is read again and the change repeated.
    """

    def __init__(self, ip_version: int) -> None:
        self._ip_version = ip_version
        self._tool = TOOLS[ip_version]
        self._table: Any = None

    def require_table(self) -> None:
        """Raise KernelError if the kernel has no mangle table for this IP version."""
        with _iptables_errors(f"the kernel has no mangle table for IPv{self._ip_version} (CONFIG_IP_NF_MANGLE)"):
            self._fresh_table()

    def new_rule(self) -> Any:
        """A new rule of this IP version that matches TCP, for `make` and `change`."""
        rule = _iptc().Rule() if self._ip_version == 4 else _iptc().Rule6()
        rule.protocol = "tcp"
        return rule

    def read(self, parse: Callable[[Sequence[Any]], AssignmentState]) -> AssignmentState | None:
        """What `parse` returns for our chain's rules; None if there is neither chain nor jump to it, or no table.

        Makes no table: one that is there makes iptables-nft(8) warn of it.
        """
        if not _may_have_table(self._ip_version):
            return None
        try:
            with _iptables_errors(f"{self._tool} -t mangle -S {OWN_CHAIN}"):
                if not may_have_chain(self._ip_version, OWN_CHAIN):
                    return None
                table = self._fresh_table()
                return _read_chain(table, parse) if _is_present(table) else None
        except KernelError as error:
            if error.number in _NO_TABLE:
                return None
            raise

    def make(self, build: Callable[[], Iterable[Any]]) -> None:
        """Give our chain exactly the rules that `build` returns, and one jump to it, in one commit."""

        def edit(table: Any) -> None:
            rules = list(build())
            _remove_jumps(table)
            if table.is_chain(OWN_CHAIN):
                _iptc().Chain(table, OWN_CHAIN).flush()
            else:
                table.create_chain(OWN_CHAIN)
            # First, because any rule before it may end the traversal.
            jump = self.new_rule()
            jump.create_target(OWN_CHAIN)
            _iptc().Chain(table, _HOOK).insert_rule(jump)
            _append(table, rules)

        self._commit(f"{self._tool} -t mangle -A {OWN_CHAIN}", edit)

    def change(self, what: str, build: Callable[[], tuple[Iterable[Any], Iterable[Any]]]) -> None:
        """Add and remove the rules that `build` returns, in one commit; `what` describes the change in errors."""

        def edit(table: Any) -> None:
            add, remove = build()
            chain = _iptc().Chain(table, OWN_CHAIN)
            for rule in remove:
                chain.delete_rule(rule)
            _append(table, add)

        self._commit(f"{self._tool}: {what}", edit)

    def remove(self) -> None:
        """Remove our chain and the jumps to it. Its rules go first, in case a rule that is not ours keeps the chain."""

        def empty(table: Any) -> None:
            _remove_jumps(table)
            if table.is_chain(OWN_CHAIN):
                _iptc().Chain(table, OWN_CHAIN).flush()

        def delete(table: Any) -> None:
            if table.is_chain(OWN_CHAIN):
                table.delete_chain(OWN_CHAIN)

        # Reading needs no lock, which we may lack the permission to take.
        if self.read(lambda _: AssignmentState({})) is None:
            return
        self._commit(f"{self._tool} -t mangle -F {OWN_CHAIN}", empty)
        self._commit(f"{self._tool} -t mangle -X {OWN_CHAIN}", delete)

    def _fresh_table(self) -> Any:
        if self._table is None:
            table = _iptc().Table if self._ip_version == 4 else _iptc().Table6
            self._table = table(_MANGLE, autocommit=False)  # autocommit would hide errors of the kernel
        self._table.refresh()
        return self._table

    def _commit(self, what: str, edit: Callable[[Any], None]) -> None:
        for attempt in range(1, _COMMIT_ATTEMPTS + 1):
            try:
                with _iptables_errors(what), _xtables_lock():
                    table = self._fresh_table()
                    edit(table)
                    table.commit()
                return
            except KernelError as error:
                if error.number != errno.EAGAIN or attempt == _COMMIT_ATTEMPTS:
                    raise
                time.sleep(_COMMIT_PAUSE_SECONDS)


def target_of(rule: Any) -> str | None:
    """The name of a rule's target; None if it has none."""
    return None if rule.target is None else str(rule.target.name)


def _may_have_table(ip_version: int) -> bool:
    """Whether this network namespace has a mangle table, as far as we may know: only root may list its tables."""
    try:
        return _MANGLE in _TABLE_NAMES[ip_version].read_text(encoding="ascii").split()
    except FileNotFoundError:
        return False
    except OSError:  # above all EACCES
        of_all_tables, of_this_table = (_LOADED_MODULES / module for module in _MODULES[ip_version])
        # The kernel loads the module when a program opens the table. What is built in cannot be told apart.
        return of_this_table.exists() or not of_all_tables.exists()


def _read_chain(table: Any, parse: Callable[[Sequence[Any]], AssignmentState]) -> AssignmentState:
    try:
        if not table.is_chain(OWN_CHAIN):
            return AssignmentState({}, altered=True)
        state = parse(_iptc().Chain(table, OWN_CHAIN).rules)
        return state if _is_reached(table) else AssignmentState(state.assignments, altered=True)
    except _NOT_UNDERSTOOD:
        return AssignmentState({}, altered=True)


def _append(table: Any, rules: Iterable[Any]) -> None:
    chain = _iptc().Chain(table, OWN_CHAIN)
    for rule in rules:
        chain.append_rule(rule)


def _jumps(table: Any, hook: str) -> list[Any]:
    return [rule for rule in _iptc().Chain(table, hook).rules if target_of(rule) == OWN_CHAIN]


def _remove_jumps(table: Any) -> None:
    for hook in _HOOKS:
        for jump in _jumps(table, hook):
            _iptc().Chain(table, hook).delete_rule(jump)


def _is_present(table: Any) -> bool:
    return bool(table.is_chain(OWN_CHAIN)) or any(_jumps(table, hook) for hook in _HOOKS)


def _is_reached(table: Any) -> bool:
    """Whether exactly one rule leads to our chain, and none before it ends the traversal."""
    targets = [target_of(rule) for rule in _iptc().Chain(table, _HOOK).rules]
    jumps = sum(len(_jumps(table, hook)) for hook in _HOOKS)
    return jumps == targets.count(OWN_CHAIN) == 1 and _TERMINATING.isdisjoint(targets[: targets.index(OWN_CHAIN)])


@contextmanager
def _xtables_lock() -> Iterator[None]:
    try:
        lock = open(_XTABLES_LOCK, "a", encoding="ascii")  # noqa: SIM115
    except OSError as error:
        raise KernelError(f"open {_XTABLES_LOCK}", error.errno or errno.EIO, _LOCK_REMEDY) from error
    with lock:
        _lock_in_time(lock)
        yield


def _lock_in_time(lock: IO[str]) -> None:
    # Bounded, because failing open needs only tc and must not wait for this lock.
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise KernelError(f"lock {_XTABLES_LOCK}", errno.EBUSY, "another program holds it") from error
            time.sleep(_COMMIT_PAUSE_SECONDS)


@contextmanager
def _iptables_errors(what: str) -> Iterator[None]:
    """Turn the errors of python-iptables into KernelError, which names `what` was tried.

    They have libiptc's text for an errno, but not its number.
    """
    try:
        fault_point(what)
        yield
    except OSError as error:
        raise KernelError(f"{what}: {error.filename}" if error.filename else what, error.errno or errno.EIO) from error
    except (_iptc().IPTCError, _iptc().xtables.XTablesError) as error:
        raise KernelError(what, _errno_of(str(error)), str(error)) from error
    except _NOT_UNDERSTOOD as error:
        raise KernelError(what, errno.EIO, str(error)) from error


def _errno_of(text: str) -> int:
    # The texts of iptc_strerror (libiptc/libiptc.c) and of python-iptables.
    for fragment, number in (
        ("Permission denied", errno.EPERM),
        ("Table does not exist", errno.ENOENT),
        ("table does not exist", errno.ENOENT),
        ("Protocol not available", errno.ENOPROTOOPT),
        ("Address family not supported", errno.EAFNOSUPPORT),
        ("Resource temporarily unavailable", errno.EAGAIN),
        ("Device or resource busy", errno.EBUSY),
        ("Bad rule", errno.ENOENT),
        ("can't find target", errno.ENOENT),
    ):
        if fragment in text:
            return number
    return errno.EIO
