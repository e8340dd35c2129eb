"""Checks of what other programs do to packets' marks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Final

from mptcp_throttle.cli.doctor.finding import Host, or_ok
from mptcp_throttle.cli.doctor.foreign_marks import iptables_chains, nft_chains
from mptcp_throttle.cli.doctor.programs import ProgramFailed, output_of
from mptcp_throttle.findings import Finding
from mptcp_throttle.model import BackEnd, MarkMethod

_SUBJECT: Final = "marks of others"
# Without a table's name these list the tables that exist, and make none.
_IPTABLES: Final = ("iptables-legacy-save", "ip6tables-legacy-save", "iptables-nft-save", "ip6tables-nft-save")


def foreign_marks(host: Host) -> list[Finding]:
    """Whether chains of others change marks after ours. None changes priorities of sockets, or OpenFlow rules."""
    if isinstance(host.daemon, str):
        configured = host.config.daemon
        used = BackEnd.OVS if configured.backend is BackEnd.OVS else configured.marks
    else:
        used = host.daemon["daemon"]["marks"]
    if used in (MarkMethod.SOCKET, BackEnd.OVS):
        return []
    if os.geteuid() != 0:
        return [Finding(_SUBJECT, unchecked="only root may list the rules of iptables and nftables")]
    return or_ok(_SUBJECT, _found(host.config.daemon.mark_mask))


def _found(mask: int) -> Iterator[Finding]:
    for program in _IPTABLES:
        try:
            for chain in iptables_chains(output_of(program) or "", mask):
                yield _changes(f"{chain} of table mangle ({program.removesuffix('-save')})", mask)
        except ProgramFailed as error:
            yield Finding(_SUBJECT, unchecked=str(error))
    try:
        ruleset = output_of("nft", "--json", "list", "ruleset")
        for chain in nft_chains(json.loads(ruleset), mask) if ruleset else ():
            yield _changes(f"{chain} (nft)", mask)
    except ProgramFailed as error:
        yield Finding(_SUBJECT, unchecked=str(error))


def _changes(chain: str, mask: int) -> Finding:
    problem = (
        f"chain {chain} changes marks under {mask:#x} after ours: where its rules match, no class limits the packets"
    )
    remedy = "let it change other bits, or set daemon.mark_mask to others, or daemon.marks to socket"
    return Finding(_SUBJECT, problem, remedy, harm=False)
