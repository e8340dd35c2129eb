"""Checks of which users can read the configuration, and which users may use the sockets."""

from __future__ import annotations

import grp
import os
import pwd
import socket
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mptcp_throttle.config.load import config_paths
from mptcp_throttle.config.notes import windows_over
from mptcp_throttle.errors import ConfigError
from mptcp_throttle.findings import Finding, Host, note, or_ok
from mptcp_throttle.linux.unix_peer import peer_of
from mptcp_throttle.programs import ProgramFailed
from mptcp_throttle.systemd_unit import SERVICES, read_unit

_PROCESSES: Final = Path("/proc")
_ACL: Final = "system.posix_acl_access"
_OVER: Final = "correct the dates, or remove the window; then `mptcp-throttle reload`"


def configuration_files(host: Host) -> Iterator[Finding]:
    """Whether the users of both services can read the configuration files."""
    paths = config_paths(host.config_file)
    sockets = host.config.sockets
    for name, path in zip(SERVICES, (sockets.sniffer, sockets.daemon), strict=True):
        subject = f"configuration for {name}"
        try:
            user = of_listener(path) or _of_unit(name)
            unknown = (
                "the user of the service is not known: the service does not run, or you may not connect to its socket"
            )
            yield Finding(subject, unchecked=unknown) if user is None else _judge(subject, user, paths)
        except (OSError, UnknownUser, ProgramFailed) as error:
            yield Finding(subject, unchecked=str(error))


def _of_unit(name: str) -> ServiceUser | None:
    unit = read_unit(name)
    return None if unit is None else of_unit(unit.User, unit.Group, unit.SupplementaryGroups.split())


def _judge(subject: str, user: ServiceUser, paths: tuple[Path, ...]) -> Finding:
    unreadable = list(obstacles(user, paths))
    if not unreadable:
        return Finding(subject)
    path, rest = unreadable[0], f", nor {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
    status = path.stat()
    owners = f"{_name(pwd.getpwuid, status.st_uid)}:{_name(grp.getgrgid, status.st_gid)}"
    problem = f"user {user.name} cannot read {path} ({stat.filemode(status.st_mode)} {owners}){rest}"
    return Finding(subject, problem, f"`chmod o+rX {path}`, or give it to a group of {user.name}")


def schedules(host: Host) -> list[Finding]:
    """Whether each window of a schedule may still count."""
    lines = windows_over(host.config, time.time())
    return or_ok("schedules", (Finding("schedules", line, _OVER, harm=False) for line in lines))


def socket_group(host: Host) -> Iterator[Finding]:
    """Whether this host has the group that may use the sockets."""
    if host.config.socket_group is None:
        return
    try:
        _ = host.config.socket_group.gid
    except ConfigError as error:
        yield Finding("socket group", str(error), "`systemd-sysusers` makes mptcp-throttle")
    else:
        yield Finding("socket group")


def cli_user(host: Host) -> Iterator[Finding]:
    """Whether the user of the CLI is in the group that may use the sockets."""
    group = host.config.socket_group
    if group is None or os.geteuid() == 0:
        return
    try:
        entry = grp.getgrnam(group.name)
    except KeyError:
        return  # `socket_group` says so
    user, is_member = _name(pwd.getpwuid, os.geteuid()), entry.gr_gid in {os.getegid(), *os.getgroups()}
    add = "" if user in entry.gr_mem else f"`usermod --append --groups {group.name} {user}`, and "
    problem = f"{user} is not a member of the group {group.name}"
    yield note("CLI user", is_well=is_member, problem=problem, remedy=f"{add}log in again")


class UnknownUser(Exception):
    """This host does not have the user, or one of the groups."""


@dataclass(frozen=True, slots=True)
class ServiceUser:
    """The user that a service runs as, with all groups of its process."""

    name: str
    uid: int
    gids: frozenset[int]

    def may(self, permissions: int, status: os.stat_result) -> bool:
        """Whether the mode of a file gives this user all of these permissions (bits of stat.S_IRWXO)."""
        if self.uid == 0:
            return True
        shift = 6 if status.st_uid == self.uid else 3 if status.st_gid in self.gids else 0
        return status.st_mode >> shift & permissions == permissions


def of_listener(path: Path) -> ServiceUser | None:
    """The user of the process that listens on a Unix socket; None if there is none, or this user may not know."""
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            pid = peer_of(sock).pid
        lines = (_PROCESSES / str(pid) / "status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    # The fourth is that for access to files (proc_pid_status(5)).
    uid, gid = int(fields["Uid"][3]), int(fields["Gid"][3])
    return ServiceUser(_name(pwd.getpwuid, uid), uid, frozenset({gid, *map(int, fields["Groups"])}))


def of_unit(user: str, group: str, supplementary: Iterable[str]) -> ServiceUser:
    """The user of a unit with these settings of systemd.exec(5). Raises UnknownUser."""
    try:
        account = pwd.getpwnam(user or "root")
        gid = grp.getgrnam(group).gr_gid if group else account.pw_gid
        groups = {grp.getgrnam(name).gr_gid for name in supplementary}
    except KeyError as error:
        raise UnknownUser(error.args[0]) from error
    name = account.pw_name
    return ServiceUser(name, account.pw_uid, frozenset({gid, *groups, *os.getgrouplist(name, gid)}))


def _name(find: Callable[[int], Sequence[object]], number: int) -> str:
    """The name of a user or a group; the number if there is none."""
    try:
        return str(find(number)[0])
    except KeyError:
        return str(number)


def obstacles(user: ServiceUser, paths: Iterable[Path]) -> Iterator[Path]:
    """The files and directories that keep `user` from reading these paths, each once. Raises OSError.

    Paths with an access control list (acl(5)) are left out: it may allow more than the mode.
    """
    needed: dict[Path, int] = defaultdict(int)
    for path in paths:
        needed[path] |= stat.S_IROTH
        for directory in (*path.absolute().parents, *path.resolve().parents):
            needed[directory] |= stat.S_IXOTH
    for path, permissions in needed.items():
        if not user.may(permissions, path.stat()) and _ACL not in os.listxattr(path):
            yield path
