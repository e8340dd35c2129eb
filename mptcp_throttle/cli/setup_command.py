"""`mptcp-throttle setup`: collects facts, proposes, writes, and says what comes next."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml
from rich.console import Console

from mptcp_throttle.cli.doctor import kernel_checks
from mptcp_throttle.cli.doctor.finding import Host
from mptcp_throttle.cli.setup_files import Result, refusal, show_files, write_files
from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import UserError
from mptcp_throttle.linux.kernel_error import KernelError
from mptcp_throttle.rpc import Json
from mptcp_throttle.service import CAP_NET_ADMIN, require_capabilities
from mptcp_throttle.setup.collect_facts import collect_facts
from mptcp_throttle.setup.host_facts import HostFacts
from mptcp_throttle.setup.kept_files import NewFile, read_present
from mptcp_throttle.setup.next_steps import next_steps
from mptcp_throttle.setup.own_networks import has_own_networks, networks_directory
from mptcp_throttle.setup.proposal import propose
from mptcp_throttle.setup.proposal_text import loaded, proposed_text
from mptcp_throttle.setup.server_drop_in import (
    MPTCPIZE,
    DropIn,
    drop_in_path,
    make_drop_in,
    require_socket_protocol,
    uploads_path,
)
from mptcp_throttle.setup.shipped_files import MAIN_FILE, shipped
from mptcp_throttle.setup.unit_files import read_unit_files, with_files

_ROOT: Final = Path("/")
_NOT_ASKED: Final = "setup does not ask the services"
_PARAMETERS: Final = "`sysctl --system`"
_CHECKS: Final = (kernel_checks.joins, kernel_checks.send_buffers, kernel_checks.unsent_data)


def set_up(options: argparse.Namespace) -> Result:
    """Write the proposal, unless `dry_run` is set. Raises UserError where it cannot work; then nothing is written."""
    require_capabilities(CAP_NET_ADMIN=CAP_NET_ADMIN)
    try:
        facts = collect_facts()
    except KernelError as error:
        raise UserError(f"setup: {error}", os.EX_OSERR) from error
    proposal = propose(facts, options.interfaces, options.ports)
    present = read_present(options.config)
    text = proposed_text(proposal, present)
    drop_in = None if options.server_drop_in is None else _drop_in(options.server_drop_in, facts)
    files = [NewFile(options.config, text, shipped(MAIN_FILE)), *(() if drop_in is None else drop_in.files)]
    own = () if drop_in is None else drop_in.notes
    notes = [*proposal.notes, *own, *_notes(options.config, loaded(text))]
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
            {"key": ".".join(value.keys), "value": value.text, "reason": value.reason} for value in proposal.values
        ],
        "files": written,
        "notes": notes,
        "next": list(steps),
        "undo": [] if drop_in is None else list(drop_in.undo),
    }
    return Result(data, refusal(written, dry_run=options.dry_run))


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


def _notes(config_file: Path, config: Config) -> Iterator[str]:
    """What `doctor` finds about the kernel."""
    host = Host(config_file, config, _NOT_ASKED, _NOT_ASKED)
    for check in _CHECKS:
        for finding in check(host):
            if finding.problem is not None:
                yield f"{finding.subject}: {finding.problem}" + (f"; {finding.remedy}" if finding.remedy else "")


def show(data: Json) -> None:
    """What was done, or would be."""
    console = Console(highlight=False, soft_wrap=True)
    show_files(console, data["files"], dry_run=data["dry_run"])
    for note in data["notes"]:
        console.print(f"note: {note}", style="yellow", markup=False)
    for title, lines in (("next", data["next"]), ("to undo the drop-in", data["undo"])):
        if lines:
            console.print(f"{title}:")
        for line in lines:
            console.print(f"    {line}", markup=False)
