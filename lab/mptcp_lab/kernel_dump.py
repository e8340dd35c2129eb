"""A host's traffic control and netfilter state, to be compared before and after (invariant I3)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mptcp_lab.host import Host

_TOOLS: Final = ("iptables-legacy", "ip6tables-legacy")
_ATTEMPTS: Final = 5
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
        state[f"{tool}-save"] = _VOLATILE.sub("", _saved(host, f"{tool}-save"))
    state["nft list ruleset"] = host.run("nft", "list", "ruleset", check=False).stdout
    return state


def _saved(host: Host, tool: str) -> str:
    # It reads the rules and then the sets that they name, which may have gone meanwhile.
    for _ in range(_ATTEMPTS):
        result = host.run(tool, check=False)
        if result.returncode == 0:
            return result.stdout
    return host.run(tool).stdout
