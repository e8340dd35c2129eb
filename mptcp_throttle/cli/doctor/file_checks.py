"""Checks of who may read the configuration, and who may use the sockets."""

from __future__ import annotations

import grp
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from mptcp_throttle.cli.doctor.finding import Host
from mptcp_throttle.cli.doctor.service_user import (
    ServiceUser,
    UnknownUser,
    group_name,
    obstacles,
    of_listener,
    of_unit,
    user_name,
)
from mptcp_throttle.config.load import config_paths
from mptcp_throttle.errors import ConfigError
from mptcp_throttle.findings import Finding
from mptcp_throttle.programs import ProgramFailed
from mptcp_throttle.systemd_unit import SERVICES, read_unit


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
    found = list(obstacles(user, paths))
    if not found:
        return Finding(subject)
    path, more = found[0], f", nor {len(found) - 1} more" if len(found) > 1 else ""
    status = path.stat()
    owners = f"{user_name(status.st_uid)}:{group_name(status.st_gid)}"
    problem = f"user {user.name} cannot read {path} ({stat.filemode(status.st_mode)} {owners}){more}"
    return Finding(subject, problem, f"`chmod o+rX {path}`, or give it to a group of {user.name}")


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
    if entry.gr_gid in {os.getegid(), *os.getgroups()}:
        yield Finding("CLI user")
        return
    user = user_name(os.geteuid())
    add = "" if user in entry.gr_mem else f"`usermod --append --groups {group.name} {user}`, and "
    yield Finding("CLI user", f"{user} is not a member of the group {group.name}", f"{add}log in again", harm=False)
