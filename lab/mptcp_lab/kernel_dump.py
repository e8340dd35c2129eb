"""A host's traffic control and netfilter state, to be compared before and after (invariant I3)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mptcp_lab.host import Host

_TOOLS: Final = ("iptables-legacy", "ip6tables-legacy")
# Comments contain the time, chains their packet and byte counters.
_VOLATILE: Final = re.compile(r"^#.*\n|\[\d+:\d+\]", re.MULTILINE)


def kernel_state(host: Host, interface: str = "eth0") -> dict[str, str]:
    """The output of the commands that show the state, by command."""
    state = {}
    for item in ("qdisc", "class", "filter"):
        command = f"tc {item} show dev {interface}"
        state[command] = host.run(*command.split()).stdout
    for tool in _TOOLS:
        # iptables-save lists a table only after its first use: use it first, always.
        host.run(tool, "-t", "mangle", "-S")
        state[f"{tool}-save"] = _VOLATILE.sub("", host.run(f"{tool}-save").stdout)
    state["nft list ruleset"] = host.run("nft", "list", "ruleset", check=False).stdout
    return state
