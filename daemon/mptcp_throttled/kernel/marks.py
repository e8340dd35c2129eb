"""Marks through python-iptables: one MARK rule per subflow in a chain of our own.

`-t mangle -I POSTROUTING -p tcp -j MPTCP-THROTTLE` leads to rules that match both ends of a subflow, address and
port. POSTROUTING, since a changed mark in OUTPUT makes the kernel look up the route of every packet again.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from typing import IO, Any, Final

import iptc

from mptcp_throttle.model import Endpoint, FourTuple
from mptcp_throttled.kernel.fault_point import fault_point
from mptcp_throttled.kernel.htb import mark_shift
from mptcp_throttled.kernel_state import ChainState, KernelError

CHAIN: Final = "MPTCP-THROTTLE"
_HOOK: Final = "POSTROUTING"
_HOOKS: Final = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
_TERMINATING: Final = frozenset({"ACCEPT", "DROP", "RETURN", "QUEUE", "NFQUEUE"})
_NO_TABLE: Final = frozenset({errno.ENOENT, errno.ENOPROTOOPT, errno.EAFNOSUPPORT})
_XTABLES_LOCK: Final = "/run/xtables.lock"
"""What iptables(8) locks; libiptc itself does not (iptables/xshared.c)."""

_LOCK_SECONDS: Final = 0.5
_LOCK_REMEDY: Final = "tmpfiles.d/mptcp-throttle.conf makes it writable for our group"

_COMMIT_ATTEMPTS: Final = 20
_COMMIT_PAUSE_SECONDS: Final = 0.01

_log = logging.getLogger("mptcp-throttled")


class MarkChains:
    """Our chains in the mangle tables of IPv4 and IPv6. For one thread only; all methods raise KernelError.

    python-iptables writes a whole table at each commit and gives up with EAGAIN if another program wrote in between;
    then the table is read again and the change repeated.
    """

    def __init__(self, mask: int) -> None:
        self._mask = mask
        self._tables: dict[int, Any] = {}

    def require_table(self, ip_version: int) -> None:
        """Raise KernelError if the kernel has no mangle table for this IP version."""
        with _translated(f"the kernel has no mangle table for IPv{ip_version} (CONFIG_IP_NF_MANGLE)"):
            self._fresh_table(ip_version)

    def read(self) -> dict[int, ChainState]:
        """Our chains by IP version; a table the kernel does not have holds none."""
        found = {}
        for ip_version in (4, 6):
            try:
                with _translated(f"{_TOOLS[ip_version]} -t mangle -S {CHAIN}"):
                    table = self._fresh_table(ip_version)
                    if _is_present(table):
                        found[ip_version] = self._read_chain(table)
            except KernelError as error:
                if error.number not in _NO_TABLE:
                    raise
        return found

    def change(self, ip_version: int, add: Mapping[FourTuple, int], remove: Mapping[FourTuple, int]) -> None:
        """Remove and add rules, in one commit."""

        def edit(table: Any) -> None:
            if not table.is_chain(CHAIN):
                table.create_chain(CHAIN)
                # Before all others: one of them may end the traversal.
                iptc.Chain(table, _HOOK).insert_rule(_jump(ip_version))
            chain = iptc.Chain(table, CHAIN)
            for ends, minor in remove.items():
                chain.delete_rule(self._rule(ends, minor))
            for ends, minor in add.items():
                chain.append_rule(self._rule(ends, minor))

        self._commit(f"{_TOOLS[ip_version]}: {len(add)} marks added, {len(remove)} removed", ip_version, edit)

    def remove(self, ip_version: int) -> None:
        """Remove our chain and the jumps to it; what it holds first, in case somebody else refers to it."""

        def empty(table: Any) -> None:
            for hook in _HOOKS:
                for jump in _jumps(table, hook):
                    iptc.Chain(table, hook).delete_rule(jump)
            if table.is_chain(CHAIN):
                iptc.Chain(table, CHAIN).flush()

        def delete(table: Any) -> None:
            if table.is_chain(CHAIN):
                table.delete_chain(CHAIN)

        self._commit(f"{_TOOLS[ip_version]} -t mangle -F {CHAIN}", ip_version, empty)
        self._commit(f"{_TOOLS[ip_version]} -t mangle -X {CHAIN}", ip_version, delete)

    def _fresh_table(self, ip_version: int) -> Any:
        if ip_version not in self._tables:
            # Autocommit would swallow the kernel's errors.
            self._tables[ip_version] = _TABLES[ip_version](_TABLES[ip_version].MANGLE, autocommit=False)
        table = self._tables[ip_version]
        table.refresh()
        return table

    def _commit(self, what: str, ip_version: int, edit: Callable[[Any], None]) -> None:
        for attempt in range(1, _COMMIT_ATTEMPTS + 1):
            try:
                with _translated(what), _xtables_lock():
                    table = self._fresh_table(ip_version)
                    edit(table)
                    table.commit()
                return
            except KernelError as error:
                if error.number != errno.EAGAIN or attempt == _COMMIT_ATTEMPTS:
                    raise
                time.sleep(_COMMIT_PAUSE_SECONDS)

    def _read_chain(self, table: Any) -> ChainState:
        try:
            return self._read_rules(table)
        except _NOT_UNDERSTOOD:
            return ChainState({}, stray=True)

    def _read_rules(self, table: Any) -> ChainState:
        if not table.is_chain(CHAIN):
            return ChainState({}, stray=True)
        marks: dict[FourTuple, int] = {}
        stray = not _is_reached(table)
        for rule in iptc.Chain(table, CHAIN).rules:
            ends = _ends_of(rule)
            minor = self._minor_of(rule)
            if ends is None or minor is None or ends in marks:
                stray = True
            else:
                marks[ends] = minor
        return ChainState(marks, stray)

    def _rule(self, ends: FourTuple, minor: int) -> Any:
        rule = _RULES[ends.client.address.version]()
        rule.protocol = "tcp"
        rule.src = str(ends.proxy.address)
        rule.dst = str(ends.client.address)
        match = rule.create_match("tcp")
        match.sport = str(ends.proxy.port)
        match.dport = str(ends.client.port)
        rule.create_target("MARK").set_xmark = f"{minor << mark_shift(self._mask):#x}/{self._mask:#x}"
        return rule

    def _minor_of(self, rule: Any) -> int | None:
        # To ask the target of a foreign rule for its parameters may fail in many ways.
        if rule.target is None or rule.target.name != "MARK":
            return None
        # python-iptables reads back what it wrote as set_mark under the name set_xmark.
        value, _, mask = rule.target.parameters.get("set_xmark", "").partition("/")
        try:
            return int(value, 0) >> mark_shift(self._mask) if int(mask, 0) == self._mask else None
        except ValueError:
            return None


_NOT_UNDERSTOOD: Final = (AttributeError, TypeError, ValueError)
"""What python-iptables makes of rules that it does not understand."""

_TOOLS: Final = {4: "iptables-legacy", 6: "ip6tables-legacy"}
_TABLES: Final = {4: iptc.Table, 6: iptc.Table6}
_RULES: Final = {4: iptc.Rule, 6: iptc.Rule6}

for _table in _TABLES.values():
    # To see whether a jump's target is a chain, python-iptables opens every table it takes for available. Opening one
    # creates it, and `nat` brings connection tracking with it, on somebody's production proxy.
    _table.existing_table_names.update({name: name == _table.MANGLE for name in _table.ALL})


def _jump(ip_version: int) -> Any:
    rule = _RULES[ip_version]()
    rule.protocol = "tcp"
    rule.create_target(CHAIN)
    return rule


def _jumps(table: Any, hook: str) -> list[Any]:
    return [rule for rule in iptc.Chain(table, hook).rules if _target(rule) == CHAIN]


def _target(rule: Any) -> str | None:
    return None if rule.target is None else str(rule.target.name)


def _is_present(table: Any) -> bool:
    return bool(table.is_chain(CHAIN)) or any(_jumps(table, hook) for hook in _HOOKS)


def _is_reached(table: Any) -> bool:
    """Whether exactly one rule leads to our chain, and none before it ends the traversal."""
    targets = [_target(rule) for rule in iptc.Chain(table, _HOOK).rules]
    jumps = sum(len(_jumps(table, hook)) for hook in _HOOKS)
    return jumps == targets.count(CHAIN) == 1 and _TERMINATING.isdisjoint(targets[: targets.index(CHAIN)])


def _ends_of(rule: Any) -> FourTuple | None:
    if len(rule.matches) != 1 or rule.matches[0].name != "tcp":
        return None
    ports = rule.matches[0].parameters
    try:
        return FourTuple(
            Endpoint(ip_address(rule.dst.partition("/")[0]), int(ports["dport"])),
            Endpoint(ip_address(rule.src.partition("/")[0]), int(ports["sport"])),
        )
    except (KeyError, ValueError):
        return None


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
    # Not for ever: whoever is held to a rate meanwhile can still be let go by tc alone.
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise KernelError(f"lock {_XTABLES_LOCK}", errno.EBUSY, "another program holds it") from error
            time.sleep(_COMMIT_PAUSE_SECONDS)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """python-iptables reports errors as text, which libiptc took from errno; errno itself is long gone."""
    try:
        fault_point(what)
        yield
    except OSError as error:
        raise KernelError(f"{what}: {error.filename}" if error.filename else what, error.errno or errno.EIO) from error
    except (iptc.IPTCError, iptc.xtables.XTablesError) as error:
        raise KernelError(what, _errno_of(str(error)), str(error)) from error
    except _NOT_UNDERSTOOD as error:
        raise KernelError(what, errno.EIO, str(error)) from error


def _errno_of(text: str) -> int:
    # The texts of libiptc's iptc_strerror (libiptc/libiptc.c).
    for fragment, number in (
        ("Permission denied", errno.EPERM),
        ("Table does not exist", errno.ENOENT),
        ("table does not exist", errno.ENOENT),
        ("Protocol not available", errno.ENOPROTOOPT),
        ("Address family not supported", errno.EAFNOSUPPORT),
        ("Resource temporarily unavailable", errno.EAGAIN),
        ("Device or resource busy", errno.EBUSY),
        ("Bad rule", errno.ENOENT),
    ):
        if fragment in text:
            return number
    return errno.EIO
