"""The user that a service runs as, and what that user may read."""

from __future__ import annotations

import grp
import os
import pwd
import socket
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mptcp_throttle.linux.unix_peer import peer_of

_PROCESSES: Final = Path("/proc")
_ACL: Final = "system.posix_acl_access"


class UnknownUser(Exception):
    """This host does not have the user, or one of the groups."""


@dataclass(frozen=True, slots=True)
class ServiceUser:
    """A user with all groups of one of his processes."""

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
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(str(path))
            pid = peer_of(one).pid
        lines = (_PROCESSES / str(pid) / "status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    # The fourth is that for access to files (proc_pid_status(5)).
    uid, gid = int(fields["Uid"][3]), int(fields["Gid"][3])
    return ServiceUser(user_name(uid), uid, frozenset({gid, *map(int, fields["Groups"])}))


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


def user_name(uid: int) -> str:
    """The name of a user; the number if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    """The name of a group; the number if there is none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def obstacles(user: ServiceUser, paths: Iterable[Path]) -> Iterator[Path]:
    """The files and directories that keep `user` from reading these paths, each once. Raises OSError.

    Those with an access control list (acl(5)) are left out: it may say otherwise than the mode.
    """
    needed: dict[Path, int] = defaultdict(int)
    for path in paths:
        needed[path] |= stat.S_IROTH
        for directory in (*path.absolute().parents, *path.resolve().parents):
            needed[directory] |= stat.S_IXOTH
    for path, permissions in needed.items():
        if not user.may(permissions, path.stat()) and _ACL not in os.listxattr(path):
            yield path
