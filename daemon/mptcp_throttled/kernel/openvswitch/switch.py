"""Open vSwitch of this host, through the programs that come with it: ovs-vsctl(8) and ovs-ofctl(8)."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from mptcp_throttle.linux.kernel_error import KernelError, fault_point

_DATABASE: Final = "db.sock"
# The service's watchdog allows 30 s.
_TIMEOUT_SECONDS: Final = 10
_SILENT_SECONDS: Final = 30.0
_STOPPED: Final = (-signal.SIGTERM, -signal.SIGUSR1)
_MAX_TEXT: Final = 160
# Bundles are part of OpenFlow 1.4; Open vSwitch has them in 1.3, too (ONF extension 230).
_VERSIONS: Final = "OpenFlow13,OpenFlow14"

LIST_PORTS: Final = ("--columns=_uuid,name,qos", "list", "Port")
"""The command for `tables` whose rows `Port.of` parses."""


class _Server(StrEnum):
    DATABASE = "ovsdb-server"
    DAEMON = "ovs-vswitchd"


@dataclass(frozen=True, slots=True)
class Bridge:
    """A bridge: its `datapath` is that of the kernel (`system`) or of userspace (`netdev`); `ports` are record ids."""

    name: str
    datapath: str
    ports: frozenset[str]


@dataclass(frozen=True, slots=True)
class Port:
    """A port; `qos` is the record id of its QoS."""

    name: str
    record: str
    qos: str | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """A row of the table Port."""
        return cls(row["name"], records(row["_uuid"])[0], next(iter(records(row["qos"])), None))


class OpenVswitch:
    """`run_directory` holds the sockets of ovsdb-server and of the bridges. All methods raise KernelError.

    A server of Open vSwitch that has not answered in time is not asked again for 30 s: what needs it fails at once.
    """

    def __init__(self, run_directory: Path) -> None:
        self._run_directory = run_directory
        self._environment = {**os.environ, "OVS_RUNDIR": str(run_directory)}
        self._ask_again_at = dict.fromkeys(_Server, -math.inf)

    @property
    def database(self) -> Path:
        """The socket of ovsdb-server."""
        return self._run_directory / _DATABASE

    @property
    def may_be_there(self) -> bool:
        """Whether there is a database, or a directory into which this process may not look."""
        try:
            return self.database.exists()
        except PermissionError:
            return True

    @property
    def is_accessible(self) -> bool:
        """Whether there is a database that this process may change."""
        return os.access(self.database, os.R_OK | os.W_OK, effective_ids=True)

    def change(self, *commands: Sequence[str], wait: bool = True) -> list[str]:
        """One transaction of these commands of ovs-vsctl; the record ids of what they create.

        Returns when ovs-vswitchd has changed the kernel accordingly; if not `wait`, when the database has the change.
        """
        if not wait:
            return self._vsctl(_Server.DATABASE, commands, "--no-wait").split()
        return self._vsctl(_Server.DAEMON, commands).split()

    def tables(self, *commands: Sequence[str]) -> list[list[dict[str, Any]]]:
        """The rows that each of these `find` or `list` commands returns, by column, in OVSDB's JSON (RFC 7047)."""
        printed = self._vsctl(_Server.DATABASE, commands, "--no-wait", "--format=json").splitlines()
        try:
            return [
                [dict(zip(table["headings"], row, strict=True)) for row in table["data"]]
                for table in map(json.loads, printed)
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise KernelError("ovs-vsctl --format=json", errno.EBADMSG, str(error)) from error

    def bridges(self) -> list[Bridge]:
        """All bridges."""
        (rows,) = self.tables(("--columns=name,datapath_type,ports", "list", "Bridge"))
        # The default datapath is that of the kernel (ovs-vswitchd.conf.db(5)).
        return [Bridge(row["name"], row["datapath_type"] or "system", frozenset(records(row["ports"]))) for row in rows]

    def bridge_with(self, port: Port) -> Bridge | None:
        """The bridge that has this port."""
        return next((bridge for bridge in self.bridges() if port.record in bridge.ports), None)

    def port(self, name: str) -> Port | None:
        """The port with this name."""
        (rows,) = self.tables(LIST_PORTS)
        return next((port for port in map(Port.of, rows) if port.name == name), None)

    def rules(self, bridge: str, match: str = "") -> list[str]:
        """The OpenFlow rules of a bridge, as text."""
        words = ("--no-stats", "dump-flows", self._management(bridge), *([match] if match else []))
        lines = self._ofctl(words)
        return [line.strip() for line in lines.splitlines() if "actions=" in line]

    def change_rules(self, bridge: str, lines: Sequence[str]) -> None:
        """One bundle: all of these changes (the file of `ovs-ofctl add-flows`) or none."""
        words = ("--bundle", "add-flows", self._management(bridge), "-")
        self._ofctl(words, "\n".join([*lines, ""]))

    def _management(self, bridge: str) -> str:
        return f"unix:{self._run_directory / bridge}.mgmt"

    def _vsctl(self, server: _Server, commands: Sequence[Sequence[str]], *options: str) -> str:
        words = [word for command in commands for word in ("--", *command)]
        return self._run(server, ["ovs-vsctl", f"--db=unix:{self.database}", *options, *words])

    def _ofctl(self, words: Sequence[str], text: str = "") -> str:
        return self._run(_Server.DAEMON, ["ovs-ofctl", f"--protocols={_VERSIONS}", *words], text)

    def _run(self, server: _Server, words: Sequence[str], text: str = "") -> str:
        what = " ".join(word for word in words if not word.startswith(("--db=", "--protocols=")))
        what = what if len(what) <= _MAX_TEXT else f"{what[:_MAX_TEXT]}..."
        fault_point(what)
        if time.monotonic() < self._ask_again_at[server]:
            raise KernelError(what, errno.ETIMEDOUT, f"{server} has not answered just now")
        try:
            result = self._finished(words, text)
            if result.returncode in _STOPPED:
                # systemd stops all processes of the service at once; what it wants then is that all subflows are freed.
                result = self._finished(words, text)
        except FileNotFoundError as error:
            raise KernelError(what, errno.ENOENT, "is openvswitch-switch installed?") from error
        except OSError as error:
            raise KernelError(what, error.errno or errno.EIO) from error
        except subprocess.TimeoutExpired as error:
            self._ask_again_at[server] = time.monotonic() + _SILENT_SECONDS
            raise KernelError(what, errno.ETIMEDOUT, f"{server} does not answer") from error
        if result.returncode != 0:
            raise KernelError(what, _number(result), (result.stderr.strip() or "no answer").splitlines()[-1])
        return result.stdout

    def _finished(self, words: Sequence[str], text: str) -> subprocess.CompletedProcess[str]:
        options: Any = {"capture_output": True, "text": True, "check": False, "timeout": _TIMEOUT_SECONDS}
        return subprocess.run(words, input=text, env=self._environment, **options)


def _number(result: subprocess.CompletedProcess[str]) -> int:
    return errno.EACCES if "Permission denied" in result.stderr else errno.EIO


def records(value: Any) -> list[str]:  # noqa: ANN401
    """The record ids in a column of ids (RFC 7047, 5.1: one `["uuid", ID]`, or `["set", [...]]`)."""
    kind, content = value
    return [content] if kind == "uuid" else [id_ for _, id_ in content]
