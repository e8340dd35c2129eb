"""The options of `mptcp-throttle setup` and `setup networks`; what they do is in `setup_commands`."""

from __future__ import annotations

import argparse
from typing import Final

from mptcp_throttle.command_line import argument, duration
from mptcp_throttle.config.subnets import parse_address
from mptcp_throttle.ports import parse_range
from mptcp_throttle.setup.server_drop_in import unit_name
from mptcp_throttle.units import DURATION_SYNTAX, RATE_SYNTAX, Rate

HELP: Final = "write a configuration for this host, with the reason for each value"
_NETWORKS_HELP: Final = "propose access networks from the addresses of clients that the sniffer sees"
_DRY_RUN_HELP: Final = "show what would be written, and write nothing"
_SECONDS: Final = 120.0
_CAP: Final = Rate(1_000_000)


def add_to(setup: argparse.ArgumentParser) -> None:
    """Add options and the command `networks`."""
    setup.add_argument("--dry-run", action="store_true", help=_DRY_RUN_HELP)
    setup.add_argument("--force", action="store_true", help="change files that have been edited, after a backup")
    setup.add_argument(
        "--interface",
        dest="interfaces",
        action="append",
        default=[],
        metavar="NAME",
        help="an interface that clients use, once for each; default: from connected clients, or the default route",
    )
    setup.add_argument(
        "--port",
        dest="ports",
        type=argument(parse_range),
        action="append",
        default=[],
        metavar="PORT",
        help="a port of the proxy, or a range such as 20000-29999, once for each; default: those of known proxies",
    )
    setup.add_argument(
        "--server-drop-in",
        type=argument(unit_name),
        metavar="NAME",
        help="also write a drop-in of systemd that makes the service (or NAME.socket) listen with MPTCP",
    )
    commands = setup.add_subparsers(title="commands", dest="setup_command", required=False, metavar="[COMMAND]")
    networks = commands.add_parser("networks", help=_NETWORKS_HELP, description=_NETWORKS_HELP)
    networks.add_argument(
        "--for",
        dest="seconds",
        type=argument(duration),
        default=_SECONDS,
        metavar="DURATION",
        help=f"how long to watch (Ctrl-C ends it earlier): {DURATION_SYNTAX}; default: 2m",
    )
    networks.add_argument("--write", action="store_true", help="write the files, if all files are valid together")
    # These may stand before `networks`, too: a default would undo them there.
    for option, text in (
        ("--json", "print JSON instead of tables"),
        ("--dry-run", _DRY_RUN_HELP),
        ("--force", "replace files of the same names, after a backup"),
    ):
        networks.add_argument(option, action="store_true", default=argparse.SUPPRESS, help=text)
    networks.add_argument(
        "--expensive",
        type=argument(parse_address),
        action="append",
        default=[],
        metavar="ADDRESS",
        help="address of a client in an expensive network, once for each; default: what clients use as a backup",
    )
    networks.add_argument(
        "--cap",
        type=argument(Rate.parse),
        default=_CAP,
        metavar="RATE",
        help=f"cap of an expensive network: {RATE_SYNTAX}; default: %(default)s",
    )
