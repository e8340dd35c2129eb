"""Checks of the classifier, and of what other programs do to marks and priorities of packets."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Final

from mptcp_throttle.cli.doctor.foreign_marks import iptables_chains, nft_chains
from mptcp_throttle.findings import Finding, Host, note, or_ok
from mptcp_throttle.model import BackEnd, ClassifierKind
from mptcp_throttle.own_chains import BEFORE_NAT
from mptcp_throttle.packet_rules import IPTABLES_SAVE, NFT_LIST
from mptcp_throttle.ports import Ports
from mptcp_throttle.programs import ProgramFailed, output_of
from mptcp_throttle.rpc import Json

_SUBJECT: Final = "marks of others"


def classifier(host: Host) -> Iterator[Finding]:
    """Which classifier the daemon uses, and why."""
    if not isinstance(host.daemon, str):
        yield Finding("classifier", remark=f"{classifier_of(host)}: {_why(host, host.daemon['daemon'])}")


def _why(host: Host, daemon: Json) -> str:
    configured = host.config.daemon
    if configured.backend is BackEnd.OVS:
        return "daemon.backend is ovs"
    if configured.classifier is not ClassifierKind.AUTO:
        return f"daemon.classifier is {configured.classifier}"
    if daemon["classifier"] == ClassifierKind.SOCKET:
        return "the kernel program is attached to the proxy of this host"
    here = f"the kernel program does not decide: {daemon['features']['pacing']['problem']}"
    elsewhere = "the connections end on another host (sniffer.kernel_view: false)"
    no_program = here if host.config.sniffer.kernel_view else elsewhere
    if daemon["classifier"] == ClassifierKind.NFT:
        return no_program
    return f"the kernel has no nf_tables, and {no_program}"


def foreign_marks(host: Host) -> list[Finding]:
    """Whether chains of others change what names the class of a packet: its mark, or its priority, which it has from
    its socket or from our chain of nftables. What OpenFlow rules name is changed by none."""
    kind = classifier_of(host)
    if kind == BackEnd.OVS:
        return []
    if os.geteuid() != 0:
        return [Finding(_SUBJECT, unchecked="only root may list the rules of iptables and nftables")]
    mask = host.config.daemon.mark_mask if kind == ClassifierKind.RULES else None
    own = host.config.sniffer.chain_priority if kind == ClassifierKind.NFT else BEFORE_NAT
    behind = None if kind == ClassifierKind.SOCKET else own
    return or_ok(_SUBJECT, _changing_chains(mask, host.config.proxy.ports, behind))


def legacy_tables(host: Host) -> Iterator[Finding]:
    """Whether `iptables` shows the rules that mark packets, which are in the tables of iptables-legacy(8)."""
    if classifier_of(host) != ClassifierKind.RULES:
        return
    try:
        version = output_of("iptables", "--version") or ""
    except ProgramFailed as error:
        yield Finding("iptables", unchecked=str(error))
        return
    problem = (
        "is that of nftables: it shows none of our rules, and warns of legacy tables; what iptables-legacy-save writes"
        " while subflows are throttled cannot be restored"
    )
    if "nf_tables" in version and host.config.daemon.classifier is ClassifierKind.RULES:
        yield Finding("iptables", remark=f"{problem}; daemon.classifier is set to rules")
        return
    remedy = "`iptables-legacy -t mangle -S` shows them; with daemon.classifier: socket or nft there are none"
    yield note("iptables", is_well="nf_tables" not in version, problem=problem, remedy=remedy)


def classifier_of(host: Host) -> str:
    """What the daemon uses now; of one that does not answer, what it is configured to use."""
    if not isinstance(host.daemon, str):
        return str(host.daemon["daemon"]["classifier"])
    configured = host.config.daemon
    return BackEnd.OVS if configured.backend is BackEnd.OVS else configured.classifier


def _changing_chains(mask: int | None, ports: Ports, own: int | None) -> Iterator[Finding]:
    for program in IPTABLES_SAVE:
        try:
            for chain in iptables_chains(output_of(program) or "", mask, own, ports=ports):
                yield _changes(f"{chain} of table mangle ({program.removesuffix('-save')})", mask)
        except ProgramFailed as error:
            yield Finding(_SUBJECT, unchecked=str(error))
    try:
        ruleset = output_of(*NFT_LIST)
        for chain in nft_chains(json.loads(ruleset), mask, own, ports=ports) if ruleset else ():
            yield _changes(f"{chain} (nft)", mask)
    except ProgramFailed as error:
        yield Finding(_SUBJECT, unchecked=str(error))


def _changes(chain: str, mask: int | None) -> Finding:
    changed = "priorities" if mask is None else f"marks under {mask:#x}"
    problem = f"chain {chain} changes {changed} after us: where its rules match, no class limits the packets"
    remedy = "let it change other bits or match other ports, or set daemon.mark_mask, or daemon.classifier: socket"
    if mask is None:
        remedy = "let it match other ports, or set daemon.classifier: rules"
    return Finding(_SUBJECT, problem, remedy, harm=False)
