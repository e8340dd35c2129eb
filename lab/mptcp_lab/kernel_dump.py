"""What a host's kernel does to packets: to be compared before and after, as invariant I3 demands."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mptcp_lab.host import Host

_TOOLS: Final = ("iptables-legacy", "ip6tables-legacy")
# Comments carry the time, chains the counters of packets and bytes.
_VOLATILE: Final = re.compile(r"^#.*\n|\[\d+:\d+\]", re.MULTILINE)


def kernel_state(host: Host, interface: str = "eth0") -> dict[str, str]:
    """The output of the commands that show it, by command."""
    state = {}
    for item in ("qdisc", "class", "filter"):
        command = f"tc {item} show dev {interface}"
        state[command] = host.run(*command.split()).stdout
    for tool in _TOOLS:
        # A table appears in the dump once anybody has looked at it: look first, always.
        host.run(tool, "-t", "mangle", "-S")
        state[f"{tool}-save"] = _VOLATILE.sub("", host.run(f"{tool}-save").stdout)
    # It fails where the kernel has none.
    state["ipset save"] = host.run("ipset", "save", check=False).stdout
    return state
