"""The options of `mptcp-throttle budget`."""

from __future__ import annotations

import argparse
from typing import Final

from mptcp_throttle.model import Counting, Every
from mptcp_throttle.units import VOLUME_SYNTAX

HELP: Final = "change what is used of a budget, or add to it"
JSON_HELP: Final = "print JSON instead of tables"
OWNER: Final = "NETWORK|CLIENT"
OWNER_HELP: Final = "an access network, or a client: one of its addresses, or its device"

PARAMETERS: Final = {
    "add": ("name", "amount", "until", "every", "direction"),
    "reset": ("name", "every", "direction"),
    "set-used": ("name", "amount", "every", "direction"),
}
"""Of each command, what the daemon is asked with."""

_TEXTS: Final = {
    "add": "add to a budget; what is added is used first",
    "reset": "begin a budget again: of a client, or of a network and all its clients",
    "set-used": "set how much of a budget is used, such as what the carrier's bill says",
}


def add_to(budget: argparse.ArgumentParser) -> None:
    """Add the commands."""
    commands = budget.add_subparsers(title="commands", dest="budget_command", required=True, metavar="COMMAND")
    for name, parameters in PARAMETERS.items():
        command = commands.add_parser(name, help=_TEXTS[name], description=_TEXTS[name])
        command.add_argument("name", metavar=OWNER, help=OWNER_HELP)
        if "amount" in parameters:
            or_nothing = "; or 0" if name == "set-used" else ""
            command.add_argument("amount", metavar="AMOUNT", help=f"{VOLUME_SYNTAX}{or_nothing}")
        if "until" in parameters:
            command.add_argument(
                "--until", metavar="DATE", help="when the rest of it is lost, such as 2026-12-31T18:00"
            )
        # It may stand before the command, too: a default would undo it there.
        command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=JSON_HELP)
        command.add_argument("--every", choices=list(map(str, Every)), help="only the budget for this period")
        command.add_argument("--direction", choices=list(map(str, Counting)), help="only the budget for this direction")
