"""How systemd starts a service, and the drop-in that starts it with MPTCP, with files that go with it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Final, NamedTuple

from mptcp_throttle.errors import EX_COMMAND_LINE, UserError
from mptcp_throttle.setup.kept_files import SQUID_SERVICE, SQUID_UPLOADS, NewFile, shipped

MPTCPIZE: Final = "/usr/bin/mptcpize"
_NAME: Final = re.compile(r"[A-Za-z0-9:_.@\\-]{1,200}", re.ASCII)
_SQUID: Final = "squid.service"
_DEBIANS_SQUID: Final = "/usr/sbin/squid --foreground -sYC"
# Of systemd.service(5), "Special executable prefixes"; @ would give mptcpize the name of the program.
_COMMAND: Final = re.compile(r"(?P<prefixes>[-:+!|]*)(?P<command>/.*)")
# The first directory that has a file counts.
_DIRECTORIES: Final = (
    *("etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system"),
    *("usr/lib/systemd/system", "lib/systemd/system"),
)
_SOCKET_PROTOCOL_SINCE: Final = 257  # SocketProtocol=mptcp, NEWS of systemd
_NGINX: Final = "nginx.service"
_NGINX_NOTE: Final = (
    "nginx before 1.29.7: write `env LD_PRELOAD;` at the top of nginx.conf, else what replaces it in an upgrade of its"
    " package opens sockets without MPTCP"
)


class DropIn(NamedTuple):
    """What makes a unit listen with MPTCP: files, the commands that apply and undo them, and what else to know."""

    unit: str
    files: tuple[NewFile, ...]
    apply: tuple[str, ...]
    undo: tuple[str, ...]
    notes: tuple[str, ...] = ()


def unit_name(text: str) -> str:
    """`squid` and `squid.service` to `squid.service`, `proxy.socket` as it is. Raises ValueError."""
    if not _NAME.fullmatch(text) or text.startswith("."):
        raise ValueError("is not the name of a unit; allowed: a service or a socket, such as squid or proxy.socket")
    return text if text.endswith((".service", ".socket")) else f"{text}.service"


def drop_in_path(root: Path, unit: str) -> Path:
    """Where the drop-in of a unit is."""
    # After override.conf of `systemctl edit`: the last ExecStart= counts.
    return root / "etc/systemd/system" / f"{unit}.d" / "zz-mptcp-throttle.conf"


def uploads_path(root: Path) -> Path:
    """Where Squid's configuration for fast uploads is."""
    return root / "etc/squid/conf.d/mptcp-throttle.conf"


def make_drop_in(root: Path, unit: str, unit_texts: Sequence[str], *, with_uploads: bool) -> DropIn:
    """The drop-in of a unit whose files, without that drop-in, are `unit_texts`. Raises UserError.

    `with_uploads`: if the unit is Squid's, also its configuration for fast uploads.
    """
    if not unit_texts:
        raise UserError(f"setup: {unit}: systemd has no such unit; allowed: a service or a socket", EX_COMMAND_LINE)
    files = [NewFile(drop_in_path(root, unit), _text(unit, unit_texts))]
    if unit == _SQUID and with_uploads:
        files.append(NewFile(uploads_path(root), shipped(SQUID_UPLOADS)))
    restart = "systemctl daemon-reload", f"systemctl restart {quote(unit)}"
    removal = f"rm {' '.join(quote(str(file.path)) for file in files)}"
    notes = (_NGINX_NOTE,) if unit == _NGINX else ()
    return DropIn(unit, tuple(files), (*restart, "ss -Mltn"), (removal, *restart), notes)


def require_socket_protocol(unit: str, systemd_version: int | None) -> None:
    """Raise UserError if this version of systemd, where it is known, ignores SocketProtocol=mptcp."""
    if systemd_version is not None and systemd_version < _SOCKET_PROTOCOL_SINCE:
        raise UserError(
            f"setup: {unit}: systemd {systemd_version} ignores SocketProtocol=mptcp; allowed: systemd"
            f" {_SOCKET_PROTOCOL_SINCE} or later, or a service that listens by itself",
            os.EX_UNAVAILABLE,
        )


def _text(unit: str, unit_texts: Sequence[str]) -> str:
    if unit.endswith(".socket"):
        return "# Makes systemd listen with MPTCP; `ss -Mltn` shows the listener.\n[Socket]\nSocketProtocol=mptcp\n"
    commands = start_commands(unit_texts)
    if any("mptcpize" in command for command in commands):
        raise UserError(f"setup: {unit} is already started by mptcpize; allowed: `systemctl restart {unit}`")
    if unit == _SQUID and commands == (_DEBIANS_SQUID,):
        return shipped(SQUID_SERVICE)
    if len(commands) != 1:
        raise UserError(
            f"setup: {unit} has {len(commands)} ExecStart=; allowed: exactly one, or write the drop-in yourself",
            os.EX_UNAVAILABLE,
        )
    parts = _COMMAND.fullmatch(commands[0])
    if parts is None:
        raise UserError(
            f"setup: {unit}: ExecStart={commands[0]}: mptcpize cannot start it; allowed: the path of a program",
            os.EX_UNAVAILABLE,
        )
    command = _without_workers(parts["command"]) if unit == _SQUID else parts["command"]
    return (
        "# Makes the service listen with MPTCP: mptcpize(8) makes each TCP socket that it opens an MPTCP socket.\n"
        "# `ss -Mltn` shows the listener.\n"
        f"[Service]\nExecStart=\nExecStart={parts['prefixes']}{MPTCPIZE} run {command}\n"
    )


def _without_workers(command: str) -> str:
    """Squid's command with -N: a worker process would lose mptcpize's LD_PRELOAD. Raises UserError."""
    words = command.split()
    if "-N" in words:
        return command
    if "--foreground" not in words:
        raise UserError(
            f"setup: {_SQUID}: ExecStart={command}: mptcpize needs Squid in one process; allowed: --foreground or -N",
            os.EX_UNAVAILABLE,
        )
    return command.replace("--foreground", "-N", 1)


def read_unit_files(root: Path, name: str, without: Path | None = None) -> list[str]:
    """The texts of the unit `name` below the directory `root`: its file, and its drop-ins in order (systemd.unit(5)).

    An instance (`a@b.service`) also has the files of its template. Empty if there is no such unit. The drop-in
    `without` is left out, as are hidden files. Raises OSError.
    """
    file = _unit_file(root, name)
    if file is None:
        return []
    drop_ins: dict[str, Path] = {}
    for directory in _paths(root, name, ".d"):
        for drop_in in directory.glob("[!.]*.conf"):
            drop_ins.setdefault(drop_in.name, drop_in)
    paths = [file, *(path for _, path in sorted(drop_ins.items()) if path != without)]
    return [path.read_text(encoding="utf-8-sig", errors="replace") for path in paths]


def with_files(root: Path, units: Iterable[str]) -> list[str]:
    """The units that have a unit file below the directory `root`."""
    return [unit for unit in units if _unit_file(root, unit) is not None]


def _unit_file(root: Path, name: str) -> Path | None:
    return next((path for path in _paths(root, name) if path.is_file()), None)


def _paths(root: Path, name: str, suffix: str = "") -> Iterator[Path]:
    """Where files of a unit may be; for an instance, the places of its template come after its own."""
    for unit in dict.fromkeys((name, re.sub(r"@.*(?=\.)", "@", name))):
        yield from (root / directory / f"{unit}{suffix}" for directory in _DIRECTORIES)


def start_commands(texts: Iterable[str]) -> tuple[str, ...]:
    """The values of `ExecStart=`; an empty value removes all values before it."""
    commands: list[str] = []
    for text in texts:
        for section, line in _settings(text):
            key, _, value = line.partition("=")
            if section == "Service" and key.strip() == "ExecStart":
                commands = [*commands, value.strip()] if value.strip() else []
    return tuple(commands)


def _settings(text: str) -> Iterator[tuple[str, str]]:
    """Each setting with its section; continued lines are joined by a space (systemd.syntax(7))."""
    section = ""
    lines = [line for line in text.splitlines() if not re.match(r"\s*[#;]", line)]
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        header = re.fullmatch(r"\s*\[(.*)\]\s*", line)
        if header is not None:
            section = header[1]
        elif "=" in line:
            yield section, line.strip()
