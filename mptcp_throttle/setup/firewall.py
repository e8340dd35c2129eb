"""Chains of a firewall that drop packets to this host unless a rule accepts them: functions of what its tools list."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from mptcp_throttle.rpc import Json

_FIREWALLD: Final = "firewalld"
"""Its chain for packets to this host ends with a rule that rejects, and has the policy accept."""


def nft_dropping(listed: Json) -> Iterator[str]:
    """From what `nft -j list chains` prints (libnftables-json(5)); those of iptables-nft(8) are among them."""
    for item in listed["nftables"]:
        chain = item.get("chain", {})
        drops = chain.get("policy") == "drop" or (chain.get("table") == _FIREWALLD and chain.get("type") == "filter")
        if chain.get("hook") == "input" and drops:
            yield f"{chain['name']} of table {chain['family']} {chain['table']}"


def legacy_dropping(saved: str, program: str) -> Iterator[str]:
    """From what iptables-legacy-save(8) prints."""
    table = ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif re.match(r":INPUT DROP\b", line):
            yield f"INPUT of table {table} ({program.removesuffix('-save')})"
