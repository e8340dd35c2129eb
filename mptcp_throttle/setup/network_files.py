"""The files of proposed access networks, with the evidence in comments."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from mptcp_throttle.rpc import Json
from mptcp_throttle.setup.network_groups import EXPENSIVE, Grouping, ProposedNetwork, SeenSubnet
from mptcp_throttle.units import Rate

_WIDTH = 118


def network_file(network: ProposedNetwork, cap: Rate) -> str:
    """The file of an access network; `cap` is the rate of an expensive one."""
    has_cap = network.preference == EXPENSIVE
    lines = [
        *_comment(
            "An access network, as `mptcp-throttle setup networks` has seen it; mptcp-throttle-network(5) explains all"
            " options. Rename it as you like: the name is in logs, and in the CLI."
        ),
        f"name: {network.name}",
        "",
        *_comment("Where clients came from. Add what else belongs to it: the longest prefix counts."),
        "subnets:",
        *(f'  - "{one.subnet}"  # {evidence(one)}' for one in network.subnets),
        "",
        *_comment(f"Preference (1 is the most preferred): {network.why_preference}."),
        f"preference: {network.preference}",
        "",
        *_comment(
            "The rate while the same connection has a live subflow on a more preferred network."
            + (" Choose what fits your contract." if has_cap else "")
        ),
        f"cap: {cap if has_cap else 'null'}",
        "",
        *_comment(f"What shares one rate. {network.why_per}."),
        f"per: {network.per}",
    ]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> Iterator[str]:
    return (f"# {line}" for line in textwrap.wrap(text, _WIDTH))


def evidence(one: SeenSubnet) -> str:
    """How much was seen of a subnet."""
    noun = "address" if one.subnet.version == 4 else "/64 prefix"
    plural = noun if one.addresses == 1 else f"{noun}es"
    return f"{one.addresses} {plural} in {one.connections} connection{'' if one.connections == 1 else 's'}"


def evidence_of(one: SeenSubnet) -> Json:
    """The same, for programs."""
    return {"subnet": str(one.subnet), "addresses": one.addresses, "connections": one.connections}


def _uncapped(networks: int) -> str:
    if networks == 1:
        return "nothing is capped, since one network only has been seen"
    return (
        "nothing is capped, since nothing says which network is expensive: --expensive ADDRESS says it, with an address"
        " of a client there, and --force replaces the files"
    )


def summary(grouping: Grouping, unrecorded: int) -> Iterator[str]:
    """What to know beside the files."""
    if all(network.preference != EXPENSIVE for network in grouping.networks):
        yield _uncapped(len(grouping.networks))
    if grouping.unassigned:
        named = ", ".join(f"{one.subnet} ({evidence(one)})" for one in grouping.unassigned[:10])
        more = f" and {len(grouping.unassigned) - 10} more" if len(grouping.unassigned) > 10 else ""
        yield f"in no network, since no connection has shown which: {named}{more}"
    if grouping.left_out:
        yield f"left out, as there were too many: {grouping.left_out} subnets"
    if unrecorded:
        yield f"not recorded, since there were too many connections: {unrecorded} changes"
