"""`mptcp-throttle setup networks`: follows the sniffer's table for some minutes, and proposes access networks."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from rich.console import Console

from mptcp_throttle.cli.setup_files import Result, refusal, show_files, write_files
from mptcp_throttle.config.load import find_sockets
from mptcp_throttle.config.yaml_file import read_yaml
from mptcp_throttle.errors import EX_COMMAND_LINE, UserError
from mptcp_throttle.model import Address
from mptcp_throttle.rpc import Json, RpcClient
from mptcp_throttle.setup.kept_files import NewFile, set_aside
from mptcp_throttle.setup.network_evidence import Evidence, follow
from mptcp_throttle.setup.network_files import evidence_of, network_file, summary
from mptcp_throttle.setup.network_groups import Grouping, group
from mptcp_throttle.setup.own_networks import check_together, networks_directory, shipped_examples
from mptcp_throttle.setup.wording import listed

_TIMEOUT_SECONDS: Final = 10.0


def propose_networks(options: argparse.Namespace) -> Result:
    """Look, propose, and with `write` set, write. Raises UserError if nothing was seen, or files would be invalid."""
    if options.interfaces or options.ports or options.server_drop_in:
        raise UserError(
            "setup networks: --interface, --port and --server-drop-in do not apply; allowed: `mptcp-throttle setup`"
            " with them",
            EX_COMMAND_LINE,
        )
    writes = options.write and not options.dry_run
    directory = networks_directory(options.config, read_yaml(options.config).data)
    client = RpcClient(find_sockets(options.config).sniffer, _TIMEOUT_SECONDS)
    seen = Evidence()

    def began() -> None:
        open_now = seen.sightings.total()
        sys.stderr.write(f"connections now: {open_now}; looking for {options.seconds:g} s, Ctrl-C ends it earlier\n")
        sys.stderr.flush()

    try:
        problem = follow(client, options.seconds, seen, began)
    except KeyboardInterrupt:
        problem = None
    grouping = group(seen.sightings, options.expensive)
    if not grouping.networks:
        why = problem or "no MPTCP connection has been seen; allowed: a longer --for, or clients with MPTCP"
        raise UserError(f"setup networks: {why}", os.EX_UNAVAILABLE)
    require_seen(options.expensive, grouping)
    texts = {f"{network.name}.yaml": network_file(network, options.cap) for network in grouping.networks}
    data = _write(options, directory, texts) if writes else _planned(options, directory, texts)
    data["networks"] = _networks(grouping)
    data["notes"] = [*([] if problem is None else [problem]), *summary(grouping, seen.unrecorded)]
    refused = refusal(data["files"], dry_run=not writes)
    steps = ["mptcp-throttle reload" if writes else "mptcp-throttle setup networks --write"]
    data["next"] = [] if refused else steps
    return Result(data, refused)


def require_seen(expensive: Collection[Address], grouping: Grouping) -> None:
    """Raise UserError if one of these addresses is in none of the networks."""
    subnets = [one.subnet for network in grouping.networks for one in network.subnets]
    for address in expensive:
        if not any(address in subnet for subnet in subnets):
            raise UserError(
                f"setup networks: --expensive {address}: is in no network that was seen; allowed: an address in"
                f" {listed(map(str, subnets))}",
                EX_COMMAND_LINE,
            )


def _planned(options: argparse.Namespace, directory: Path, texts: Mapping[str, str]) -> Json:
    files = write_files(_files(directory, texts), force=options.force, dry_run=True)
    return {"dry_run": True, "files": files, "set_aside": []}


def _write(options: argparse.Namespace, directory: Path, texts: Mapping[str, str]) -> Json:
    """All files, or none if one must be kept: they are valid together.

    Examples of the package would contain subnets that are nobody's: they are set aside.
    """
    planned = _planned(options, directory, texts)
    if refusal(planned["files"], dry_run=False) is not None:
        return planned
    examples = list(shipped_examples(directory))
    check_together(options.config, directory, texts, set(examples))
    files = _files(directory, texts)
    written = write_files(files, force=options.force, dry_run=False)
    return {"dry_run": False, "files": written, "set_aside": [str(set_aside(example)) for example in examples]}


def _files(directory: Path, texts: Mapping[str, str]) -> list[NewFile]:
    return [NewFile(directory / name, text) for name, text in texts.items()]


def _networks(grouping: Grouping) -> Json:
    return [
        {
            "name": network.name,
            "preference": network.preference,
            "why_preference": network.why_preference,
            "per": str(network.per),
            "why_per": network.why_per,
            "subnets": [evidence_of(subnet) for subnet in network.subnets],
        }
        for network in grouping.networks
    ]


def show(data: Json) -> None:
    """What was proposed, or written."""
    console = Console(highlight=False, soft_wrap=True)
    show_files(console, data["files"], dry_run=data["dry_run"])
    for path in data["set_aside"]:
        console.print(f"the example of the package is now {path}", markup=False)
    for note in data["notes"]:
        console.print(f"note: {note}", style="yellow", markup=False)
    if data["dry_run"]:
        console.print("nothing was written")
    for line in data["next"]:
        console.print(f"next: {line}", markup=False)
