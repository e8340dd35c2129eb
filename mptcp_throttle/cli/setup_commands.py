"""`mptcp-throttle setup` and `setup networks`: look, propose, write, and say what to do next."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import yaml
from rich.console import Console

from mptcp_throttle.cli.console import output_console
from mptcp_throttle.cli.doctor import kernel_checks
from mptcp_throttle.config.load import find_sockets
from mptcp_throttle.config.schema import Config
from mptcp_throttle.config.yaml_file import read_yaml
from mptcp_throttle.errors import EX_COMMAND_LINE, UserError, listed
from mptcp_throttle.findings import Host
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.model import Address
from mptcp_throttle.ports import Ports
from mptcp_throttle.rpc import Json, RpcClient
from mptcp_throttle.service import CAP_NET_ADMIN, require_capabilities
from mptcp_throttle.setup.collect_facts import collect_facts
from mptcp_throttle.setup.host_facts import HostFacts
from mptcp_throttle.setup.kept_files import MAIN_FILE, NewFile, Outcome, read_present, set_aside, shipped, write_files
from mptcp_throttle.setup.network_evidence import Evidence, follow
from mptcp_throttle.setup.network_files import (
    check_together,
    has_own_networks,
    network_file,
    networks_as_json,
    networks_directory,
    shipped_examples,
    summary,
)
from mptcp_throttle.setup.network_groups import Grouping, group
from mptcp_throttle.setup.proposal import next_steps, propose
from mptcp_throttle.setup.proposal_text import loaded, proposed_text
from mptcp_throttle.setup.server_drop_in import (
    MPTCPIZE,
    DropIn,
    drop_in_path,
    make_drop_in,
    read_unit_files,
    require_socket_protocol,
    uploads_path,
    with_files,
)

_ROOT: Final = Path("/")
_TIMEOUT_SECONDS: Final = 10.0
_NOT_ASKED: Final = "setup does not ask the services"
_PARAMETERS: Final = "`sysctl --system`"
_CHECKS: Final = (kernel_checks.joins, kernel_checks.send_buffers, kernel_checks.unsent_data)
# What was done, and in a dry run would be done.
_OUTCOMES: Final = {
    Outcome.UNCHANGED: ("needs no change", "needs no change"),
    Outcome.WRITE: ("written", "would be written"),
    Outcome.BACK_UP: ("written", "would be written, after a backup"),
    Outcome.KEEP: ("has been edited, and was kept; proposed:", "has been edited, and would be kept; proposed:"),
}
_KEEPS_PROXIES: Final = "the configuration has proxies: setup changes neither their interfaces nor their ports"


class Result(NamedTuple):
    """What was done, and why that is not all, if so."""

    data: Json
    refusal: UserError | None


def set_up(options: argparse.Namespace) -> Result:
    """Write the proposal, unless `dry_run` is set. Raises UserError where it cannot work; then nothing is written."""
    require_capabilities(CAP_NET_ADMIN=CAP_NET_ADMIN)
    try:
        facts = collect_facts()
    except KernelError as error:
        raise UserError(f"setup: {error}", os.EX_OSERR) from error
    proposal = propose(facts, options.interfaces, Ports(tuple(options.ports)))
    text = proposed_text(proposal, read_present(options.config))
    drop_in = None if options.server_drop_in is None else _drop_in(options.server_drop_in, facts)
    files = [NewFile(options.config, text, shipped(MAIN_FILE)), *(() if drop_in is None else drop_in.files)]
    of_drop_in = () if drop_in is None else drop_in.notes
    config = loaded(text)
    kept = [_KEEPS_PROXIES] if config.proxies.are_named else []
    notes = [*proposal.notes, *of_drop_in, *kept, *_kernel_notes(options.config, config)]
    steps = next_steps(
        facts,
        with_files(_ROOT, proposal.plain_servers),
        drop_in,
        needs_parameters=any(_PARAMETERS in note for note in notes),
        has_own_networks=has_own_networks(networks_directory(options.config, yaml.safe_load(text))),
    )
    written = write_files(files, force=options.force, dry_run=options.dry_run)
    data = {
        "dry_run": options.dry_run,
        "values": [
            {"key": ".".join(value.keys), "value": value.text, "reason": value.reason}
            for value in proposal.values
            if not (kept and value.keys[0] == "proxy")
        ],
        "files": written,
        "notes": notes,
        "next": list(steps),
        "undo": [] if drop_in is None else list(drop_in.undo),
    }
    return Result(data, None if options.dry_run else _refusal(written))


def _drop_in(unit: str, facts: HostFacts) -> DropIn:
    if unit.endswith(".service") and not facts.has_mptcpize:
        raise UserError(
            f"setup: {MPTCPIZE}: not found; allowed: `apt install mptcpize libmptcpwrap0`, then setup again",
            os.EX_UNAVAILABLE,
        )
    if unit.endswith(".socket"):
        require_socket_protocol(unit, facts.systemd_version)
    try:
        texts = read_unit_files(_ROOT, unit, without=drop_in_path(_ROOT, unit))
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be read: {error.strerror}", os.EX_NOPERM) from error
    # Squid may have a larger buffer already, which a later line would make smaller.
    has_buffer = facts.squid is not None and facts.squid.has_large_buffer
    return make_drop_in(_ROOT, unit, texts, with_uploads=not has_buffer or uploads_path(_ROOT).exists())


def _kernel_notes(config_file: Path, config: Config) -> Iterator[str]:
    """What `doctor` finds about the kernel."""
    host = Host(config_file, config, _NOT_ASKED, _NOT_ASKED)
    for check in _CHECKS:
        for finding in check(host):
            if finding.problem is not None:
                yield f"{finding.subject}: {finding.problem}" + (f"; {finding.remedy}" if finding.remedy else "")


def propose_networks(options: argparse.Namespace) -> Result:
    """Follow the sniffer's table for some minutes, propose access networks, and with `write` set, write their files.

    Raises UserError if nothing was seen, or files would be invalid.
    """
    if options.interfaces or options.ports or options.server_drop_in:
        raise UserError(
            "setup networks: --interface, --port and --server-drop-in do not apply; allowed: `mptcp-throttle setup`"
            " with them",
            EX_COMMAND_LINE,
        )
    writes = options.write and not options.dry_run
    directory = networks_directory(options.config, read_yaml(options.config).data)
    client = RpcClient(find_sockets(options.config).sniffer, _TIMEOUT_SECONDS)
    evidence = Evidence()

    def began() -> None:
        open_now = evidence.sightings.total()
        sys.stderr.write(f"connections now: {open_now}; looking for {options.seconds:g} s, Ctrl-C ends it earlier\n")
        sys.stderr.flush()

    try:
        problem = follow(client, options.seconds, evidence, began)
    except KeyboardInterrupt:
        problem = None
    grouping = group(evidence.sightings, options.expensive)
    if not grouping.networks:
        why = problem or "no MPTCP connection has been seen; allowed: a longer --for, or clients with MPTCP"
        raise UserError(f"setup networks: {why}", os.EX_UNAVAILABLE)
    require_seen(options.expensive, grouping)
    texts = {f"{network.name}.yaml": network_file(network, options.cap) for network in grouping.networks}
    data = _write_networks(options, directory, texts, writes=writes)
    data["networks"] = networks_as_json(grouping)
    data["notes"] = [*([] if problem is None else [problem]), *summary(grouping, evidence.unrecorded)]
    refusal = _refusal(data["files"]) if writes else None
    step = "mptcp-throttle reload" if writes else "mptcp-throttle setup networks --write"
    data["next"] = [] if refusal else [step]
    return Result(data, refusal)


def require_seen(expensive: Collection[Address], grouping: Grouping) -> None:
    """Raise UserError if one of these addresses is in none of the networks."""
    subnets = [seen.subnet for network in grouping.networks for seen in network.subnets]
    for address in expensive:
        if not any(address in subnet for subnet in subnets):
            raise UserError(
                f"setup networks: --expensive {address}: is in no network that was seen; allowed: an address in"
                f" {listed(subnets)}",
                EX_COMMAND_LINE,
            )


def _write_networks(
    options: argparse.Namespace, directory: Path, texts: Mapping[str, str], *, writes: bool
) -> dict[str, Json]:
    """Write all files, or none if one must be kept: they are valid only together.

    The examples of the package have invented subnets: they are set aside.
    """
    files = [NewFile(directory / name, text) for name, text in texts.items()]
    planned = write_files(files, force=options.force, dry_run=True)
    if not writes or _refusal(planned) is not None:
        return {"dry_run": True, "files": planned, "set_aside": []}
    examples = list(shipped_examples(directory))
    check_together(options.config, directory, texts, set(examples))
    written = write_files(files, force=options.force, dry_run=False)
    return {"dry_run": False, "files": written, "set_aside": [str(set_aside(example)) for example in examples]}


def _refusal(written: Sequence[Json]) -> UserError | None:
    """Why not all files were written, if so."""
    kept = [file["path"] for file in written if file["outcome"] == Outcome.KEEP]
    if not kept:
        return None
    return UserError(
        f"setup: kept, since they have been edited: {', '.join(kept)}; allowed: --force, which backs them up"
    )


def show(data: Json) -> None:
    """What `setup` has done, or would do."""
    console = _show_files(data)
    _show_notes(console, data)
    for title, lines in (("next", data["next"]), ("to undo the drop-in", data["undo"])):
        if lines:
            console.print(f"{title}:")
        for line in lines:
            console.print(f"    {line}", markup=False)


def show_networks(data: Json) -> None:
    """What `setup networks` has proposed, or written."""
    console = _show_files(data)
    for path in data["set_aside"]:
        console.print(f"the example of the package is now {path}", markup=False)
    _show_notes(console, data)
    if data["dry_run"]:
        console.print("nothing was written")
    for line in data["next"]:
        console.print(f"next: {line}", markup=False)


def _show_files(data: Json) -> Console:
    """What became of each file, and how it changes."""
    console = output_console()
    for file in data["files"]:
        done = _OUTCOMES[file["outcome"]][data["dry_run"]]
        backup = f"; the file as it was is {file['backup']}" if file["backup"] else ""
        console.print(f"{file['path']}: {done}{backup}", style="bold", markup=False)
        if file["difference"]:
            console.print(file["difference"], markup=False)
    return console


def _show_notes(console: Console, data: Json) -> None:
    for note in data["notes"]:
        console.print(f"note: {note}", style="yellow", markup=False)
