"""The options of `mptcp-throttle fleet`; what its commands do is in `fleet_commands`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from mptcp_throttle.command_line import argument
from mptcp_throttle.policy_bundle.bundle import MAX_VERSION

HELP: Final = "publish access networks and devices for all proxies of a fleet, and see who uses them"

_TEXTS: Final = {
    "status": "show the policies on the server, and which proxy uses which since when",
    "publish": "sign the files of access networks and devices beside the configuration file, and publish them",
    "rollback": "publish the files of an older policy again, as a new one",
    "new-key": "make a private key to publish with, and print its public key",
    "forget": "remove a proxy that is gone from `fleet status`, and from those that share rates",
}


def _number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_VERSION:
        raise ValueError(f"allowed: a number from 1 to {MAX_VERSION}")
    return int(text)


def add_to(fleet: argparse.ArgumentParser) -> None:
    """Add the commands."""
    commands = fleet.add_subparsers(title="commands", dest="fleet_command", required=True, metavar="COMMAND")
    for name, text in _TEXTS.items():
        command = commands.add_parser(name, help=text, description=text)
        # It may stand before the command, too: a default would undo it there.
        command.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="print JSON instead of tables"
        )
        if name == "rollback":
            of_policy = "the policy to return to; default: the newest whose files differ from those of the latest"
            command.add_argument("number", type=argument(_number), nargs="?", metavar="NUMBER", help=of_policy)
        if name in {"publish", "rollback"}:
            key_help = "private key to sign with; required"
            command.add_argument("--key", type=Path, required=True, metavar="FILE", help=key_help)
            command.add_argument("--author", metavar="NAME", help="who publishes; default: the user at this host")
            command.add_argument(
                "--number",
                dest="new_number",
                type=argument(_number),
                metavar="NUMBER",
                help="number of the new policy; default: the next",
            )
            command.add_argument("--dry-run", action="store_true", help="show what would be published")
        if name == "new-key":
            command.add_argument("file", type=Path, metavar="FILE", help="a new file, for its owner alone")
        if name == "forget":
            command.add_argument("proxy", metavar="PROXY", help="fleet.name of the proxy")
